/* Matrix products and memory. */
#include "probe/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHAPES = 512, COPY_BYTES = 64 << 20 };
static const double most_flop = 1.7e10; /* larger products add nothing that the law does not say */
static const double small_flop = 2e8;

typedef struct shape {
    int64_t m, n, k;
    bool weight; /* the gradient of a weight, which is added to what is there */
} shape;

typedef struct shape_list {
    int count, wanted; /* the first `wanted` are a model's, and are timed in any case */
    shape at[MOST_SHAPES];
} shape_list;

/* --- memory ------------------------------------------------------------------------------------------------------------------- */

static loom_status run_copy(loom_prober *p, void *context)
{
    const loom_copy_args *arguments = context;
    loom_status status = p->kernels->copy(p->kernels, arguments, p->stream);
    return status < 0 ? status : loom_stream_wait(p->stream);
}

loom_status loom_probe_memory(loom_prober *p, double budget_s)
{
    loom_chip *chip = &p->topology->chips[0];
    void *from = NULL, *to = NULL;
    double seconds;
    loom_status status = loom_alloc(p->device, COPY_BYTES, LOOM_MEM_OTHER, &from);

    if (status == LOOM_OK)
        status = loom_alloc(p->device, COPY_BYTES, LOOM_MEM_OTHER, &to);
    if (status == LOOM_OK) {
        loom_copy_args arguments = {.y = to, .x = from, .rows = COPY_BYTES / 4096, .cols = 4096 / sizeof(float)};
        status = loom_probe_time(p, p->world, run_copy, &arguments, budget_s, &seconds);
    }
    if (status == LOOM_OK) {
        chip->memory_bandwidth = (loom_figure){2.0 * COPY_BYTES / seconds, LOOM_ORIGIN_MEASURED};
        chip->memory_reach = (loom_figure){1, LOOM_ORIGIN_MEASURED}; /* what was measured is what is reached */
    }
    loom_free(p->device, from);
    loom_free(p->device, to);
    return status;
}

/* --- shapes -------------------------------------------------------------------------------------------------------------------- */

static double flop_of(int64_t m, int64_t n, int64_t k)
{
    return 2.0 * (double)m * (double)n * (double)k;
}

static void add_shape(shape_list *list, int64_t m, int64_t n, int64_t k, bool weight)
{
    if (m < 1 || n < 1 || k < 1 || list->count == MOST_SHAPES || flop_of(m, n, k) > most_flop)
        return;
    for (int i = 0; i < list->count; i++)
        if (list->at[i].m == m && list->at[i].n == n && list->at[i].k == k)
            return;
    list->at[list->count++] = (shape){m, n, k, weight};
}

static int by_flop(const void *left, const void *right)
{
    const shape *a = left, *b = right;
    double x = flop_of(a->m, a->n, a->k), y = flop_of(b->m, b->n, b->k);
    return (x > y) - (x < y);
}

/* Small ones first: when the budget ends, what is missing is large, where the law holds best. */
static void add_grid(shape_list *list)
{
    for (int64_t m = 64; m <= 4096; m *= 4)
        for (int64_t n = 64; n <= 4096; n *= 4)
            for (int64_t k = 64; k <= 4096; k *= 4)
                add_shape(list, m, n, k, false);
    qsort(list->at + list->wanted, (size_t)(list->count - list->wanted), sizeof *list->at, by_flop);
}

/* The three products of a linear layer of `in` to `out` on `tokens`: forward, input gradient, weight gradient. */
static void add_linear(shape_list *list, int64_t tokens, int64_t in, int64_t out)
{
    add_shape(list, tokens, out, in, false);
    add_shape(list, tokens, in, out, false);
    add_shape(list, out, in, tokens, true);
}

/* The linear layers of a model on `tokens`, whole and as the ranks of tensor parallelism hold them. */
static void add_layers(shape_list *list, const loom_model *model, int64_t tokens, int ranks)
{
    for (int tp = 1; tp <= ranks; tp++) {
        if (ranks % tp || model->heads % tp)
            continue;
        int64_t kv = model->kv_heads > tp ? model->kv_heads / tp : 1;
        add_linear(list, tokens, model->hidden, (model->heads / tp + 2 * kv) * model->head_dim);
        add_linear(list, tokens, model->heads / tp * model->head_dim, model->hidden);
        add_linear(list, tokens, model->hidden, (loom_model_mlp_matrices(model) - 1) * model->ffn / tp);
        add_linear(list, tokens, model->ffn / tp, model->hidden);
        add_linear(list, tokens, model->hidden, model->vocab / tp);
    }
}

