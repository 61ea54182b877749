/* report_serve.c - see report_serve.h. */
#include "reshard/serve/report_serve.h"

#include "base/log.h"

struct kind_count {
    int n;
    int64_t bytes;
};

static void count_kinds(const struct ckpt *c, struct kind_count out[CKPT_PANEL_KINDS])
{
    for (int i = 0; i < ckpt_n_packs(c); i++) {
        const struct ckpt_pack *k = ckpt_pack(c, i);
        out[k->kind].n++;
        out[k->kind].bytes += k->bytes;
    }
}

void report_packs(const struct ckpt *c, FILE *out)
{
    struct kind_count kind[CKPT_PANEL_KINDS] = { 0 };
    const char *between = "";
    char size[32];
    if (!ckpt_n_packs(c))
        return;
    count_kinds(c, kind);
    fprintf(out, "%-12s ", "packs");
    for (int i = 0; i < CKPT_PANEL_KINDS; i++) {
        if (!kind[i].n)
            continue;
        log_bytes(size, (double)kind[i].bytes);
        fprintf(out, "%s%d %s (%s)", between, kind[i].n, ckpt_panel_kind_name((enum ckpt_panel_kind)i), size);
        between = ", ";
    }
    fputs(": pserve maps them\n", out);
}

void report_packs_json(const struct ckpt *c, json_t *root)
{
    struct kind_count kind[CKPT_PANEL_KINDS] = { 0 };
    json_t *packs = json_object();
    count_kinds(c, kind);
    for (int i = 0; i < CKPT_PANEL_KINDS; i++)
        if (kind[i].n)
            json_object_set_new(packs, ckpt_panel_kind_name((enum ckpt_panel_kind)i),
                                json_pack("{s:i, s:I}", "packs", kind[i].n, "bytes",
                                          (json_int_t)kind[i].bytes));
    if (ckpt_n_packs(c))
        json_object_set(root, "packs", packs);
    json_decref(packs);
}
