/* format_sign_test.c - SHA-256, HMAC, MD5 and signed S3 requests: the vectors of FIPS 180, RFC 4231, RFC 1321
 * and AWS; the answers of S3. */
#include <fcntl.h>
#include <unistd.h>
#include "store/md5.h"
#include "store/s3/s3_xml.h"
#include "store/sha256.h"
#include "store/sigv4.h"
#include "tests/test.h"

static void hash(const char *text, size_t n, size_t step, char hex[65])
{
    unsigned char sum[32];
    struct sha256 s;
    sha256_start(&s);
    for (size_t at = 0; at < n; at += step)
        sha256_add(&s, text + at, n - at < step ? n - at : step);
    sha256_end(&s, sum);
    sha256_hex(sum, hex);
}

TEST(sha256_gives_the_published_sums)
{
    static const struct {
        const char *text, *sum;
    } known[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmn"
          "opqrstnopqrstu",
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
    };
    char hex[65];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        hash(known[i].text, strlen(known[i].text), 1000, hex);
        CHECK_STR(hex, known[i].sum);
    }
}

TEST(sha256_does_not_depend_on_how_the_bytes_come)
{
    static char text[1000];
    char whole[65], parts[65];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 31);
    for (size_t n = 0; n < 200; n++) {
        hash(text, n, 1000, whole);
        for (size_t step = 1; step < 130; step += 7) {
            hash(text, n, step, parts);
            CHECK_STR(parts, whole);
        }
    }
}

