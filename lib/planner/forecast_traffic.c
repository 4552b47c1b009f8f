/* Bytes that a rank hands to others in one step, call by call as the engine makes them (docs/gpt_3d.md has the formulas). */
#include "planner/forecast.h"

typedef uint64_t group_bytes[LOOM_CALL_KINDS];

static uint64_t bytes_of(int64_t elements)
{
    return 4 * (uint64_t)elements;
}

/* A pass of one micro-batch through the blocks and ends of this stage. */
typedef struct passes {
    int64_t forward;  /* of each block in a step: with full recompute twice the micro-batches */
    int64_t backward; /* the micro-batches */
} passes;

static passes passes_of(const loom_rank_view *v)
{
    int64_t m = v->micro_batches;

    return (passes){v->layout->recompute == LOOM_RECOMPUTE_FULL ? 2 * m : m, m};
}

/* --- tp --------------------------------------------------------------------------------------------------------------------------- */

/* Into a region (or, in backward, out of one): with sequence parallelism the rows of all are gathered. */
static void gather(const loom_rank_view *v, int64_t times, group_bytes to)
{
    const loom_rank_shape *s = &v->shape;

    if (s->sequence_parallel)
        to[LOOM_CALL_ALL_GATHER] += (uint64_t)times * bytes_of(s->local_tokens * s->hidden) * (uint64_t)(v->layout->tp - 1);
}

/* Out of a region (or back into one): sums over tp. */
static void sum(const loom_rank_view *v, int64_t times, group_bytes to)
{
    const loom_rank_shape *s = &v->shape;
    int tp = v->layout->tp;

    if (s->sequence_parallel)
        to[LOOM_CALL_REDUCE_SCATTER] += (uint64_t)times * bytes_of(s->local_tokens * s->hidden) * (uint64_t)(tp - 1);
    else
        to[LOOM_CALL_ALL_REDUCE] += (uint64_t)times * loom_all_reduce_traffic(bytes_of(s->tokens * s->hidden), tp);
}

/* One region: forward enters and leaves; backward enters from behind, gathers the input again for the weight gradient, and leaves in front. Weight
 * gradients that come later gather once more what came from behind. */
static void add_regions(const loom_rank_view *v, int64_t regions, group_bytes to)
{
    passes p = passes_of(v);
    int gathers = loom_schedule_kind_splits(v->layout->schedule) ? 3 : 2;

    gather(v, regions * (p.forward + gathers * p.backward), to);
    sum(v, regions * (p.forward + p.backward), to);
}

/* The embedding leaves a region that nobody entered. */
static void add_embedding(const loom_rank_view *v, group_bytes to)
{
    sum(v, v->micro_batches, to);
    gather(v, v->micro_batches, to);
}

/* The loss needs a maximum and two sums of each token, in pieces of as many rows as logits are made of. */
static void add_head(const loom_rank_view *v, group_bytes to)
{
    int64_t rows = loom_logits_rows(&v->shape);

    gather(v, v->micro_batches, to);
    sum(v, v->micro_batches, to);
    for (int64_t t = 0, n; t < v->shape.tokens; t += n) {
        n = v->shape.tokens - t < rows ? v->shape.tokens - t : rows;
        to[LOOM_CALL_ALL_REDUCE] += (uint64_t)v->micro_batches * (loom_all_reduce_traffic(bytes_of(n), v->layout->tp) +
                                                                  loom_all_reduce_traffic(bytes_of(2 * n), v->layout->tp));
    }
}

static void add_tp(const loom_rank_view *v, group_bytes to)
{
    bool shared = v->model->moe.shared > 0;

    add_regions(v, 2 * v->dense_layers + v->expert_layers, to);
    if (shared) /* the shared experts are a region like a dense MLP's */
        add_regions(v, v->expert_layers, to);
    else if (!v->shape.sequence_parallel) /* each rank routed a part of the rows: what they became is put together */
        sum(v, v->expert_layers * (passes_of(v).forward + v->micro_batches), to);
    if (v->embedding)
        add_embedding(v, to);
    if (v->head)
        add_head(v, to);
}

/* --- cp --------------------------------------------------------------------------------------------------------------------------- */

