/* pooling.c - see pooling.h. */
#include "serve/engine/pooling.h"

#include <math.h>
#include <stdlib.h>
#include "kernels/fn.h"

static int open_row(struct pooled *p, int64_t n)
{
    if (p->sum)
        return 0;
    p->sum = calloc((size_t)n, sizeof *p->sum);
    p->row = malloc((size_t)n * sizeof(float));
    p->n = n;
    return p->sum && p->row ? 0 : -1;
}

static double element(const void *row, enum dtype dt, int64_t i)
{
    return dt == DT_BF16 ? (double)fn_from_bf16(((const uint16_t *)row)[i]) : (double)((const float *)row)[i];
}

int pooled_add(struct pooled *p, struct dev *dev, enum pooling how, const void *row, enum dtype dt, int64_t n,
               int64_t pos)
{
    if (pos < p->next)
        return 0;
    if (open_row(p, n) < 0)
        return -1;
    dev_read(dev, p->row, row, (size_t)n * dtype_size(dt));
    for (int64_t i = 0; i < n; i++)
        p->sum[i] = (how == POOLING_MEAN ? p->sum[i] : 0) + element(p->row, dt, i);
    p->next = pos + 1;
    return 0;
}

void pooled_free(struct pooled *p)
{
    free(p->sum);
    free(p->row);
}

int pooled_is_broken(const struct pooled *p)
{
    for (int64_t i = 0; i < p->n; i++)
        if (!isfinite(p->sum[i]))
            return 1;
    return 0;
}

void pooled_vector(const struct pooled *p, int64_t rows, int64_t n, int normalize, float *out)
{
    double squares = 0;

    for (int64_t i = 0; i < n; i++) {
        double x = p->sum[i] / (double)rows;
        squares += x * x;
    }
    double length = normalize && squares > 0 ? sqrt(squares) : 1;
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(p->sum[i] / (double)rows / length);
}
