/* serve_draft_test.c - what guesses tokens: the end of a sequence found in itself and in earlier answers, and
 * --speculate's text. */
#include "serve/api/request.h"
#include "serve/draft/drafters.h"
#include "tests/test.h"
#include "text/grammar.h"

/* What a drafter guesses behind ids, at most `most` tokens, as a text; c: whose tokens they are. */
static const char *guesses(const struct drafter *d, void *state, struct choice *c, const char *ids, int most)
{
    static int32_t id[4096];
    static char text[64];
    struct err e;
    int64_t n = (int64_t)strlen(ids);
    for (int64_t i = 0; i < n; i++)
        id[i] = (unsigned char)ids[i];
    struct draft_ask a = { .c = c, .ids = id, .n_ids = n, .most = most, .guess = id + n };
    CHECK_INT(d->propose(state, &a, 1, &e), 0);
    CHECK(a.n <= most && a.class >= 0 && a.class < DRAFT_CLASSES);
    for (int i = 0; i < a.n; i++)
        text[i] = (char)a.guess[i];
    text[a.n] = 0;
    return text;
}

#define CHECK_TEXT(a, b) CHECK(!strcmp(a, b))

TEST(what_followed_the_longest_and_latest_match_is_the_guess)
{
    const struct drafter *d = &drafter_ngram;
    CHECK_TEXT(guesses(d, NULL, NULL, "", 4), "");
    CHECK_TEXT(guesses(d, NULL, NULL, "a", 4), "");
    CHECK_TEXT(guesses(d, NULL, NULL, "abcda", 4), ""); /* one token is not enough */
    CHECK_TEXT(guesses(d, NULL, NULL, "abcdefab", 3), "cde");
    CHECK_TEXT(guesses(d, NULL, NULL, "xabcdyabefab", 2), "ef");  /* the latest of equals */
    CHECK_TEXT(guesses(d, NULL, NULL, "xabcdyabefxab", 2), "cd"); /* the longest */
    CHECK_TEXT(guesses(d, NULL, NULL, "..ababab", 5), "ababa");   /* what followed is repeated */
    CHECK_TEXT(guesses(d, NULL, NULL, "zzz", 4), "zzzz");
}

/* A finished answer. */
static void answered(void *state, const char *prompt, const char *answer, char *salt)
{
    static int32_t id[4096];
    struct request rq = { .cache_key = salt };
    struct prompt p = { .n = (int64_t)strlen(prompt) };
    struct choice c = { .rq = &rq, .prompt = &p, .ids = id };
    for (const char *s = prompt; *s; s++)
        id[c.n_ids++] = (unsigned char)*s;
    for (const char *s = answer; *s; s++)
        id[c.n_ids++] = (unsigned char)*s;
    drafter_suffix.end(state, &c);
}

TEST(answers_are_guessed_from_earlier_ones_under_the_same_salt)
{
    static char one[] = "one", two[] = "two";
    struct request plain = { 0 }, salted = { .cache_key = one };
    struct choice c = { .rq = &plain }, s = { .rq = &salted };
    const struct drafter *d = &drafter_suffix;
    struct err e;
    void *x;
    CHECK_INT(d->open(&x, &(struct draft_open){ 0 }, &e), 0);
    CHECK_TEXT(guesses(d, x, &c, "the quick", 4), "");
    answered(x, "", "the quick brown fox", NULL);
    answered(x, "", "a quick red hen", NULL);
    answered(x, "", "the quick one", two);
    CHECK_TEXT(guesses(d, x, &c, "the quick", 6), " brown");
    CHECK_TEXT(guesses(d, x, &c, "very quick", 4), " red");   /* the latest of equals */
    CHECK_TEXT(guesses(d, x, &c, "red h", 9), "en");          /* no further than the answer goes */
    CHECK_TEXT(guesses(d, x, &c, "!quick!quick", 4), "!qui"); /* its own tokens first */
    CHECK_TEXT(guesses(d, x, &c, "!brown fo! a!brown fo", 2), "! ");
    CHECK_TEXT(guesses(d, x, &s, "the quick", 6), "");
    answered(x, "the", " quick cat", one);
    CHECK_TEXT(guesses(d, x, &s, "the quick", 4), " cat"); /* the end of the prompt counts */
    CHECK_TEXT(guesses(d, x, &c, "the quick", 6), " brown");
    d->close(x);
}