/* All-to-all of rows of `heads` heads. */
static void exchange(const loom_cp_shape *c, int64_t heads, int64_t times, group_bytes to)
{
    to[LOOM_CALL_ALL_TO_ALL] += (uint64_t)times * bytes_of(c->batch * c->local_seq * heads * c->head_dim) * (uint64_t)(c->inner - 1);
}

static void add_cp(const loom_rank_view *v, group_bytes to)
{
    const loom_cp_shape *c = &v->cp;
    int64_t layers = v->dense_layers + v->expert_layers, qkv = c->group_heads + 2 * c->group_kv_heads;
    uint64_t kv = bytes_of(loom_cp_kv_elements(c));
    passes p = passes_of(v);

    p.forward *= layers;
    p.backward *= layers;
    if (c->inner > 1) { /* q, k and v in, o out; the gradients of o in, of q, k and v out */
        exchange(c, qkv + c->group_heads, p.forward, to);
        exchange(c, qkv + c->group_heads, p.backward, to);
    }
    if (c->kind == LOOM_CP_ALLGATHER) {
        to[LOOM_CALL_ALL_GATHER] += (uint64_t)(p.forward + p.backward) * kv * (uint64_t)(c->size - 1);
        to[LOOM_CALL_REDUCE_SCATTER] += (uint64_t)p.backward * kv * (uint64_t)(c->size - 1);
    } else { /* keys and values go round in forward and again in backward, and then their gradients */
        to[LOOM_CALL_SEND] += (uint64_t)(p.forward + 2 * p.backward) * kv * (uint64_t)(c->outer - 1);
    }
}

/* --- experts ------------------------------------------------------------------------------------------------------------------------ */

static void add_rows(const loom_rank_view *v, const loom_expert_rows *rows, loom_rank_forecast *f)
{
    uint64_t row = bytes_of(v->shape.hidden), times = v->layout->recompute == LOOM_RECOMPUTE_FULL ? 3 : 2; /* forward, again, backward */

    f->bytes[LOOM_GROUP_EP][LOOM_CALL_ALL_TO_ALL_V] += times * row * (uint64_t)(rows->sent + rows->received);
    f->bytes[LOOM_GROUP_ETP][LOOM_CALL_ALL_TO_ALL_V] += times * row * (uint64_t)(rows->arrived * (v->layout->etp - 1) + rows->peers);
}

static void add_experts(const loom_rank_view *v, loom_rank_forecast *f)
{
    const loom_layout *l = v->layout;
    const loom_expert_shape *e = &v->experts;
    passes p = passes_of(v);
    uint64_t plans = (uint64_t)(v->expert_layers * p.forward), stats = bytes_of(2 * e->units * e->experts);
    uint64_t loads = (uint64_t)(v->expert_layers * e->experts) * sizeof(double);

    f->bytes[LOOM_GROUP_EP][LOOM_CALL_ALL_TO_ALL] += plans * bytes_of(e->here) * (uint64_t)(e->ep - 1);
    f->bytes[LOOM_GROUP_ETP][LOOM_CALL_ALL_GATHER] += plans * bytes_of(e->experts) * (uint64_t)(e->etp - 1);
    add_rows(v, &f->rows, f);
    if (loom_moe_has_balance(&v->model->moe)) {
        uint64_t times = (uint64_t)(v->expert_layers * p.backward);
        f->bytes[LOOM_GROUP_TP][LOOM_CALL_ALL_REDUCE] += times * loom_all_reduce_traffic(stats, l->tp);
        f->bytes[LOOM_GROUP_CP][LOOM_CALL_ALL_REDUCE] += times * loom_all_reduce_traffic(stats, l->cp);
    }
    f->bytes[LOOM_GROUP_STAGE][LOOM_CALL_ALL_REDUCE] += loom_all_reduce_traffic(loads, l->tp * l->cp * l->dp); /* at the end of the step */
    f->bytes[LOOM_GROUP_PP][LOOM_CALL_ALL_REDUCE] += loom_all_reduce_traffic(2 * sizeof(double), l->pp);
}

/* --- pp ------------------------------------------------------------------------------------------------------------------------------- */

