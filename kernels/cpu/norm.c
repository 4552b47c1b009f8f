/* RMSNorm and LayerNorm. One body serves both: an RMSNorm is a LayerNorm whose mean is taken to be 0. Every function takes `centred`
 * as a constant, so each norm gets code of its own. */
#include "kernels/cpu/isa.h"

typedef struct norm_forward {
    float *y, *mean, *rstd, *sum;
    const float *x, *weight, *bias, *add;
    int64_t hidden;
    float eps;
} norm_forward;

LOOM_INLINE void add_step(float *sum, const float *x, const float *add, int64_t i, int n)
{
    vf_put(sum + i, vf_get(x + i, n) + vf_get(add + i, n), n);
}

/* Rows are summed in four running sums at once: a single one would wait for its own last addition. */
LOOM_INLINE void total_step(vf *total, const float *x, int64_t i, int n)
{
    *total += vf_get(x + i, n);
}

LOOM_INLINE float row_total(const float *x, int64_t count)
{
    vf total[4] = {{0}};
    int64_t i = 0;

    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int k = 0; k < 4; k++)
            total_step(&total[k], x, i + k * LANES, LANES);
    EACH_LANES(i, count, total_step, &total[0], x);
    return vf_sum((total[0] + total[1]) + (total[2] + total[3]));
}

LOOM_INLINE void square_step(vf *total, const float *x, vf mean, int64_t i, int n)
{
    vf d = vf_get(x + i, n) - mean;

    if (n < LANES)
        d = vf_select(vi_ramp() < vi_set(n), d, vf_set(0)); /* lanes beyond the row must not add mean^2 */
    *total = vf_fma(d, d, *total);
}

LOOM_INLINE float row_squares(const float *x, float mean, int64_t count)
{
    vf total[4] = {{0}};
    int64_t i = 0;

    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int k = 0; k < 4; k++)
            square_step(&total[k], x, vf_set(mean), i + k * LANES, LANES);
    EACH_LANES(i, count, square_step, &total[0], x, vf_set(mean));
    return vf_sum((total[0] + total[1]) + (total[2] + total[3]));
}

LOOM_INLINE void normalise_step(const norm_forward *f, const float *x, float *y, vf mean, vf rstd, int64_t i, int n)
{
    vf normal = (vf_get(x + i, n) - mean) * rstd, weight = vf_get(f->weight + i, n);

    vf_put(y + i, f->bias ? vf_fma(normal, weight, vf_get(f->bias + i, n)) : normal * weight, n);
}

LOOM_INLINE void forward_rows(const norm_forward *f, int64_t from, int64_t to, bool centred)
{
    const norm_forward local = *f;
    int64_t hidden = f->hidden;

    for (int64_t t = from; t < to; t++) {
        const float *x = f->x + t * hidden;

        if (f->add) {
            EACH_LANES(0, hidden, add_step, f->sum + t * hidden, x, f->add + t * hidden);
            x = f->sum + t * hidden;
        }
        float mean = centred ? row_total(x, hidden) / (float)hidden : 0;
        float rstd = 1.0f / sqrtf(row_squares(x, mean, hidden) / (float)hidden + f->eps);

        EACH_LANES(0, hidden, normalise_step, &local, x, f->y + t * hidden, vf_set(mean), vf_set(rstd));
        if (f->mean)
            f->mean[t] = mean;
        if (f->rstd)
            f->rstd[t] = rstd;
    }
}

static void rmsnorm_rows(const void *context, int64_t from, int64_t to)
{
    forward_rows(context, from, to, false);
}

static void layernorm_rows(const void *context, int64_t from, int64_t to)
{
    forward_rows(context, from, to, true);
}

loom_status ISA(rmsnorm)(loom_cpu *cpu, const loom_rmsnorm_args *a)
{
    const norm_forward f = {.y = a->y_TD,
                            .rstd = a->rstd_T,
                            .sum = a->sum_TD,
                            .x = a->x_TD,
                            .weight = a->weight_D,
                            .add = a->add_TD,
                            .hidden = a->hidden,
                            .eps = a->eps};

    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->hidden), rmsnorm_rows, &f);
    return LOOM_OK;
}

loom_status ISA(layernorm)(loom_cpu *cpu, const loom_layernorm_args *a)
{
    const norm_forward f = {.y = a->y_TD,
                            .mean = a->mean_T,
                            .rstd = a->rstd_T,
                            .sum = a->sum_TD,
                            .x = a->x_TD,
                            .weight = a->weight_D,
                            .bias = a->bias_D,
                            .add = a->add_TD,
                            .hidden = a->hidden,
                            .eps = a->eps};

    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->hidden), layernorm_rows, &f);
    return LOOM_OK;
}

/* --- backward: with n = (x - mean) rstd and g = dy weight,
 *   dx = rstd (g - mean(g) - n mean(g n)), without mean(g) for RMSNorm;  dweight += sum dy n;  dbias += sum dy.
 * Parameter gradients are summed over blocks of BLOCK_ROWS tokens, and then the blocks in order: threads do not change the bits. */
enum { BLOCK_ROWS = 64 };

typedef struct norm_backward {
    float *dx, *dweight, *dbias; /* dweight and dbias: [blocks, hidden], or NULL */
    const float *dy, *x, *weight, *mean, *rstd;
    int64_t tokens, hidden;
    bool accumulate;
} norm_backward;

typedef struct norm_row {
    float *dx, *dweight, *dbias;
    const float *dy, *x, *weight;
} norm_row;