/* Of the micro-batch that the file names, and of others that a plan may choose: more or fewer sequences, or parts of them. */
static void add_model(shape_list *list, const loom_model *model, const loom_train_shape *train, int ranks)
{
    int64_t seq = train->seq > 0 ? train->seq : model->seq, tokens = seq * (train->micro_batch > 0 ? train->micro_batch : 1);

    add_layers(list, model, tokens, ranks);
    add_layers(list, model, tokens / 4, ranks);
    add_layers(list, model, tokens * 4, ranks);
    list->wanted = list->count;
}

/* --- products ------------------------------------------------------------------------------------------------------------------- */

loom_status loom_probe_gemm(loom_prober *p, void *context)
{
    const loom_gemm_args *arguments = context;
    loom_status status = p->kernels->gemm(p->kernels, arguments, p->stream);
    return status < 0 ? status : loom_stream_wait(p->stream);
}

/* Whether five runs, at the rate of the largest shape so far, would take more than several shares of the budget. Small ones never do. */
static bool too_long(const loom_prober *p, const shape *s, double budget_s)
{
    double rate = 0, flop = 0, wanted = flop_of(s->m, s->n, s->k);

    for (int i = 0; i < p->topology->n_gemms; i++) {
        const loom_gemm_point *g = &p->topology->gemms[i];
        double its = flop_of(g->m, g->n, g->k);
        if (its >= flop) {
            flop = its;
            rate = its / g->seconds;
        }
    }
    return rate > 0 && wanted > small_flop && 5 * wanted / rate > 4 * budget_s;
}

static loom_status time_shape(loom_prober *p, const shape *s, float *a, float *b, float *c, double budget_s)
{
    loom_gemm_args arguments = {.c_MN = c, .a_MK = a, .b_KN = b, .m = s->m, .n = s->n, .k = s->k, .transpose_a = s->weight, .transpose_b = !s->weight,
                                .accumulate = s->weight};
    loom_gemm_point point = {.chip = 0, .math = LOOM_MATH_F32, .m = s->m, .n = s->n, .k = s->k};
    loom_status status = loom_probe_time(p, p->world, loom_probe_gemm, &arguments, budget_s, &point.seconds);

    return status < 0 ? status : loom_topology_add_gemms(p->topology, &point, 1);
}

static size_t largest(const shape_list *list, int which)
{
    int64_t most = 1;

    for (int i = 0; i < list->count; i++) {
        const shape *s = &list->at[i];
        int64_t elements = which == 0 ? s->m * s->k : which == 1 ? s->k * s->n : s->m * s->n;
        most = elements > most ? elements : most;
    }
    return (size_t)most * sizeof(float);
}

loom_status loom_probe_products(loom_prober *p, const loom_model *model, const loom_train_shape *train, double budget_s)
{
    shape_list *list = calloc(1, sizeof *list);
    void *matrix[3] = {NULL, NULL, NULL};
    loom_status status = list ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for a list of shapes");

    if (status == LOOM_OK) {
        if (model)
            add_model(list, model, train, loom_comm_size(p->world));
        add_grid(list);
    }
    for (int i = 0; i < 3 && status == LOOM_OK; i++) /* zeroed: no shape meets a NaN, and products are as fast as with any numbers */
        status = loom_alloc(p->device, largest(list, i), LOOM_MEM_OTHER, &matrix[i]);
    for (int i = 0; status == LOOM_OK && i < list->count; i++)
        if (i < list->wanted || !too_long(p, &list->at[i], budget_s / list->count)) /* times are agreed on, so all ranks decide alike */
            status = time_shape(p, &list->at[i], matrix[0], matrix[1], matrix[2], budget_s / list->count);
    for (int i = 0; i < 3; i++)
        loom_free(p->device, matrix[i]);
    free(list);
    return status;
}