static void add_pp(const loom_rank_view *v, loom_rank_forecast *f)
{
    const loom_layout *l = v->layout;
    uint64_t boundary = bytes_of(v->shape.local_tokens * v->shape.hidden), messages = 0;

    for (int c = 0; c + 1 < l->n_chunks; c++) {
        int from = loom_layout_stage_of_chunk(l, c), to = loom_layout_stage_of_chunk(l, c + 1);
        messages += from != to && (from == v->stage || to == v->stage); /* an activation forwards, its gradient back */
    }
    f->bytes[LOOM_GROUP_PP][LOOM_CALL_SEND] += messages * (uint64_t)v->micro_batches * boundary;
}

/* --- gradients -------------------------------------------------------------------------------------------------------------------------- */

/* Buckets change nothing: their lengths divide by the ranks that share them. */
static void add_class(const loom_rank_view *v, loom_param_class c, loom_rank_forecast *f)
{
    static const loom_rank_group also[LOOM_CLASSES] = {[LOOM_CLASS_TP] = LOOM_GROUP_TP, [LOOM_CLASS_KV] = LOOM_GROUP_KV, [LOOM_CLASS_TIED] = LOOM_GROUP_TIED};
    const int sizes[LOOM_CLASSES] = {[LOOM_CLASS_TP] = v->layout->tp,
                                     [LOOM_CLASS_KV] = loom_cut_holders(v->model->kv_heads, 1, v->layout->tp),
                                     [LOOM_CLASS_TIED] = 2};
    uint64_t *to = f->bytes[c == LOOM_CLASS_EXPERT ? LOOM_GROUP_EDP : LOOM_GROUP_GRADIENT];
    int parts = loom_class_parts(v->layout, c);
    bool sharded = loom_class_cuts(v->layout, c, LOOM_ZERO_STATE), by_unit = loom_class_cuts(v->layout, c, LOOM_ZERO_GRADIENTS);
    bool in_use = loom_class_cuts(v->layout, c, LOOM_ZERO_WEIGHTS);
    int64_t keep = sharded ? v->elements[c] / parts : v->elements[c];
    int64_t reduced = by_unit ? v->micro_batches * v->scattered[c] / parts : keep;
    int64_t gathered = in_use ? v->micro_batches * v->gathered[c] / parts : keep; /* else the new weights */

    if (sharded) {
        to[LOOM_CALL_REDUCE_SCATTER] += bytes_of(reduced) * (uint64_t)(parts - 1);
        to[LOOM_CALL_ALL_GATHER] += bytes_of(gathered) * (uint64_t)(parts - 1);
    } else {
        to[LOOM_CALL_ALL_REDUCE] += loom_all_reduce_traffic(bytes_of(keep), parts);
    }
    if (sizes[c] > 0)
        f->bytes[also[c]][LOOM_CALL_ALL_REDUCE] += loom_all_reduce_traffic(bytes_of(keep), sizes[c]);
}

/* The norm over the world; the loss over those with other tokens, then over the stages. */
static void add_scalars(const loom_rank_view *v, loom_rank_forecast *f)
{
    const loom_layout *l = v->layout;

    f->bytes[LOOM_GROUP_WORLD][LOOM_CALL_ALL_REDUCE] += loom_all_reduce_traffic(sizeof(double), loom_layout_world(l));
    f->bytes[LOOM_GROUP_GRADIENT][LOOM_CALL_ALL_REDUCE] += loom_all_reduce_traffic(sizeof(double), l->dp * l->cp);
    f->bytes[LOOM_GROUP_PP][LOOM_CALL_ALL_REDUCE] += loom_all_reduce_traffic(sizeof(double), l->pp);
}

void loom_forecast_traffic(const loom_rank_view *v, loom_rank_forecast *f)
{
    if (v->layout->tp > 1)
        add_tp(v, f->bytes[LOOM_GROUP_TP]);
    if (v->layout->cp > 1)
        add_cp(v, f->bytes[LOOM_GROUP_CP]);
    if (v->model->moe.experts > 0)
        add_experts(v, f);
    add_pp(v, f);
    for (int c = 0; c < LOOM_CLASSES; c++)
        add_class(v, (loom_param_class)c, f);
    add_scalars(v, f);
}
