/* base_jx_test.c - JSON that is refused, members of the wrong type, floats that come back. */
#include "tests/test.h"

#include <math.h>
#include "base/io.h"
#include "base/jx.h"
#include "base/rnd.h"

static void refused(const char *text, size_t n, const char *why)
{
    struct err e = { 0, "" };
    json_t *j = jx_parse(text, n, "some.json", &e);
    CHECK(j == NULL);
    CHECK_INT(e.code, ERR_FORMAT);
    CHECK_HAS(e.text, "some.json: ");
    CHECK_HAS(e.text, why);
    json_decref(j);
}
#define REFUSED(text, why) refused(text, sizeof(text) - 1, why)

TEST(bad_json_is_refused_with_its_place)
{
    REFUSED("", "empty: JSON is needed");
    REFUSED(" \r\n\t", "empty: JSON is needed");
    REFUSED("{\"a\":1,\n\"a\":2}", "duplicate");
    REFUSED("{\"a\":\n x}", "line 2");
    REFUSED("{} {}", "line 1");
    REFUSED("[NaN]", "line 1");
    REFUSED("[Infinity]", "line 1");
    REFUSED("[1e999]", "overflow");
    REFUSED("[99999999999999999999]", "big");
    REFUSED("[\"a\\u0000b\"]",
            "line 1, column 11: a text with the character U+0000 (\\u0000), which is not taken");
    REFUSED("{\"a\\u0000b\":1}", "U+0000");
    REFUSED("[\"a\0b\"]", "line 1");
    REFUSED("[\"\xff\"]", "unable to decode");
    REFUSED("[\"open", "line 1");
    REFUSED("[1,]", "line 1");
}

static json_t *nested(int depth, struct err *e)
{
    char text[600];
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    return jx_parse(text, (size_t)depth * 2, "deep.json", e);
}

TEST(depth_is_limited_to_64_outside_of_strings)
{
    struct err e;
    json_t *j = nested(64, &e);
    CHECK(j != NULL);
    json_decref(j);
    CHECK(nested(65, &e) == NULL);
    CHECK_HAS(e.text, "nested 65 deep");
    char text[300] = "[\"";
    memset(text + 2, '[', 200);
    strcpy(text + 202, "\\\"[[\"]");
    j = jx_parse(text, strlen(text), "string.json", &e);
    CHECK(j != NULL);
    json_decref(j);
}

TEST(members_come_with_their_type)
{
    static const char text[] = "{\"i\":-5,\"f\":0.5,\"b\":true,\"t\":\"x\",\"n\":null,\"l\":[]}";
    struct err e;
    json_t *j = jx_parse(text, sizeof text - 1, "c.json", &e);
    int64_t i = 7;
    double f = 7;
    int b = 7;
    const char *t = "7";
    CHECK(jx_int(j, "c.json", "i", &i, &e) == 1 && i == -5);
    CHECK(jx_float(j, "c.json", "f", &f, &e) == 1 && f == 0.5);
    CHECK(jx_float(j, "c.json", "i", &f, &e) == 1 && f == -5);
    CHECK(jx_bool(j, "c.json", "b", &b, &e) == 1 && b == 1);
    CHECK(jx_text(j, "c.json", "t", &t, &e) == 1 && !strcmp(t, "x"));
    CHECK(jx_int(j, "c.json", "absent", &i, &e) == 0 && i == -5);
    CHECK(jx_text(j, "c.json", "n", &t, &e) == 0 && !strcmp(t, "x"));
    CHECK_INT(jx_int(j, "c.json", "f", &i, &e), -ERR_FORMAT);
    CHECK_STR(e.text, "c.json: \"f\" is a number, must be an integer");
    CHECK_INT(jx_float(j, "c.json", "t", &f, &e), -ERR_FORMAT);
    CHECK_INT(jx_bool(j, "c.json", "i", &b, &e), -ERR_FORMAT);
    CHECK_INT(jx_text(j, "c.json", "l", &t, &e), -ERR_FORMAT);
    CHECK_STR(e.text, "c.json: \"l\" is a list, must be a text");
    json_decref(j);
}

TEST(a_file_is_loaded_and_named_in_errors)
{
    struct err e;
    char path[300];
    snprintf(path, sizeof path, "%s/x.json", test_tmp_dir());
    CHECK(jx_load(path, 100, &e) == NULL);
    CHECK_INT(e.code, ERR_FILE);
    CHECK_INT(io_write_file(path, "{\"a\":1}", 7, &e), 0);
    json_t *j = jx_load(path, 100, &e);
    CHECK(json_integer_value(json_object_get(j, "a")) == 1);
    json_decref(j);
    CHECK(jx_load(path, 6, &e) == NULL);
    CHECK_HAS(e.text, "x.json has 7 bytes");
}

/* Through text and the JSON parser back to the same bits. */
static int comes_back(float x)
{
    char text[32], list[40];
    struct err e;
    snprintf(list, sizeof list, "[%s]", jx_float32(x, text));
    json_t *j = jx_parse(list, strlen(list), "f", &e);
    float y = j ? (float)json_number_value(json_array_get(j, 0)) : NAN;
    json_decref(j);
    return !memcmp(&x, &y, 4);
}

