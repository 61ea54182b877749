/* op_trace.c - what the trace keeps of an op (KERNEL in kernels.h). */
#include "base/trace.h"

#include "kernels/kernels.h"

int64_t kernel_trace_begin(struct dev *d, const char *name)
{
    trace_label(d->trace, name);
    return trace_now(d->trace);
}

void kernel_trace_end(struct dev *d, const char *name, int64_t begin_ns, const struct mat m[6],
                      const int64_t n[6])
{
    struct trace_args a = { 0 };
    int i = 0;
    while (i < 6 && !m[i].p)
        i++;
    if (i < 6) {
        a.shape[0] = m[i].rows;
        a.shape[1] = m[i].cols;
        a.shape[2] = i < 5 && m[i + 1].p ? m[i + 1].cols : 0;
    }
    /* the last of several: a stride comes before the count */
    for (int k = 0; i == 6 && k < 6; k++)
        a.shape[0] = n[k] ? n[k] : a.shape[0];
    trace_span(d->trace, TRACE_KERNEL, name, NULL, begin_ns, a);
    trace_label(d->trace, NULL);
}
