/* assets.h - the page and the API's description, as they lie in serve/: part of the program. */
#ifndef SHARDLINE_SERVE_HTTP_ASSETS_H
#define SHARDLINE_SERVE_HTTP_ASSETS_H

#include <stddef.h>

struct asset {
    const char *p;
    size_t n;
};
struct asset asset_page(void);
struct asset asset_openapi(void);

#endif
