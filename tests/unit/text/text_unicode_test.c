/* text_unicode_test.c - UTF-8, properties, normal forms, the byte map. */
#include <time.h>
#include "tests/unit/text/text_help.h"

static const char *repaired(const char *s, size_t n)
{
    static char out[256];
    struct buf b = { 0 };
    utf8_repair(s, n, 1, &b);
    snprintf(out, sizeof out, "%.*s", (int)b.n, b.p ? b.p : "");
    buf_free(&b);
    return out;
}
#define R(s) repaired(s, sizeof(s) - 1)
#define BAD "\xEF\xBF\xBD"

TEST(each_maximal_invalid_part_becomes_one_replacement)
{
    CHECK_STR(R("a\xC3\xA9z"), "a\xC3\xA9z");
    CHECK_STR(R("\xFF\xFE"), BAD BAD);
    CHECK_STR(R("\xC0\xAF"), BAD BAD); /* overlong */
    CHECK_STR(R("\xE0\x80\xAF"), BAD BAD BAD);
    CHECK_STR(R("\xED\xA0\x80"), BAD BAD BAD);         /* a surrogate */
    CHECK_STR(R("\xF4\x90\x80\x80"), BAD BAD BAD BAD); /* above U+10FFFF */
    /* Unicode 15, table 3-8 */
    CHECK_STR(R("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
                "A"),
              BAD BAD BAD BAD "A");
    CHECK_STR(R("\xF0\x9F\x98"), BAD); /* cut at the end */
    CHECK_STR(R("\xF0\x9F\x98"
                "x"),
              BAD "x");
    CHECK_STR(R("\x80"), BAD);
}

TEST(a_cut_character_is_left_when_more_may_come)
{
    struct buf b = { 0 };
    CHECK_INT(utf8_repair("ab\xE2\x82", 4, 0, &b), 2);
    CHECK_INT(b.n, 2);
    CHECK_INT(utf8_repair("\xE2\x28", 2, 0, &b), 2); /* this one cannot be completed any more */
    CHECK_INT(b.n, 6);
    buf_free(&b);
}

TEST(every_code_point_comes_back_from_its_bytes)
{
    struct buf b = { 0 };
    uint32_t cp;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000)
            continue;
        b.n = 0;
        buf_add_cp(&b, c);
        int len = utf8_next(b.p, b.n, &cp);
        if (len != (int)b.n || cp != c || utf8_prev(b.p, b.n, &cp) != len || cp != c) {
            test_fail(__FILE__, __LINE__, "U+%04X", c);
            break;
        }
        for (size_t cut = 1; cut < b.n; cut++)
            CHECK_INT(utf8_next(b.p, cut, &cp), 0);
    }
    buf_free(&b);
}

TEST(the_byte_map_is_a_bijection_with_gpt2s_fixed_points)
{
    for (int b = 0; b < 256; b++)
        CHECK_INT(char_byte(byte_char((unsigned char)b)), b);
    CHECK_INT(byte_char(' '), 0x120);
    CHECK_INT(byte_char('\n'), 0x10A);
    CHECK_INT(byte_char(0x7F), 0x121);
    CHECK_INT(byte_char(0xA0), 0x142);
    CHECK_INT(byte_char(0xAD), 0x143);
    CHECK_INT(byte_char(0xFF), 0xFF);
    CHECK_INT(char_byte(' '), -1);
    CHECK_INT(char_byte(0x144), -1);
    CHECK_INT(char_byte(0xAD), -1);
}

TEST(spaces_are_white_space_of_unicode)
{
    CHECK(uni_is_space(' ') && uni_is_space('\t') && uni_is_space(0xA0) && uni_is_space(0x2028) &&
          uni_is_space(0x3000) && uni_is_space(0x85));
    CHECK(!uni_is_space(0x180E) && !uni_is_space(0x200B) && !uni_is_space(0xFEFF) && !uni_is_space(0) &&
          !uni_is_space(0x1C));
    CHECK(uni_is_word('a') && uni_is_word('_') && uni_is_word(0x301) && uni_is_word(0x661) &&
          !uni_is_word('-') && !uni_is_word(0x2014));
    CHECK(uni_is_numeric(0xBD) && uni_is_numeric(0x2167) && uni_is_numeric('7') && !uni_is_numeric('x'));
    CHECK(uni_is_punct('$') && uni_is_punct(0x3002) && !uni_is_punct(0x20AC) && !uni_is_punct('a'));
}

static const char *form(const char *s, int f)
{
    static char out[256];
    struct buf b = { 0 };
    uni_normalize(s, strlen(s), f, &b);
    snprintf(out, sizeof out, "%.*s", (int)b.n, b.p ? b.p : "");
    buf_free(&b);
    return out;
}

TEST(normal_forms_of_the_classic_cases)
{
    CHECK_STR(form("cafe\xCC\x81!", UNI_COMPOSE), "caf\xC3\xA9!");
    CHECK_STR(form("\xCC\x81"
                   "a",
                   UNI_COMPOSE),
              "\xCC\x81"
              "a");
    CHECK_STR(form("caf\xC3\xA9", 0), "cafe\xCC\x81");
    /* a ligature stays in NFC … */
    CHECK_STR(form("\xEF\xAC\x81", UNI_COMPOSE), "\xEF\xAC\x81");
    /* … and goes in NFKC */
    CHECK_STR(form("\xEF\xAC\x81", UNI_COMPOSE | UNI_COMPAT), "fi");
    /* marks are put in order, then composed */
    CHECK_STR(form("a\xCC\x81\xCC\xA3", UNI_COMPOSE), "\xE1\xBA\xA1\xCC\x81");
    CHECK_STR(form("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", UNI_COMPOSE), "\xED\x95\x9C"); /* Hangul */
    CHECK_STR(form("\xED\x95\x9C", 0), "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB");
    /* the Angstrom sign */
    CHECK_STR(form("\xE2\x84\xAB", UNI_COMPOSE), "\xC3\x85");
    CHECK_STR(form("plain ascii", UNI_COMPOSE), "plain ascii");
    CHECK_STR(form("", UNI_COMPOSE), "");
}

TEST(a_megabyte_of_marks_in_the_wrong_order_is_sorted_in_time)
{
    /* pairs; sorting by insertion would take 2e10 swaps */
    size_t n = 200000;
    char *s = malloc(n * 4);
    struct buf b = { 0 };
    for (size_t i = 0; i < n; i++)
        memcpy(s + 4 * i, "\xCC\x81\xCC\xA3", 4); /* classes 230, 220 */
    clock_t t0 = clock();
    uni_normalize(s, n * 4, UNI_COMPOSE, &b);
    double cpu_s = (double)(clock() - t0) / CLOCKS_PER_SEC;
    CHECK_INT(b.n, n * 4);
    CHECK(cpu_s < 5);
    int sorted = b.n == n * 4;
    for (size_t i = 0; sorted && i < 2 * n; i++)
        sorted = !memcmp(b.p + 2 * i, i < n ? "\xCC\xA3" : "\xCC\x81", 2);
    CHECK(sorted);
    free(s);
    buf_free(&b);
}
