/* format_pickle_test.c - pickles as inert nodes: their values, what is refused, and that nothing is
 * executed. */
#include <unistd.h>
#include "format/torch/pickle.h"
#include "tests/test.h"

/* Parses bytes. NULL: e.text has the reason. */
static int parse(struct pk_doc *d, const char *data, size_t n, struct err *e)
{
    memset(e, 0, sizeof *e);
    return pk_parse(d, data, n, "test.pkl", e);
}
#define PARSE(d, text, e) parse((d), "" text, sizeof(text) - 1, (e))

static void gives_int(const char *data, size_t n, int64_t want)
{
    struct pk_doc d;
    struct err e;
    int64_t v = 0;
    if (parse(&d, data, n, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        return;
    }
    CHECK(pk_int(d.root, &v));
    CHECK_INT(v, want);
    CHECK_INT(d.used, n);
    pk_free(&d);
}
#define INT(text, want) gives_int("\x80\x02" text ".", sizeof(text) + 2, want)

TEST(numbers_of_every_width_and_sign)
{
    INT("K\xff", 255);
    INT("M\x34\x12", 0x1234);
    INT("J\xfe\xff\xff\xff", -2);
    INT("\x8a\x00", 0);
    INT("\x8a\x01\xff", -1);
    INT("\x8a\x02\xff\x00", 255);
    INT("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80", INT64_MIN);
    INT("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", INT64_MAX);
    INT("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x00", INT64_MAX); /* a byte more than needed */
    INT("\x8b\x04\x00\x00\x00\x01\x00\x00\x00", 1);
    INT("G\x40\x10\x00\x00\x00\x00\x00\x00", 4); /* 4.0 */
}

TEST(a_number_beyond_64_bits_is_not_a_size)
{
    static const char *const big[] = { "\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x40.",
                                       "\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.",
                                       "\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xff." };
    struct pk_doc d;
    struct err e;
    int64_t v;
    for (size_t i = 0; i < 3; i++) {
        CHECK(parse(&d, big[i], 14, &e) >= 0);
        CHECK_INT(d.root->kind, PK_BIG);
        CHECK(!pk_int(d.root, &v));
        pk_free(&d);
    }
}

TEST(dicts_lists_tuples_sets_memo_and_text)
{
    struct pk_doc d;
    struct err e;
    int64_t v = 0;
    /* {'a': [1, 2], 'b': ('x', None, True), 'c': set([7])}; the list goes through the memo */
    CHECK(PARSE(&d,
                "\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
                "a]\x94(K\x01K\x02"
                "e\x8c\x01"
                "b\x8c\x01xN\x88\x87\x8c\x01"
                "c\x8f\x94(K\x07\x90\x8c\x01"
                "d"
                "h\x01u.",
                &e) >= 0);
    CHECK(pk_int(pk_at(pk_get(d.root, "a"), 1), &v) && v == 2);
    CHECK(pk_is_text(pk_at(pk_get(d.root, "b"), 0), "x"));
    CHECK_INT(pk_get(d.root, "b")->n, 3);
    CHECK_INT(pk_get(d.root, "c")->kind, PK_SET);
    CHECK(pk_get(d.root, "d") == pk_get(d.root, "a"));
    CHECK(!pk_get(d.root, "z"));
    CHECK(!pk_get(NULL, "z") && !pk_at(NULL, 0) && !pk_attr(NULL, "z"));
    pk_free(&d);
}

TEST(known_calls_become_their_values_and_others_stay_inert)
{
    struct pk_doc d;
    struct err e;
    int64_t v = 0;
    CHECK(PARSE(&d,
                "\x80\x02"
                "ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00kK\x05u.",
                &e) >= 0);
    CHECK(pk_int(pk_get(d.root, "k"), &v) && v == 5);
    pk_free(&d);
    CHECK(PARSE(&d,
                "\x80\x02"
                "ctorch\nSize\n(K\x02K\x03t\x85R.",
                &e) >= 0);
    CHECK_INT(d.root->kind, PK_TUPLE);
    CHECK_INT(d.root->n, 2);
    pk_free(&d);
    CHECK(PARSE(&d,
                "\x80\x02"
                "c_codecs\nencode\nX\x03\x00\x00\x00"
                "A\xc3\xbfX\x06\x00\x00\x00latin1\x86R.",
                &e) >= 0);
    CHECK_INT(d.root->kind, PK_BYTES);
    CHECK_INT(d.root->n, 2);
    CHECK_SAME(d.root->text, "A\xff", 2);
    pk_free(&d);
    CHECK(PARSE(&d,
                "\x80\x02"
                "cargparse\nNamespace\n)\x81}X\x01\x00\x00\x00xK\x09sb.",
                &e) >= 0);
    CHECK(pk_is_call(d.root, "Namespace"));
    CHECK(pk_int(pk_attr(d.root, "x"), &v) && v == 9);
    pk_free(&d);
}

/* Bad pickles, each with a part of the message that it must give. */
static const struct {
    const char *data;
    size_t n;
    const char *says;
} bad[] = {
#define BAD(text, part) \
    { \
        "" text, sizeof(text) - 1, part \
    }
    BAD("\x80\x02"
        "cposix\nsystem\nX\x01\x00\x00\x00x\x85R.",
        "posix.system"),
    BAD("\x80\x02"
        "c__builtin__\neval\n.",
        "__builtin__.eval"),
    BAD("\x80\x04\x8c\x05posix\x8c\x06system\x93.", "posix.system"),
    /* a function: begins small */
    BAD("\x80\x02"
        "cdeepspeed.ops\nload\n.",
        "deepspeed.ops.load"),
    BAD("\x80\x02"
        "ctorch.hub\nload\n.",
        "torch.hub.load"),
    BAD("\x80\x02"
        "ctorch.storage\n_load_from_bytes\n.",
        "_load_from_bytes"),
    BAD("\x80\x02"
        "cmegatronx\nThing\n.",
        "megatronx.Thing"),
    BAD("\x80\x09N.", "protocol 9"),
    BAD("", "no end"),
    BAD("\x80\x02N", "no end"),
    BAD("\x80\x02.", "stack"),
    BAD("\x80\x02N0.", "stack"),
    BAD("\x80\x02N(.", "mark"),
    BAD("\x80\x02Nt.", "no mark"),
    BAD("\x80\x02\x85.", "empty stack"),
    BAD("\x80\x02(\x85.", "empty stack"), /* not across a mark */
    BAD("\x80\x02}K\x01s.", "stack"),
    BAD("\x80\x02]K\x01K\x02s.", "takes none"), /* SETITEM on a list */
    BAD("\x80\x02}(K\x01u.", "without a value"),
    BAD("\x80\x02)K\x01"
        "a.",
        "takes none"),
    BAD("\x80\x02K\x01}b.", "not an object"),
    BAD("\x80\x02K\x01)R.", "not a class"),
    /* arguments that are no tuple */
    BAD("\x80\x02"
        "ccollections\nOrderedDict\nK\x01R.",
        "not a class"),
    BAD("\x80\x02h\x00.", "never put"),
    BAD("\x80\x02Nr\xff\xff\xff\xff.", "4294967295"),
    BAD("\x80\x02X\xff\xff\xff\x7f"
        "a.",
        "wants 2147483647 bytes"),
    BAD("\x80\x02\x8b\xff\xff\xff\x7f.", "wants 2147483647 bytes"),
    BAD("\x80\x02\x8b\xff\xff\xff\xff.", "negative length"),
    BAD("\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "wants 18446744073709551615 bytes"),
    BAD("\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00N.", "frame"),
    BAD("\x80\x02\x82\x01.", "opcode 0x82"),
    BAD("\x80\x02I1\n.", "opcode 0x49"),
    BAD("\x80\x02iposix\nsystem\n.", "opcode 0x69"),
    BAD("\x80\x02oN.", "opcode 0x6f"),
    BAD("\x80\x02\xff.", "opcode 0xff"),
    BAD("\x80\x02"
        "cposix",
        "without an end"),
    BAD("\x80\x04K\x01K\x02\x93.", "not text"),
};

TEST(what_checkpoints_do_not_use_is_refused_with_its_reason)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pk_doc d;
        struct err e;
        if (parse(&d, bad[i].data, bad[i].n, &e) >= 0) {
            test_fail(__FILE__, __LINE__, "case %zu was read", i);
            pk_free(&d);
        } else if (!strstr(e.text, bad[i].says)) {
            test_fail(__FILE__, __LINE__, "case %zu: \"%s\" does not contain \"%s\"", i, e.text, bad[i].says);
        }
    }
}

