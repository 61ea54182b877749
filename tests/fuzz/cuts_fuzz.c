/* cuts_fuzz.c - any bytes as a cut table, and as a config.json for the tables that ship (reshard/cuts.c,
 * cuts/): what they cut of tensors of any names and shapes. An input is a config, a table and lines
 * "NAME 4,6", with a byte 0 behind each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/params.h"
#include "reshard/cuts.h"
#include "reshard/cuts/cut_template.h"
#include "tests/fuzz/fuzz.h"

#define TENSORS 48
#define PARTS 3

static struct ckpt_tensor tensor[TENSORS];
static const struct ckpt_tensor *list[TENSORS];

/* Tensors with dims below 64, of which one name may stand twice. */
static int read_tensors(char *text)
{
    char *save = NULL;
    int n = 0;
    for (char *line = strtok_r(text, "\n", &save); line && n < TENSORS; line = strtok_r(NULL, "\n", &save)) {
        char *size = strchr(line, ' ');
        struct ckpt_tensor t = { .name = line, .dtype = STORED_BF16 };
        if (size)
            *size++ = 0;
        while (size && *size && t.n_dims < 4) {
            t.shape[t.n_dims++] = strtol(size, &size, 10) & 63;
            size += *size != 0;
        }
        if (!t.n_dims)
            t.shape[t.n_dims++] = 1;
        for (int d = t.n_dims; d < BOX_DIMS; d++)
            t.shape[d] = 1;
        tensor[n] = t;
        list[n] = &tensor[n];
        n++;
    }
    return n;
}

/* Every rank's pieces lie inside of their tensors. */
static void cut_ranks(const struct cut_model *m, const struct layout *l)
{
    struct param_piece *out = calloc((size_t)m->table.n + 1, sizeof *out);
    for (int rank = 0; rank < layout_ranks(l); rank++) {
        struct params_local local;
        struct err e;
        if (params_local_open(&local, &m->table, l, layout_at(l, rank), &e) < 0)
            continue;
        int n = params_pieces(&local, layout_at(l, rank).dp, l->zero == 3, out);
        for (int i = 0; i < n; i++) {
            const struct param *p = &m->table.p[local.part[out[i].part].param];
            for (int d = 0; d < out[i].box.n_dims; d++)
                if (out[i].box.start[d] < 0 || out[i].box.extent[d] < 0 ||
                    out[i].box.start[d] + out[i].box.extent[d] > p->shape[d])
                    abort();
        }
        params_local_close(&local);
    }
    free(out);
}

static void cut(const char *text, size_t bytes, int n)
{
    static const struct layout layouts[] = {
        { 2, 1, 1, 1, 1, 0 }, { 3, 2, 1, 2, 1, 3 }, { 2, 1, 1, 2, 4, 3 }, { 8, 1, 1, 1, 8, 0 }
    };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct cut_model m;
        struct cuts c;
        struct err e;
        if (cuts_parse(&c, text, bytes, "cuts.txt", &e) >= 0 &&
            cut_model_open(&m, &c, list, n, &layouts[i], &e) >= 0) {
            cut_ranks(&m, &layouts[i]);
            cut_model_close(&m);
        }
        cuts_free(&c);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *part[PARTS];
    size_t bytes[PARTS];
    for (int i = 0; i < PARTS; i++) {
        const uint8_t *end = n ? memchr(data, 0, n) : NULL;
        bytes[i] = end ? (size_t)(end - data) : n;
        part[i] = calloc(bytes[i] + 1, 1);
        memcpy(part[i], data, bytes[i]);
        data += bytes[i] + (end != NULL);
        n -= bytes[i] + (end != NULL);
    }

    struct cut_query q = { .config = part[0], .what = "config.json", .tensor = list };
    struct err e;
    char *text = NULL;
    q.n = read_tensors(part[2]);
    cut(part[1], bytes[1], q.n);
    if (cut_template(&q, &text, &e) > 0)
        cut(text, strlen(text), q.n);
    free(text);
    for (int i = 0; i < PARTS; i++)
        free(part[i]);
    return 0;
}
