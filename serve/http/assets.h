/* assets.h - page.html and openapi.json, as parts of the program. */
#ifndef SHARDLINE_SERVE_HTTP_ASSETS_H
#define SHARDLINE_SERVE_HTTP_ASSETS_H

#include <stddef.h>

struct asset {
    const char *p; /* constant, lives as long as the program */
    size_t n;
};
/* The page at /, and the description of the API. Any thread. */
struct asset asset_page(void);
struct asset asset_openapi(void);

#endif