TEST(every_cut_of_a_good_pickle_is_refused)
{
    static const char good[] = "\x80\x02}(X\x01\x00\x00\x00"
                               "actorch\nSize\n(K\x02K\x03t\x85Rq\x01X\x01\x00\x00\x00"
                               "bh\x01u.";
    for (size_t n = 0; n < sizeof good - 2; n++) {
        struct pk_doc d;
        struct err e;
        char *cut = malloc(n ? n : 1); /* exact size: the sanitizer sees a read behind the end */
        memcpy(cut, good, n);
        CHECK(parse(&d, cut, n, &e) < 0);
        free(cut);
    }
}

TEST(depth_and_cycles_cost_no_stack)
{
    enum { DEEP = 400000 };
    struct pk_doc d;
    struct err e;
    char *p = malloc(DEEP + 4);
    memcpy(p, "\x80\x02)", 3);
    memset(p + 3, '\x85', DEEP);
    p[DEEP + 3] = '.';
    CHECK(parse(&d, p, DEEP + 4, &e) >= 0);
    CHECK_INT(d.root->kind, PK_TUPLE);
    pk_free(&d);
    free(p);
    CHECK(PARSE(&d, "\x80\x02}q\x00X\x01\x00\x00\x00kh\x00s.", &e) >= 0);
    CHECK(pk_get(d.root, "k") == d.root);
    pk_free(&d);
}

TEST(shared_nodes_are_not_copied)
{
    /* thirty lists, each ten times the one before it: 10^30 leaves */
    char data[2000] = "\x80\x02]q";
    size_t n = 4;
    struct pk_doc d;
    struct err e;
    data[n++] = 0;
    for (int i = 0; i < 30; i++) {
        data[n++] = '(';
        for (int k = 0; k < 10; k++)
            data[n++] = 'h', data[n++] = (char)i;
        data[n++] = 't';
        data[n++] = 'q', data[n++] = (char)(i + 1);
    }
    data[n++] = '.';
    CHECK(parse(&d, data, n, &e) >= 0);
    CHECK_INT(d.root->n, 10);
    pk_free(&d);
}
