/* quant_fuzz.c - any config.json and list of tensors as quantised weights (format/quant). The config, a byte
 * 0, then lines "NAME DTYPE A,B,C". What is listed must map each part of a weight into stored tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/quant.h"
#include "tests/fuzz/fuzz.h"

#define MOST 64

static int64_t shape_of(char *text, struct ckpt_tensor *t)
{
    int64_t count = 1;
    char *save = NULL;
    for (char *d = strtok_r(text, ",", &save); d && t->n_dims < BOX_DIMS; d = strtok_r(NULL, ",", &save)) {
        t->shape[t->n_dims] = strtoll(d, NULL, 10);
        if (t->shape[t->n_dims] < 0 || t->shape[t->n_dims] >= (int64_t)1 << 48)
            return -1;
        count *= t->shape[t->n_dims++] < 1 << 14 ? 1 : 2;
    }
    return t->n_dims ? count : -1;
}

/* The boxes of three parts of a weight, along each dim: inside of the stored tensors, and together all. */
static void check_weight(const struct quant_weight *w, const struct ckpt_tensor *const *t)
{
    for (int i = 0; i < w->n_stored; i++) {
        const struct ckpt_tensor *s = t[w->stored[i].tensor];
        for (int d = 0; d < w->n_dims; d++) {
            int to = w->stored[i].axis[d].dim;
            int64_t end = 0;
            for (int k = 0; k < 3; k++) {
                struct box b = box_whole(w->n_dims, w->shape), got;
                b.start[d] = w->shape[d] * k / 3;
                b.extent[d] = w->shape[d] * (k + 1) / 3 - b.start[d];
                got = quant_box(w, &w->stored[i], s->n_dims, s->shape, &b);
                for (int x = 0; x < s->n_dims; x++)
                    if (got.start[x] < 0 || got.extent[x] < 0 || got.start[x] + got.extent[x] > s->shape[x])
                        abort();
                if (to >= 0 && b.extent[d] && got.start[to] > end)
                    abort();
                end = to >= 0 && b.extent[d] ? got.start[to] + got.extent[to] : end;
            }
            if (to >= 0 && end != s->shape[to])
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1), *lines, *save = NULL;
    struct ckpt_tensor t[MOST];
    const struct ckpt_tensor *p[MOST];
    struct quant_list q;
    struct err e;
    int count = 0;
    memcpy(text, data, n);
    text[n] = 0;
    lines = text + strlen(text) + (strlen(text) < n);

    for (char *line = strtok_r(lines, "\n", &save); line && count < MOST;
         line = strtok_r(NULL, "\n", &save)) {
        char *dtype = strchr(line, ' '), *dims = dtype ? strchr(dtype + 1, ' ') : NULL;
        int known;
        if (!dims)
            continue;
        *dtype++ = *dims++ = 0;
        t[count] = (struct ckpt_tensor){ .name = line };
        if ((known = stored_dtype_find(dtype)) < 0 || shape_of(dims, &t[count]) < 0)
            continue;
        t[count].dtype = (enum stored_dtype)known;
        p[count] = &t[count];
        count++;
    }

    const struct quant_texts texts = { text, NULL, NULL };
    if (quant_open(&q, &texts, p, count, &e) >= 0)
        for (int i = 0; i < q.n; i++)
            check_weight(&q.weight[i], p);
    quant_close(&q);

    json_t *config = json_loads(text, 0, NULL);
    quant_names_follow(config, data && n && data[0] & 1, &e);
    json_decref(config);
    free(text);
    return 0;
}