TEST(old_answers_are_forgotten_and_never_read_as_others)
{
    struct request plain = { 0 };
    struct choice c = { .rq = &plain };
    char text[3001];
    struct err e;
    void *x;
    CHECK_INT(drafter_suffix.open(&x, &(struct draft_open){ 0 }, &e), 0);
    answered(x, "", "the quick brown fox", NULL);
    for (int i = 0; i < 400; i++) { /* 1.2 million tokens */
        for (int k = 0; k < 3000; k++)
            text[k] = (char)('A' + (k * k + i * k + k / 7) % 26);
        text[3000] = 0;
        answered(x, "", text, NULL);
        if (i == 10)
            CHECK_TEXT(guesses(&drafter_suffix, x, &c, "the quick", 6), " brown");
    }
    CHECK_TEXT(guesses(&drafter_suffix, x, &c, "the quick", 6), "");
    char last[] = "................";
    memcpy(last, text + 1000, 16);
    char next[] = "....";
    memcpy(next, text + 1016, 4);
    CHECK_TEXT(guesses(&drafter_suffix, x, &c, last, 4), next);
    drafter_suffix.close(x);
}

/* Tells d that steps of 1 to 8 rows took base + each * rows. Returns how many drafts of c it then chooses. */
static int chosen(struct drafts *d, struct sched *s, struct choice *c, double base, double each)
{
    struct sched_item item = { .seq = &c->seq };
    struct err e;
    s->item = &item;
    s->n_items = 1;
    d->cost = (struct draft_cost){ 0 };
    for (int k = 0; k < 400; k++) {
        item.n_rows = 1 + k % 8;
        item.n_drafts = k % 8;
        d->n_steps++;
        drafts_timed(d, s, base + each * (double)item.n_rows);
    }
    s->n_items = 0;
    CHECK_INT(drafts_propose(d, s, &e), 0);
    return c->seq.n_drafts;
}

TEST(drafts_are_run_where_a_row_costs_little_or_guesses_are_right)
{
    struct request rq = { .max_tokens = 100 };
    struct prompt prompt = { .n = 6 };
    int32_t ids[64] = { 1, 2, 3, 1, 2, 3 };
    struct choice c = { .rq = &rq, .prompt = &prompt, .ids = ids, .cap = 64, .n_ids = 6 };
    struct sched s = { .running = { &c.seq, &c.seq, 1 } };
    struct drafts d;
    struct draft_spec spec;
    struct err e;
    c.seq.owner = &c;
    c.seq.n_ids = 6;
    c.seq.n_kv = 5;
    CHECK_INT(draft_spec_parse(&spec, "ngram:4", &e), 0);
    CHECK_INT(drafts_open(&d, &spec, &(struct draft_open){ .max_seqs = 1, .vocab = 9 }, &e), 0);

    CHECK_INT(chosen(&d, &s, &c, 1, 0), 4);
    CHECK_INT(c.draft.n, 4);
    CHECK_INT(ids[6], 1); /* 2 3 1 2 3 -> 1 2 3 1 */
    CHECK_INT(ids[9], 1);
    CHECK_INT(chosen(&d, &s, &c, 0, 1), 0); /* a row costs as much as a step … */
    CHECK_INT(c.draft.n, 4);                /* … but what comes is compared all the same */

    CHECK_INT(chosen(&d, &s, &c, 1, 0.3), 2); /* of guesses that are right six times of ten */
    for (int k = 0; k < 100; k++)
        drafts_compare(&d, &c, 0, 0, 1);
    CHECK_INT(chosen(&d, &s, &c, 1, 0.15), 4); /* always */
    for (int k = 0; k < 100; k++)
        drafts_compare(&d, &c, 0, 0, 7);
    CHECK_INT(chosen(&d, &s, &c, 1, 0.15), 0); /* never */

    c.n_ids = c.seq.n_ids = 6; /* with one token to go there is nothing to guess */
    rq.max_tokens = 1;
    CHECK_INT(chosen(&d, &s, &c, 1, 0), 0);
    CHECK_INT(c.draft.n, 0);
    rq.max_tokens = 3;
    CHECK(chosen(&d, &s, &c, 1, 0) <= 2);
    CHECK_INT(c.draft.n, 2);
    c.draft.alone = 1;
    CHECK_INT(chosen(&d, &s, &c, 1, 0), 0);
    drafts_close(&d);
}