TEST(float32_comes_back_with_its_bits)
{
    static const float x[] = {
        0,        -0.0f, 1,         -1,   0.1f, 1e-45f, -1e-45f, 1.17549435e-38f, 3.40282347e38f,
        16777217, 1e9f,  123456789, 5.54f
    };
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        CHECK(comes_back(x[i]));
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t u = (uint32_t)rnd_u64(1, 2, i);
        float f;
        memcpy(&f, &u, 4);
        if (isfinite(f) && !comes_back(f))
            test_fail(__FILE__, __LINE__, "%a does not come back", (double)f);
    }
    char text[32];
    CHECK_STR(jx_float32(0.5f, text), "0.5");
    CHECK_STR(jx_float32(-0.0f, text), "-0.0");
    CHECK_STR(jx_float32(NAN, text), "null");
}

TEST(json_of_strangers_has_limits_of_lists_and_values)
{
    static const struct jx_limits limits = { 3, 6 };
    static const struct {
        const char *text;
        int good;
    } cases[] = {
        { "[[],[],1]", 1 },     { "[[],[],[],1]", 0 },        { "{\"a\":{},\"b\":[]}", 1 },
        { "[1,2,3,4,5,6]", 0 }, { "[\"[[[[,,,,,,{{{\"]", 1 }, { "[\"\\\"[[[[,,,,,,\"]", 1 },
        { "[1,2,3,4,5]", 1 },   { "[1,2,3,4]", 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { 0 };
        json_t *j = jx_parse_within(cases[i].text, strlen(cases[i].text), &limits, "t", &e);
        if (!j != !cases[i].good)
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].text, j ? "taken" : e.text);
        json_decref(j);
    }
}

/* Walks the text as whoever reads a list does: every value parsed. 1: all of it is JSON. */
static int walks(const char *text)
{
    struct jx_slice key = { 0 }, value;
    struct jx_walk w = jx_walk((struct jx_slice){ text, strlen(text) });
    struct err e;
    int rc;
    while ((rc = jx_walk_next(&w, &key, &value)) > 0) {
        json_t *v = jx_parse(value.text, value.n, "t", &e),
               *k = key.n ? jx_parse(key.text, key.n, "t", &e) : v;
        int good = v && k;
        if (key.n)
            json_decref(k);
        json_decref(v);
        if (!good)
            return 0;
    }
    return rc == 0;
}

/* Every text with one byte removed or changed: the walk and jansson agree on what is JSON. */
TEST(a_walk_takes_what_the_parser_takes)
{
    static const char whole[] = " { \"a\" : [1, {\"b\":[]}, \"],}\\\"\" ] , \"c\":-1.5e3,\"d\":null } ";
    static const char with[] = "{}[],:\"1 n\\";
    char text[sizeof whole + 1];
    CHECK(walks(whole));
    for (size_t at = 0; at + 1 < sizeof whole; at++)
        for (size_t k = 0; k < sizeof with; k++) {
            struct err e;
            memcpy(text, whole, sizeof whole);
            if (k + 1 < sizeof with)
                text[at] = with[k];
            else
                memmove(text + at, text + at + 1, sizeof whole - at - 1);
            json_t *j = jx_parse(text, strlen(text), "t", &e);
            if (walks(text) != (json_is_object(j) || json_is_array(j)))
                test_fail(__FILE__, __LINE__, "%s: %s", text, j ? "is JSON" : "is none");
            json_decref(j);
        }
}

static void put_two(struct buf *to, const void *arg) { buf_add(to, arg, strlen(arg)); }

TEST(lists_apart_come_back)
{
    static const char text[] = "{\"a\":[1,[2],{}],\"b\":7,\"z\":[],\"c\":\"no list\"}";
    static const char *const key[] = { "a", "c", "d", "z" };
    struct jx_slice apart[4];
    struct buf b = { 0 };
    struct err e;
    json_t *o = jx_parse_apart((struct jx_slice){ text, sizeof text - 1 }, key, apart, 4, "t", &e), *v;
    CHECK_INT(json_array_size(json_object_get(o, "a")), 0);
    CHECK_STR(json_string_value(json_object_get(o, "c")), "no list");
    CHECK_INT(jx_count(apart[0]), 3);
    CHECK_INT(apart[1].n + apart[2].n, 0);
    CHECK_INT(apart[3].n, 2);
    struct jx_walk w = jx_walk(apart[0]);
    CHECK_INT(jx_walk_parse(&w, "t", &v, &e), 1);
    CHECK_INT(json_integer_value(v), 1);
    json_decref(v);

    json_object_del(o, "a");
    json_object_del(o, "z");
    jx_put_with(&b, o, &(struct jx_member){ "bb", put_two, "[1,2]" }, 1);
    buf_add(&b, "", 1);
    CHECK_STR(b.p, "{\"b\":7,\"bb\":[1,2],\"c\":\"no list\"}");
    buf_free(&b);
    json_decref(o);

    CHECK(!jx_parse_apart((struct jx_slice){ "{\"a\":[1],\"a\":[2]}", 17 }, key, apart, 4, "t", &e));
    CHECK(strstr(e.text, "duplicate"));
}
