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
