/* small_files.c - see small_files.h. */
#include "format/hf/small_files.h"

#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/fmt.h"
#include "format/peft.h"
#include "format/quant.h"
#include "format/quant_view.h"

const char *const small_file_names[SMALL_FILES] = { FMT_CUTS,        QUANT_GPTQ_FILE, QUANT_MODELOPT_FILE,
                                                    QUANT_KEPT_FILE, PEFT_CONFIG,     PEFT_MERGED };

static int write_one(const char *dir, const char *name, const void *data, size_t n, struct err *e)
{
    char *path = io_join(dir, name);
    int rc = path ? fmt_file_name_check(name, "files to carry along", e)
                  : err_set(e, ERR_MEMORY, "no memory for the path of %s", name);
    if (rc >= 0)
        rc = io_write_file(path, data, n, e);
    free(path);
    return rc < 0 ? rc : 0;
}

int small_files_write(const char *dir, const struct ckpt_meta *meta, struct err *e)
{
    int rc = 0;
    if (meta->config_json)
        rc = write_one(dir, FMT_CONFIG, meta->config_json, strlen(meta->config_json), e);
    for (int i = 0; i < meta->n_extra && rc >= 0; i++)
        rc = write_one(dir, meta->extra_name[i], meta->extra_data[i], meta->extra_bytes[i], e);
    return rc;
}
