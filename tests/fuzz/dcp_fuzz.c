/* dcp_fuzz.c - a PyTorch DCP folder: .metadata and the files it points into (format/dcp/dcp.c,
 * dcp_meta.c). */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = { ".metadata", "__0_0.distcp", "__1_0.distcp", "config.json",
                                         ".metadata.tmp" };
    fuzz_write_parts(names, sizeof names / sizeof *names, data, n);
    fuzz_open_ckpt(fuzz_dir());
    return 0;
}