TEST(what_a_grammar_forces_is_guessed)
{
    static const char *const part[] = { "ab", "[0-9]", "cde" };
    struct request rq = { .max_tokens = 100 };
    struct prompt prompt = { .n = 2 };
    int32_t ids[64] = { 1, 2 };
    struct choice c = { .rq = &rq, .prompt = &prompt, .ids = ids, .cap = 64, .n_ids = 2 };
    struct grammar_spec of[3], all = { .kind = GRAMMAR_SEQUENCE, .part = of, .n_parts = 3 };
    struct sched s = { .running = { &c.seq, &c.seq, 1 } };
    struct drafts d;
    struct draft_spec spec;
    struct tokenizer *t;
    struct token_trie *trie;
    struct grammar *g;
    struct err e;
    for (int i = 0; i < 3; i++)
        of[i] = (struct grammar_spec){ .kind = i == 1 ? GRAMMAR_REGEX : GRAMMAR_LITERAL,
                                       .text = part[i],
                                       .n = strlen(part[i]) };
    CHECK_INT(tokenizer_bytes(&t, &e), 0);
    CHECK_INT(token_trie_open(&trie, t, 256, NULL, 0, &e), 0);
    CHECK_INT(grammar_open(&g, &all, NULL, &e), 0);
    CHECK_INT(matcher_open(&c.matcher, g, trie, &e), 0);
    CHECK_INT(draft_spec_parse(&spec, "forced", &e), 0);
    CHECK_INT(drafts_open(&d, &spec, &(struct draft_open){ .max_seqs = 1, .vocab = 256 }, &e), 0);
    c.seq.owner = &c;
    c.seq.n_ids = 2;
    c.seq.n_kv = 1;

    CHECK_INT(chosen(&d, &s, &c, 1, 0),
              1); /* the last of several forced bytes may be part of a longer token */
    CHECK_INT(ids[2], 'a');
    CHECK_INT(c.draft.class, DRAFT_FORCED);
    CHECK_INT(matcher_take(c.matcher, 'a', &e), 1);
    CHECK_INT(matcher_take(c.matcher, 'b', &e), 1);
    CHECK_INT(chosen(&d, &s, &c, 1, 0), 0);
    CHECK_INT(matcher_take(c.matcher, '7', &e), 1);
    CHECK_INT(chosen(&d, &s, &c, 1, 0), 3); /* behind the last byte the text ends: no longer token */
    CHECK_INT(ids[2], 'c');
    CHECK_INT(ids[3], 'd');
    CHECK_INT(ids[4], 'e');

    drafts_close(&d);
    matcher_close(c.matcher);
    grammar_close(g);
    token_trie_close(trie);
    tokenizer_close(t);
}

TEST(speculate_names_a_drafter_or_a_checkpoint_and_a_length)
{
    static const struct {
        const char *text;
        int n_kind, most;
    } row[] = {
        { "ngram", 5, 0 },
        { "ngram:3", 5, 3 },
        { "suffix:16", 6, 16 },
        { "run/step-3", 10, 0 },
        { "run/step-3:4", 10, 4 },
        { "C:x", 3, 0 },
        { "http://host:8000", 16, 0 }, /* a port */
        { "http://host:8000/m", 18, 0 },
        { "http://host:8000/m:5", 18, 5 },
        { "hf://owner/name:2", 15, 2 },
    };
    static const char *const bad[] = { "ngram:0", "ngram:17", "ngram:99999999999999999999", ":3", "" };
    struct draft_spec s;
    struct err e;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        CHECK_INT(draft_spec_parse(&s, row[i].text, &e), 0);
        CHECK_INT(s.n_kind, row[i].n_kind);
        CHECK_INT(s.most, row[i].most);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_INT(draft_spec_parse(&s, bad[i], &e), -ERR_USAGE);
    CHECK_INT(draft_spec_parse(&s, "ngram:17", &e), -ERR_USAGE);
    CHECK_HAS(e.text, "17");
    CHECK_HAS(e.text, "16");
}
