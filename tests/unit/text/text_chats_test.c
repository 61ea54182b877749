/* text_chats_test.c - conversations: the forms of a line, which tokens have weights, what is refused. Below,
 * tokens with a weight are shown in brackets: the byte tokenizer makes a character a token. */
#include <math.h>
#include "tests/unit/text/text_help.h"
#include "text/chats.h"

#define SHOW "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
/* the prompt for an answer is how an answer begins */
#define PLAIN SHOW "{% if add_generation_prompt %}<a>{% endif %}"
#define MARKED \
    "{% for m in messages %}<{{ m.role[0] }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }};" \
    "{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}"

static struct err e;

static int encode(const char *form, enum chat_turns turns, const char *line, struct chat_tokens *x)
{
    struct tokenizer *t = NULL;
    struct template *open = NULL;
    char *q = quoted(line);
    memset(&e, 0, sizeof e);
    *x = (struct chat_tokens){ 0 };
    CHECK_INT(tokenizer_bytes(&t, &e), 0);
    if (form)
        CHECK_INT(template_open(&open, form, strlen(form), "t.jinja", &e), 0);
    struct chat_style style;
    if (open)
        chats_find_style(open, &style);
    struct chat_coder c = { t, open, open ? &style : NULL, turns, 0 };
    int rc = chats_encode(&c, q, strlen(q), x, &e);
    template_close(open);
    tokenizer_close(t);
    free(q);
    return rc;
}

/* "<u>hi;<a>[yes;]", or "error: …"; in a static buffer */
static const char *shown(const char *form, enum chat_turns turns, const char *line)
{
    static char out[2048];
    struct chat_tokens x;
    size_t at = 0;
    int open = 0;
    if (encode(form, turns, line, &x) < 0) {
        snprintf(out, sizeof out, "error: %s", e.text);
        return out;
    }
    for (size_t i = 0; i <= x.n; i++) {
        int now = i < x.n && x.weight[i] != 0;
        if (now != open)
            out[at++] = now ? '[' : ']';
        open = now;
        if (i < x.n)
            out[at++] = (char)x.ids[i];
    }
    out[at] = 0;
    chat_tokens_free(&x);
    return out;
}

#define U(text) "{'role':'user','content':'" text "'}"
#define A(text) "{'role':'assistant','content':'" text "'}"
#define TURNS "{'messages':[" U("hi") "," A("yes") "," U("so?") "," A("no") "]}"

TEST(the_assistants_text_and_its_end_have_weights)
{
    CHECK_STR(shown(PLAIN, CHAT_TURNS_ALL, TURNS), "<u>hi;<a>[yes;]<u>so?;<a>[no;]");
    CHECK_STR(shown(PLAIN, CHAT_TURNS_ALL, "\xEF\xBB\xBF" TURNS), "<u>hi;<a>[yes;]<u>so?;<a>[no;]");
    CHECK_STR(shown(PLAIN, CHAT_TURNS_LAST, TURNS), "<u>hi;<a>yes;<u>so?;<a>[no;]");
    CHECK_STR(shown(PLAIN, CHAT_TURNS_ALL, "{'messages':[" U("hi") "]}"), "<u>hi;");
    CHECK_STR(shown(PLAIN, CHAT_TURNS_ALL,
                    "{'messages':[" U("hi") "," A("yes") ",{'role':'tool','content':'7'}," A("7") "]}"),
              "<u>hi;<a>[yes;]<t>7;<a>[7;]");
}

#define CALLS \
    "{'messages':[" U( \
        "a") ",{'role':'assistant','content':'b','tool_calls':[{'id':'1','function':{'name':'f'," \
             "'arguments':'{\\\"k\\\":1}'}}]}]}"
/* a comment tells the family of models, which write calls so; the template itself shows none */
#define HERMES "{# <tool_call> #}" PLAIN

TEST(calls_are_shown_as_the_server_shows_them)
{
    CHECK_STR(
        shown("{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ "
              "c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %};{% endfor %}{% if "
              "add_generation_prompt %}<a>{% endif %}",
              CHAT_TURNS_ALL, CALLS),
        "<u>a;<a>[b[f {\"k\": 1}];]");
    CHECK_HAS(shown(HERMES, CHAT_TURNS_ALL, CALLS), "<u>a;<a>[b\n<tool_call>");
    CHECK_HAS(shown(HERMES, CHAT_TURNS_ALL, CALLS), "</tool_call>;]");
    CHECK_STR(shown(PLAIN, CHAT_TURNS_ALL, CALLS),
              "error: the template does not show that message 1 calls f: use one "
              "that shows tool_calls");
}

