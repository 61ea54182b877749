/* assets.c - see assets.h. The assembler copies the files' bytes (this C has no #embed); the Makefile lists
 * them as prerequisites. */
#include "serve/http/assets.h"

#define ASSET(name, path) \
    __asm__(".section .rodata\n.balign 16\nasset_" #name "_begin:\n.incbin \"" path "\"\nasset_" #name \
            "_end:\n.byte 0\n.previous\n"); \
    extern const char asset_##name##_begin[], asset_##name##_end[]; \
    struct asset asset_##name(void) \
    { \
        return (struct asset){ asset_##name##_begin, (size_t)(asset_##name##_end - asset_##name##_begin) }; \
    }

ASSET(page, "serve/http/page.html")
ASSET(openapi, "serve/http/openapi.json")
