/* s3_fuzz.c - answers of an S3 server (store/s3/s3_xml.c): elements, their text and numbers. */
#include <stdlib.h>
#include <string.h>
#include "store/s3/s3_xml.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = { "Contents", "Upload", "Part", "Error" };
    char small[8], text[1100];
    char *copy = malloc(n + 1); /* of the exact size, so that a byte behind it is found */
    if (!copy)
        abort();
    if (n)
        memcpy(copy, data, n);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct xml_span all = { copy, n }, one;
        while (xml_next(&all, names[i], &one)) {
            xml_text(one, "Key", small, sizeof small);
            if (xml_text(one, "ETag", text, sizeof text) && strlen(text) >= sizeof text)
                abort();
            if (xml_number(one, "Size") < -1)
                abort();
        }
    }
    free(copy);
    return 0;
}