TEST(blocks_of_generation_say_it_themselves)
{
    CHECK_STR(shown(MARKED, CHAT_TURNS_ALL, TURNS), "<u>hi;<a>[yes;]<u>so?;<a>[no;]");
    CHECK_STR(shown(MARKED, CHAT_TURNS_LAST, TURNS), "<u>hi;<a>yes;<u>so?;<a>[no;]");
    /* through a variable and a filter the marks stay with their bytes */
    CHECK_STR(
        shown("{% set x %}<{% generation %}ab{% endgeneration %}>{% endset %}{{ x | replace('<', '((') }}", 0,
              TURNS),
        "(([ab]>");
    CHECK_HAS(
        shown("{% generation %}a{% endgeneration %}b{% generation %}c{% endgeneration %}d{% generation %}e"
              "{% endgeneration %}",
              0, "{'messages':[" U("hi") "," A("yes") ",{'role':'assistant','content':'','weight':2}]}"),
        "the template marks 3 parts of 2 answers");
}

TEST(every_form_of_a_line_is_read)
{
    static const char *const lines[] = {
        "{'conversations':[{'from':'human','value':'hi'},{'from':'gpt','value':'yes'}]}",
        "{'prompt':[" U("hi") "],'completion':[" A("yes") "]}",
        "{'messages':[{'role':'user','content':[{'type':'text','text':'hi'}]}," A("yes") "]}",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        CHECK_STR(shown(PLAIN, CHAT_TURNS_ALL, lines[i]), "<u>hi;<a>[yes;]");
    CHECK_STR(shown(PLAIN, CHAT_TURNS_ALL,
                    "{'prompt':[" U("hi") "," A("no") "],'completion':[" A("yes") "]}"),
              "<u>hi;<a>no;<a>[yes;]");
    CHECK_STR(shown(NULL, 0, "{'prompt':'2+2=','completion':'4'}"), "2+2=[4]");
    CHECK_STR(shown(NULL, 0, "{'ids':[97,98,99,100]}"), "a[bcd]");
    CHECK_STR(shown(NULL, 0, "{'ids':[97,98,99,100],'weights':[9,0,-1,null]}"), "ab[c]d");
}

/* The weights of a line's tokens that are not 0. */
static size_t weights_of(const char *form, const char *line, float *out)
{
    struct chat_tokens x;
    size_t n = 0;
    CHECK_INT(encode(form, CHAT_TURNS_ALL, line, &x), 0);
    for (size_t i = 0; i < x.n; i++)
        if (x.weight[i] != 0)
            out[n++] = x.weight[i];
    chat_tokens_free(&x);
    return n;
}

TEST(weights_of_a_line_and_of_a_message_are_multiplied)
{
    static const char *const forms[] = { PLAIN, MARKED };
    float w[64];
    for (int k = 0; k < 2; k++) {
        CHECK_INT(weights_of(
                      forms[k],
                      "{'weight':-0.5,'messages':[" U(
                          "hi") ",{'role':'assistant','content':'yes','weight':3}," U("so?") "," A("no") "]}",
                      w),
                  7);
        for (int i = 0; i < 7; i++)
            CHECK(w[i] == (i < 4 ? -1.5f : -0.5f));
        CHECK_INT(weights_of(forms[k],
                             "{'messages':[" U("hi") ",{'role':'assistant','content':'yes','weight':0}," U(
                                 "so?") "," A("no") "]}",
                             w),
                  3);
    }
    CHECK_INT(weights_of(NULL, "{'weight':2,'ids':[1,2,3],'weights':[1,0.25,-4]}", w), 2);
    CHECK(w[0] == 0.5f && w[1] == -8.0f);
    CHECK_INT(weights_of(NULL, "{'weight':0.5,'prompt':'a','completion':'bc'}", w), 2);
    CHECK(w[0] == 0.5f && w[1] == 0.5f);
}

TEST(what_is_no_conversation_is_refused_with_what_to_change)
{
    static const struct {
        const char *form, *line, *says;
    } bad[] = {
        { PLAIN, "{'messages':", "no JSON" },
        { PLAIN, "[1]", "no conversation" },
        { PLAIN, "{'text':'a'}", "no conversation" },
        { PLAIN, "{'messages':[]}", "messages must be a list of messages" },
        { PLAIN, "{'messages':7}", "messages must be a list of messages" },
        { PLAIN, "{'messages':[7]}", "message 0 is no object" },
        { PLAIN, "{'messages':[{'content':'a'}]}", "message 0 needs a role" },
        { PLAIN, "{'messages':[{'role':'user','content':3}]}", "message 0 needs a role and a content" },
        { PLAIN, "{'messages':[{'role':'user','content':[{'type':'image_url'}]}]}",
          "messages[0].content[0] must be" },
        { PLAIN, "{'messages':[" U("a") "],'tools':{}}", "tools must be a list" },
        { PLAIN, "{'messages':[" U("a") "],'weight':'1'}", "the weight is no number" },
        { PLAIN, "{'messages':[{'role':'assistant','content':'','weight':1e39}]}",
          "the weight of message 0 is 1e+39" },
        { PLAIN, "{'weight':1e30,'messages':[" U("a") ",{'role':'assistant','content':'b','weight':1e30}]}",
          "is beyond fp32" },
        { PLAIN, "{'messages':[{'role':'assistant','content':null,'function_call':{'name':'f'}}]}",
          "message 0 has function_call: write it as tool_calls" },
        { PLAIN, "{'conversations':[{'from':'function_call','value':'f'}]}", "with tool_calls" },
        { PLAIN, "{'prompt':'a','completion':[" A("b") "]}", "prompt and completion must be" },
        { NULL, "{'ids':[]}", "ids must be a list" },
        { NULL, "{'ids':[1,256]}", "ids[1] is no token id below 256" },
        { NULL, "{'ids':[-1]}", "ids[0] is no token id" },
        { NULL, "{'ids':[1,2],'weights':[1]}",
          "weights must be a list of 2 numbers, one for each of ids: it has 1" },
        { NULL, "{'ids':[1,2],'weights':[1,'a']}", "weights[1] is no number" },
        { NULL, TURNS, "a line with messages needs a chat template" },
        /* a template that leaves something out of earlier answers, and one whose prompt an answer does not
         * begin with */
        { "{% for m in messages %}<{{ m.role[0] }}>{% if m.role == 'assistant' and not loop.last %}-{% else "
          "%}"
          "{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
          TURNS,
          "the template shows messages 0 to 1 in another way when more follow (from byte 8 on): use "
          "--chat-turns" },
        { SHOW "{% if add_generation_prompt %}<a><think>{% endif %}", TURNS,
          "the template's prompt for an answer is not how it begins message 1 (from byte 9 on)" },
        { "{{ raise_exception('no') }}", TURNS, "no" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *got = shown(bad[i].form, CHAT_TURNS_ALL, bad[i].line);
        if (!strstr(got, bad[i].says) || strncmp(got, "error: ", 7))
            test_fail(__FILE__, __LINE__, "%s: %s", bad[i].line, got);
        CHECK(!strchr(got, '\n'));
    }
}

/* ---- tokens that are more than a byte ---- */
#define MODEL \
    "'model':{'type':'BPE','vocab':{'<':0,'u':1,'>':2,'a':3,'b':4,';':5,'\xc4\xa0':6,'ab':7,'" \
    "\xc4\xa0\x61\x62':8," \
    "'>a':9,'b;':10},'merges':['> a','a b','\xc4\xa0 ab','b ;']}}"
static const char *const plain_bpe =
    "{'added_tokens':[{'id':11,'content':'<end>','special':true}],'pre_tokenizer':{'type':'ByteLevel',"
    "'add_prefix_space':false,'use_regex':false},'decoder':{'type':'ByteLevel'}," MODEL;
static const char *const lower_bpe =
    "{'added_tokens':[{'id':11,'content':'<end>','special':true}],'normalizer':{'type':'Lowercase'},"
    "'pre_tokenizer':{'type':'ByteLevel','add_prefix_space':false,'use_regex':false},"
    "'decoder':{'type':'ByteLevel'}," MODEL;

/* "id*" for each token with a weight */
static const char *tokens_of(const char *tokenizer, const char *prompt, const char *completion)
{
    static char out[256];
    struct tokenizer *t = must_open(tokenizer);
    struct chat_coder c = { .t = t };
    struct chat_tokens x = { 0 };
    char line[256];
    size_t at = 0;
    snprintf(line, sizeof line, "{\"prompt\":\"%s\",\"completion\":\"%s\"}", prompt, completion);
    out[0] = 0;
    if (chats_encode(&c, line, strlen(line), &x, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    for (size_t i = 0; i < x.n; i++)
        at += (size_t)sprintf(out + at, "%s%d%s", i ? " " : "", x.ids[i], x.weight[i] != 0 ? "*" : "");
    chat_tokens_free(&x);
    tokenizer_close(t);
    return out;
}

TEST(a_token_that_has_a_byte_of_an_answer_belongs_to_it)
{
    CHECK_STR(tokens_of(plain_bpe, "<u>", " ab"), "0 1 2 8*");
    CHECK_STR(tokens_of(plain_bpe, "<u", ">ab"), "0 1 9* 4*");
    CHECK_STR(tokens_of(plain_bpe, "<u>", "ab"), "0 1 9* 4*"); /* >a is one token, half of it the answer's */
    CHECK_STR(tokens_of(plain_bpe, "<u>", "ab<end>"), "0 1 9* 4* 11*");
    CHECK_STR(tokens_of(plain_bpe, "<end>", "ab"), "11 7*");
    /* where bytes of tokens are not the text, beginnings of it are encoded */
    CHECK_STR(tokens_of(lower_bpe, "<U>", " AB"), "0 1 2 8*");
    CHECK_STR(tokens_of(lower_bpe, "<U>", "AB"), "0 1 9* 4*");
    CHECK_STR(tokens_of(lower_bpe, "<U<end>", "AB;"), "0 1 11 7* 5*");
}