LOOM_INLINE void parameter_step(const norm_row *r, vf mean, vf rstd, vf *sum_g, vf *sum_gn, int64_t i, int n)
{
    vf dy = vf_get(r->dy + i, n), normal = (vf_get(r->x + i, n) - mean) * rstd, g = dy * vf_get(r->weight + i, n);

    *sum_g += g; /* lanes beyond the row have dy = 0 */
    *sum_gn = vf_fma(g, normal, *sum_gn);
    if (r->dweight)
        vf_put(r->dweight + i, vf_fma(dy, normal, vf_get(r->dweight + i, n)), n);
    if (r->dbias)
        vf_put(r->dbias + i, vf_get(r->dbias + i, n) + dy, n);
}

LOOM_INLINE void input_step(const norm_row *r, vf mean, vf rstd, vf mean_g, vf mean_gn, bool accumulate, int64_t i, int n)
{
    vf normal = (vf_get(r->x + i, n) - mean) * rstd, g = vf_get(r->dy + i, n) * vf_get(r->weight + i, n);
    vf dx = rstd * (g - mean_g - normal * mean_gn);

    vf_put(r->dx + i, accumulate ? vf_get(r->dx + i, n) + dx : dx, n);
}

LOOM_INLINE void backward_row(const norm_backward *b, norm_row row, int64_t t, bool centred)
{
    vf mean = vf_set(centred ? b->mean[t] : 0), rstd = vf_set(b->rstd[t]), sum_g = {0}, sum_gn = {0};

    EACH_LANES(0, b->hidden, parameter_step, &row, mean, rstd, &sum_g, &sum_gn);
    if (!row.dx)
        return;
    vf mean_g = vf_set(centred ? vf_sum(sum_g) / (float)b->hidden : 0);
    vf mean_gn = vf_set(vf_sum(sum_gn) / (float)b->hidden);

    if (b->accumulate)
        EACH_LANES(0, b->hidden, input_step, &row, mean, rstd, mean_g, mean_gn, true);
    else
        EACH_LANES(0, b->hidden, input_step, &row, mean, rstd, mean_g, mean_gn, false);
}

LOOM_INLINE void backward_blocks(const norm_backward *b, int64_t from, int64_t to, bool centred)
{
    int64_t hidden = b->hidden;

    for (int64_t block = from; block < to; block++) {
        int64_t first = block * BLOCK_ROWS, last = first + BLOCK_ROWS < b->tokens ? first + BLOCK_ROWS : b->tokens;
        norm_row row = {
            .dweight = b->dweight ? b->dweight + block * hidden : NULL,
            .dbias = b->dbias ? b->dbias + block * hidden : NULL,
            .weight = b->weight,
        };
        if (row.dweight)
            memset(row.dweight, 0, (size_t)hidden * sizeof(float));
        if (row.dbias)
            memset(row.dbias, 0, (size_t)hidden * sizeof(float));
        for (int64_t t = first; t < last; t++) {
            row.dx = b->dx ? b->dx + t * hidden : NULL;
            row.dy = b->dy + t * hidden;
            row.x = b->x + t * hidden;
            backward_row(b, row, t, centred);
        }
    }
}

static void rmsnorm_backward_blocks(const void *context, int64_t from, int64_t to)
{
    backward_blocks(context, from, to, false);
}

static void layernorm_backward_blocks(const void *context, int64_t from, int64_t to)
{
    backward_blocks(context, from, to, true);
}

static void add_blocks(float *total, const float *partial, int64_t blocks, int64_t hidden)
{
    for (int64_t block = 0; block < blocks; block++)
        EACH_LANES(0, hidden, add_step, total, total, partial + block * hidden);
}

static loom_status norm_backward_run(loom_cpu *cpu, norm_backward b, loom_span_fn *rows)
{
    int64_t blocks = (b.tokens + BLOCK_ROWS - 1) / BLOCK_ROWS, size = blocks * b.hidden;
    float *dweight = b.dweight, *dbias = b.dbias;
    void *workspace;
    loom_status status = loom_cpu_workspace(cpu, (size_t)size * 2 * sizeof(float), &workspace);

    if (status < 0)
        return status;
    b.dweight = dweight ? workspace : NULL;
    b.dbias = dbias ? (float *)workspace + size : NULL;
    loom_parallel_spans(cpu->threads, blocks, 1, rows, &b);
    if (dweight)
        add_blocks(dweight, b.dweight, blocks, b.hidden);
    if (dbias)
        add_blocks(dbias, b.dbias, blocks, b.hidden);
    return LOOM_OK;
}

loom_status ISA(rmsnorm_backward)(loom_cpu *cpu, const loom_rmsnorm_backward_args *a)
{
    const norm_backward b = {.dx = a->dx_TD,
                             .dweight = a->dweight_D,
                             .dy = a->dy_TD,
                             .x = a->x_TD,
                             .weight = a->weight_D,
                             .rstd = a->rstd_T,
                             .tokens = a->tokens,
                             .hidden = a->hidden,
                             .accumulate = a->accumulate};

    return norm_backward_run(cpu, b, rmsnorm_backward_blocks);
}

loom_status ISA(layernorm_backward)(loom_cpu *cpu, const loom_layernorm_backward_args *a)
{
    const norm_backward b = {.dx = a->dx_TD,
                             .dweight = a->dweight_D,
                             .dbias = a->dbias_D,
                             .dy = a->dy_TD,
                             .x = a->x_TD,
                             .weight = a->weight_D,
                             .mean = a->mean_T,
                             .rstd = a->rstd_T,
                             .tokens = a->tokens,
                             .hidden = a->hidden,
                             .accumulate = a->accumulate};

    return norm_backward_run(cpu, b, layernorm_backward_blocks);
}