TEST(sha256_of_a_file_of_a_million_bytes)
{
    char path[512], hex[65];
    static char a[1000000];
    struct err e;
    memset(a, 'a', sizeof a);
    snprintf(path, sizeof path, "%s/a", test_tmp_dir());
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    CHECK_INT(write(fd, a, sizeof a), (long long)sizeof a);
    close(fd);
    CHECK_INT(sha256_file(path, hex, &e), 0);
    CHECK_STR(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    CHECK(sha256_file("/nonexistent/file", hex, &e) < 0);
}

TEST(hmac_gives_the_sums_of_rfc_4231)
{
    unsigned char sum[32];
    char hex[65], key[131];
    sha256_hmac("Jefe", 4, "what do ya want for nothing?", 28, sum);
    sha256_hex(sum, hex);
    CHECK_STR(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key); /* longer than a block: hashed first */
    sha256_hmac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First", 54, sum);
    sha256_hex(sum, hex);
    CHECK_STR(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

/* "Example: GET Object" of the S3 documentation: 24 May 2013, 00:00:00 GMT. */
static const struct sigv4_key example = { .id = "AKIAIOSFODNN7EXAMPLE",
                                          .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                          .region = "us-east-1" };
#define EXAMPLE_TIME 1369353600
#define EXAMPLE_URL "https://examplebucket.s3.amazonaws.com/test.txt"

TEST(a_signature_is_the_one_that_aws_publishes)
{
    struct sigv4_lines l;
    CHECK_INT(sigv4_sign(&l, &example, EXAMPLE_URL, "bytes=0-9", EXAMPLE_TIME), 0);
    CHECK_STR(
        l.authorization,
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    CHECK_STR(l.date, "x-amz-date: 20130524T000000Z");
    CHECK_STR(l.session, "");
}

TEST(whatever_is_signed_changes_the_signature)
{
    struct sigv4_key key = example;
    struct sigv4_lines l, other;
    sigv4_sign(&l, &key, EXAMPLE_URL, "bytes=0-9", EXAMPLE_TIME);
    sigv4_sign(&other, &key, EXAMPLE_URL, "bytes=0-8", EXAMPLE_TIME);
    CHECK(strcmp(l.authorization, other.authorization) != 0);
    sigv4_sign(&other, &key, EXAMPLE_URL, "bytes=0-9", EXAMPLE_TIME + 1);
    CHECK(strcmp(l.authorization, other.authorization) != 0);
    strcpy(key.session, "temporary");
    sigv4_sign(&other, &key, EXAMPLE_URL, "bytes=0-9", EXAMPLE_TIME);
    CHECK_STR(other.session, "x-amz-security-token: temporary");
    CHECK_HAS(other.authorization, "x-amz-date;x-amz-security-token");
    CHECK_INT(sigv4_sign(&l, &key, "no-url", "", 0), -1);
}

TEST(names_of_objects_are_encoded_as_s3_does)
{
    char out[64], small[5];
    CHECK_INT(sigv4_encode(out, sizeof out, "a b/c+d=e~f_g-h.i/\xc3\xa9"), 0);
    CHECK_STR(out, "a%20b/c%2Bd%3De~f_g-h.i/%C3%A9");
    CHECK_INT(sigv4_encode(small, sizeof small, "abcdef"), -1);
}

TEST(a_query_is_signed_as_aws_publishes)
{
    struct sigv4_lines l;
    struct sigv4_request q = { "GET", "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J", "", "",
                               NULL };
    CHECK_INT(sigv4_sign_request(&l, &example, &q, EXAMPLE_TIME), 0);
    CHECK_HAS(l.authorization, "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
    q.url = "https://examplebucket.s3.amazonaws.com/?lifecycle=";
    CHECK_INT(sigv4_sign_request(&l, &example, &q, EXAMPLE_TIME), 0);
    CHECK_HAS(l.authorization, "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(a_value_of_a_query_has_no_slash)
{
    char out[64];
    CHECK_INT(sigv4_encode_value(out, sizeof out, "a/b+c"), 0);
    CHECK_STR(out, "a%2Fb%2Bc");
}

TEST(md5_gives_the_sums_of_rfc_1321_whatever_the_steps)
{
    static const struct {
        const char *text, *sum, *base64;
    } known[] = {
        { "", "d41d8cd98f00b204e9800998ecf8427e", "1B2M2Y8AsgTpgAmY7PhCfg==" },
        { "abc", "900150983cd24fb0d6963f7d28e17f72", "kAFQmDzST7DWlj99KOF/cg==" },
        { "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
          "57edf4a22be3c955ac49da2e2107b67a", "V+30oivjyVWsSdouIQe2eg==" },
    };
    unsigned char sum[MD5_BYTES];
    char hex[33], base64[25];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        for (size_t step = 1; step < 90; step += 11) {
            struct md5 s;
            size_t n = strlen(known[i].text);
            md5_start(&s);
            for (size_t at = 0; at < n; at += step)
                md5_add(&s, known[i].text + at, n - at < step ? n - at : step);
            md5_end(&s, sum);
            md5_hex(sum, hex);
            md5_base64(sum, base64);
            CHECK_STR(hex, known[i].sum);
            CHECK_STR(base64, known[i].base64);
        }
}

TEST(an_answer_of_s3_is_read_element_by_element)
{
    static const char text[] = "<?xml version=\"1.0\"?><R xmlns=\"u\"><Part><PartNumber>7</PartNumber>"
                               "<ETag>&quot;a&amp;b&#39;&lt;&quot;</ETag></Part><Part></Part><Party>9</Party>"
                               "<Open>no end";
    struct xml_span all = { text, sizeof text - 1 }, one;
    char etag[20], small[4];
    CHECK_INT(xml_next(&all, "Part", &one), 1);
    CHECK_INT(xml_number(one, "PartNumber"), 7);
    CHECK_INT(xml_text(one, "ETag", etag, sizeof etag), 0); /* longer than the room before it is decoded */
    CHECK_INT(xml_next(&all, "Part", &one), 1);
    CHECK_INT(one.n, 0);
    CHECK_INT(xml_next(&all, "Part", &one), 0);
    all = (struct xml_span){ text, sizeof text - 1 };
    char room[64];
    CHECK_INT(xml_text(all, "ETag", room, sizeof room), 1);
    CHECK_STR(room, "\"a&b'<\"");
    CHECK_INT(xml_text(all, "Party", small, sizeof small), 1);
    CHECK_STR(small, "9");
    CHECK_INT(xml_text(all, "Open", room, sizeof room), 0);
    CHECK_STR(room, "");
    CHECK_INT(xml_number(all, "ETag"), -1);
}
