/* cluster_presets.c - clusters that need no file. Peaks are those of the data sheets, dense; bandwidths are
 * what large transfers reach. Failures: 419 unplanned in 54 days on 16,384 H100 (Grattafiori et al. 2024,
 * section 3.3.4). `efficiency` is calibrated: docs/simulator.md says on which runs. */
#include <string.h>
#include "train/simulate/cluster.h"

#define JOB_LINES \
    "[storage]\nhost_bytes_per_s = 25e9\ndisk_bytes_per_s = 3e9\nstore_bytes_per_s = 100e9\n" \
    "[job]\nfailures_a_day = 0.47\nrestart_s = 600\njitter = 0.01\n"

static const struct {
    const char *name, *text;
} presets[] = {
    { "a100", "name = \"a100\"\n"
              "[device]\nfp32_flops = 19.5e12\nbf16_flops = 312e12\nefficiency = 0.781\nunits = 108\n"
              "attention = 0.60\nattention_backward = 0.52\n"
              "hbm_bytes_per_s = 1.65e12\nhbm_bytes = 80e9\nkernel_s = 3e-6\n"
              "watts = 700\nidle_watts = 200\nprice_per_hour = 1.5\n"
              "[[network]]\nranks = 8\nalpha_s = 4e-6\nbytes_per_s = 230e9\n"
              "[[network]]\nranks = 0\nalpha_s = 10e-6\nbytes_per_s = 22e9\n" JOB_LINES },
    { "h100", "name = \"h100\"\n"
              "[device]\nfp32_flops = 67e12\nbf16_flops = 989e12\nfp8_flops = 1979e12\nefficiency = 0.593\n"
              "units = 132\nattention = 0.60\nattention_backward = 0.50\n"
              "hbm_bytes_per_s = 2.8e12\nhbm_bytes = 80e9\nkernel_s = 3e-6\n"
              "watts = 1300\nidle_watts = 350\nprice_per_hour = 2.5\n"
              "[[network]]\nranks = 8\nalpha_s = 4e-6\nbytes_per_s = 370e9\n"
              "[[network]]\nranks = 0\nalpha_s = 10e-6\nbytes_per_s = 44e9\n" JOB_LINES },
    { "h800", "name = \"h800\"\n"
              "[device]\nfp32_flops = 67e12\nbf16_flops = 989e12\nfp8_flops = 1979e12\nefficiency = 0.593\n"
              "units = 132\nattention = 0.60\nattention_backward = 0.50\n"
              "hbm_bytes_per_s = 2.8e12\nhbm_bytes = 80e9\nkernel_s = 3e-6\n"
              "watts = 1300\nidle_watts = 350\nprice_per_hour = 2.0\n"
              "[[network]]\nranks = 8\nalpha_s = 4e-6\nbytes_per_s = 160e9\n"
              "[[network]]\nranks = 0\nalpha_s = 10e-6\nbytes_per_s = 44e9\n" JOB_LINES },
    { "b200", "name = \"b200\"\n"
              "[device]\nfp32_flops = 80e12\nbf16_flops = 2250e12\nfp8_flops = 4500e12\nefficiency = 0.72\n"
              "units = 148\nattention = 0.55\nattention_backward = 0.45\n"
              "hbm_bytes_per_s = 6.8e12\nhbm_bytes = 180e9\nkernel_s = 3e-6\n"
              "watts = 1800\nidle_watts = 500\nprice_per_hour = 4.5\n"
              "[[network]]\nranks = 8\nalpha_s = 4e-6\nbytes_per_s = 740e9\n"
              "[[network]]\nranks = 0\nalpha_s = 10e-6\nbytes_per_s = 44e9\n" JOB_LINES },
};

const char *cluster_preset(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (!strcmp(presets[i].name, name))
            return presets[i].text;
    return NULL;
}
