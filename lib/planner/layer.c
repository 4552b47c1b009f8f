/* Forward and backward of one micro-batch through one layer, the embedding, or the head, on the busiest rank. */
#include "planner/cost.h"

#include <rankloom/sizes.h>

#include <math.h>

/* What all parts of a layer are counted with. */
typedef struct shape {
    const loom_job *job;
    const loom_model *model;
    const loom_degrees *degrees;
    double tokens; /* of a rank inside a tensor-parallel region */
    double outer;  /* tokens outside of it: fewer with sequence parallelism */
} shape;

static shape shape_of(const loom_job *job, const loom_degrees *degrees)
{
    shape s = {job, &job->model, degrees, 0, 0};
    s.tokens = (double)degrees->micro_batch * job->seq / degrees->cp;
    s.outer = degrees->sequence_parallel ? s.tokens / degrees->tp : s.tokens;
    return s;
}

/* What stays wide when the large GEMMs are narrow: attention core, router, head. */
static int wide_bits(const loom_job *job)
{
    return job->bits < 16 ? 16 : job->bits;
}

double loom_pass_seconds(const loom_pass *pass)
{
    double sum = 0;
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        sum += pass->part[i];
    return sum;
}

void loom_pass_add(loom_pass *sum, const loom_pass *pass, double times)
{
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        sum->part[i] += times * pass->part[i];
    sum->weight += times * pass->weight;
    sum->hidden_dp += times * pass->hidden_dp;
}

/* A linear layer: one GEMM forward, two backward. */
static void add_linear(const shape *s, loom_pass_pair *pair, double tokens, double in, double out, int bits)
{
    double weight = loom_gemm_seconds(s->job, in, out, tokens, bits, LOOM_GEMM_WEIGHT);

    pair->forward.part[LOOM_TIME_GEMM] += loom_gemm_seconds(s->job, tokens, out, in, bits, LOOM_GEMM_FORWARD);
    pair->backward.part[LOOM_TIME_GEMM] += loom_gemm_seconds(s->job, tokens, in, out, bits, LOOM_GEMM_INPUT) + weight;
    pair->backward.weight += weight;
}

/* The same for the experts of a rank: `groups` of them, `rows` routed tokens each. */
static void add_grouped(const shape *s, loom_pass_pair *pair, double groups, double rows, double in, double out, int bits)
{
    double weight = loom_grouped_seconds(s->job, groups, in, out, rows, bits, LOOM_GEMM_WEIGHT);

    pair->forward.part[LOOM_TIME_GEMM] += loom_grouped_seconds(s->job, groups, rows, out, in, bits, LOOM_GEMM_FORWARD);
    pair->backward.part[LOOM_TIME_GEMM] += loom_grouped_seconds(s->job, groups, rows, in, out, bits, LOOM_GEMM_INPUT) + weight;
    pair->backward.weight += weight;
}

/* Streaming work: `bytes` forward; backward reads the gradient too. */
static void add_stream(const shape *s, loom_pass_pair *pair, double bytes)
{
    double seconds = loom_stream_seconds(&s->job->machine, bytes * s->job->element / 2 * loom_soft(s->job, LOOM_SOFT_ELEMENTWISE), 0);

    pair->forward.part[LOOM_TIME_POINTWISE] += seconds;
    pair->backward.part[LOOM_TIME_POINTWISE] += 1.6 * seconds;
}

/* --- attention ------------------------------------------------------------------------------------------------------------- */

static double kv_heads_of_rank(const shape *s)
{
    double heads = (double)s->model->kv_heads / s->degrees->tp;
    return heads < 1 ? 1 : heads; /* fewer heads than ranks: copies */
}

static void add_projections(const shape *s, loom_pass_pair *pair)
{
    const loom_model *m = s->model;
    double h = m->hidden, heads = (double)m->heads / s->degrees->tp;
    int bits = s->job->bits;

    if (m->mla.kv_rank == 0) {
        add_linear(s, pair, s->tokens, h, (heads + 2 * kv_heads_of_rank(s)) * m->head_dim, bits);
        add_linear(s, pair, s->tokens, heads * m->head_dim, h, bits);
        return;
    }
    double q_width = heads * (m->mla.nope_dim + m->mla.rope_dim);
    if (m->mla.q_rank > 0) {
        add_linear(s, pair, s->outer, h, m->mla.q_rank, bits);
        add_linear(s, pair, s->tokens, m->mla.q_rank, q_width, bits);
    } else {
        add_linear(s, pair, s->tokens, h, q_width, bits);
    }
    add_linear(s, pair, s->outer, h, m->mla.kv_rank + m->mla.rope_dim, bits);
    add_linear(s, pair, s->tokens, m->mla.kv_rank, heads * (m->mla.nope_dim + m->mla.value_dim), bits);
    add_linear(s, pair, s->tokens, heads * m->mla.value_dim, h, bits);
}

/* Keys that a token meets, averaged over layers with and without a window, as if nothing were masked. */
static double mean_keys(const shape *s)
{
    double full = s->job->seq, window = s->model->sliding_window;
    int64_t every = s->model->full_attention_every;
    double share = every > 0 ? 1 - 1.0 / every : 1; /* of the layers have the window */

    if (window <= 0 || 2 * window >= full)
        return full;
    return (1 - share) * full + share * 2 * window;
}

static double qk_dim(const loom_model *m)
{
    return m->mla.kv_rank ? (double)(m->mla.nope_dim + m->mla.rope_dim) : (double)m->head_dim;
}

static double value_dim(const loom_model *m)
{
    return m->mla.kv_rank ? (double)m->mla.value_dim : (double)m->head_dim;
}

/* Softmax work does not shrink with the head, so narrow heads reach less of the peak. */
static double narrow_rate(const loom_machine *machine, double head)
{
    double at_64 = loom_dev(machine, LOOM_DEV_ATTENTION_NARROW);
    return head >= 128 ? 1 : 1 / (1 + (1 / at_64 - 1) * (128 / head - 1));
}

static void add_fused_core(const shape *s, loom_pass_pair *pair)
{
    const loom_machine *machine = &s->job->machine;
    double keys = mean_keys(s), heads = (double)s->model->heads / s->degrees->tp;
    double whole = s->degrees->cp > 1 ? fmin(1, loom_dev(machine, LOOM_DEV_ATTENTION_TILE) * s->degrees->cp / s->job->seq) : 0;
    double flop = (1 + whole) * s->tokens * keys * heads * (qk_dim(s->model) + value_dim(s->model)); /* causal */
    bool portable = loom_soft(s->job, LOOM_SOFT_FLASH) < 2 || s->model->attention_sinks; /* which the best kernels do not have */
    double rate = loom_dev(machine, LOOM_DEV_PEAK_16) * loom_dev(machine, LOOM_DEV_SUSTAINED);
    double forward = rate * loom_dev(machine, portable ? LOOM_DEV_FLASH2_FORWARD : LOOM_DEV_ATTENTION_FORWARD);
    double backward = rate * loom_dev(machine, portable ? LOOM_DEV_FLASH2_BACKWARD : LOOM_DEV_ATTENTION_BACKWARD);
    double tail = loom_dev(machine, LOOM_DEV_ATTENTION_TAIL) * keys / 4096;
    double narrow = narrow_rate(machine, value_dim(s->model));

    pair->forward.part[LOOM_TIME_ATTENTION] += flop / (forward * narrow) + tail;
    pair->backward.part[LOOM_TIME_ATTENTION] += 2.5 * flop / (backward * narrow) + 2 * tail;
}

/* Scores are written: two batched GEMMs over the full square, and softmax, mask and dropout over the scores. */
static void add_unfused_core(const shape *s, loom_pass_pair *pair)
{
    const loom_machine *machine = &s->job->machine;
    double rows = s->job->seq / (double)s->degrees->cp, keys = s->job->seq, d = s->model->head_dim;
    double batch = (double)s->degrees->micro_batch * s->model->heads / s->degrees->tp;
    double scores = batch * rows * keys;
    double start = loom_dev(machine, LOOM_DEV_GEMM_START);
    double qk = batch * (loom_gemm_seconds(s->job, rows, keys, d, wide_bits(s->job), LOOM_GEMM_FORWARD) - start) + start;
    double pv = batch * (loom_gemm_seconds(s->job, rows, d, keys, wide_bits(s->job), LOOM_GEMM_FORWARD) - start) + start;

    pair->forward.part[LOOM_TIME_ATTENTION] += qk + pv + loom_stream_seconds(machine, 11 * scores, 3);
    pair->backward.part[LOOM_TIME_ATTENTION] += 2 * (qk + pv) + loom_stream_seconds(machine, 13 * scores, 3);
}

static void add_core(const shape *s, loom_pass_pair *pair)
{
    if (loom_soft(s->job, LOOM_SOFT_FLASH) > 0)
        add_fused_core(s, pair);
    else
        add_unfused_core(s, pair);
}

/* A ring of so many members: a hop is hidden under the attention of the block before it; every block's result is merged in fp32. */
static void add_ring(const shape *s, loom_pass_pair *pair, int members, double heads, double kv)
{
    const loom_machine *machine = &s->job->machine;
    loom_group next = s->degrees->places.cp.domains > 1 ? (loom_group){2, 1, 2} : (loom_group){2, 2, 1};
    double hops = (members - 1) * loom_hop_seconds(machine, next, kv), hide = machine->crowd > 1 ? 0 : (double)(members - 1) / members;

    add_stream(s, pair, (members - 1) * 8 * s->tokens * heads * value_dim(s->model));
    pair->forward.part[LOOM_TIME_CP] += fmax(0, hops - hide * pair->forward.part[LOOM_TIME_ATTENTION]);
    pair->backward.part[LOOM_TIME_CP] += fmax(0, 2 * hops - hide * pair->backward.part[LOOM_TIME_ATTENTION]);
}

/* Neighbours of cp exchange heads. */
static void add_head_exchange(const shape *s, loom_pass_pair *pair, int neighbours, double bytes)
{
    int inside = neighbours < s->degrees->places.cp.inside ? neighbours : s->degrees->places.cp.inside;
    loom_group group = {neighbours, inside, (neighbours + inside - 1) / inside};
    double seconds = loom_exchange_seconds(&s->job->machine, group, bytes, 0);

    pair->forward.part[LOOM_TIME_CP] += seconds;
    pair->backward.part[LOOM_TIME_CP] += seconds;
}

/* Context parallelism: keys and values, or heads, travel; in a hybrid heads among the `inner` ranks, then keys and values between such groups: each member's
 * share of them is as large as its own was. */
static void add_context_exchange(const shape *s, loom_pass_pair *pair)
{
    const loom_degrees *g = s->degrees;
    double heads = (double)s->model->heads / g->tp;
    double kv_width =
        s->model->mla.kv_rank ? heads * (qk_dim(s->model) + value_dim(s->model)) : 2 * kv_heads_of_rank(s) * s->model->head_dim;
    double kv = s->job->element * s->tokens * kv_width;
    double q = s->job->element * s->tokens * heads * (qk_dim(s->model) + value_dim(s->model)); /* queries, and outputs */
    int inner = loom_cp_inner(g->cp_kind, g->cp, s->model->heads / g->tp, (int64_t)kv_heads_of_rank(s));

    if (g->cp == 1)
        return;
    if (g->cp_kind == LOOM_CP_ALLGATHER) {
        pair->forward.part[LOOM_TIME_CP] += loom_gather_seconds(&s->job->machine, g->places.cp, kv * g->cp);
        pair->backward.part[LOOM_TIME_CP] += 2 * loom_gather_seconds(&s->job->machine, g->places.cp, kv * g->cp);
        return;
    }
    if (inner > 1)
        add_head_exchange(s, pair, inner, kv + q);
    if (inner < g->cp)
        add_ring(s, pair, g->cp / inner, heads, kv);
}

/* --- tensor parallelism --------------------------------------------------------------------------------------------------- */

/* The collectives around one tensor-parallel block (attention or MLP): gather its input, reduce its output, and the mirror image backward.
 * With sequence parallelism the input is gathered once more for the weight gradient, half of it under the input gradient. */
static void add_block_collectives(const shape *s, loom_pass_pair *pair, double bytes)
{
    const loom_machine *machine = &s->job->machine;
    loom_group group = s->degrees->places.tp;
    double exposed = group.domains == 1 ? 1 - loom_soft(s->job, LOOM_SOFT_TP_HIDDEN) : 1;

    if (s->degrees->sequence_parallel) {
        double one = loom_gather_seconds(machine, group, bytes);
        pair->forward.part[LOOM_TIME_TP] += 2 * one * exposed;
        pair->backward.part[LOOM_TIME_TP] += 2.5 * one * exposed;
    } else {
        double one = loom_reduce_seconds(machine, group, bytes);
        pair->forward.part[LOOM_TIME_TP] += one;            /* nothing to chunk it with */
        pair->backward.part[LOOM_TIME_TP] += one * exposed; /* beside the weight gradient */
    }
}

/* --- blocks ------------------------------------------------------------------------------------------------------------------- */

static void add_norm(const shape *s, loom_pass_pair *pair)
{
    add_stream(s, pair, 4 * s->outer * s->model->hidden);
}

static void add_residual(const shape *s, loom_pass_pair *pair)
{
    add_stream(s, pair, 6 * s->outer * s->model->hidden);
}

static void add_attention(const shape *s, loom_pass_pair *pair)
{
    const loom_model *m = s->model;

    add_projections(s, pair);
    if (m->positions == LOOM_ROPE)
        add_stream(s, pair, 4 * s->tokens * ((double)m->heads / s->degrees->tp + kv_heads_of_rank(s)) * m->head_dim);
    if (m->mla.kv_rank) /* heads are put together from their latent and rotary parts */
        add_stream(s, pair, 4 * s->tokens * (double)m->heads / s->degrees->tp * (2 * qk_dim(m) + value_dim(m)));
    add_core(s, pair);
    add_context_exchange(s, pair);
    add_residual(s, pair);
    add_block_collectives(s, pair, s->job->element * s->tokens * m->hidden);
}

static double gates(const loom_model *m)
{
    return loom_model_mlp_matrices(m) - 1;
}

static void add_activation(const shape *s, loom_pass_pair *pair, double tokens, double width)
{
    add_stream(s, pair, 2 * (gates(s->model) + 1) * tokens * width);
}

static void add_mlp_body(const shape *s, loom_pass_pair *pair, double width)
{
    add_linear(s, pair, s->tokens, s->model->hidden, gates(s->model) * width, s->job->bits);
    add_activation(s, pair, s->tokens, width);
    add_linear(s, pair, s->tokens, width, s->model->hidden, s->job->bits);
}

/* Expert exchange: how many copies of a token leave, in bytes of one rank's send buffer. */
static void add_expert_exchange(const shape *s, loom_pass_pair *pair)
{
    const loom_machine *machine = &s->job->machine;
    const loom_degrees *g = s->degrees;
    loom_group group = g->places.ep;
    double copies = s->tokens / g->tp * s->model->moe.top_k * s->model->hidden;
    double once = loom_soft(s->job, LOOM_SOFT_EXCHANGE_ONCE) > 0 ? (double)s->model->moe.top_k : 0;
    double dispatch = loom_exchange_seconds(machine, group, copies * loom_soft(s->job, LOOM_SOFT_DISPATCH_BYTES), once);
    double combine = loom_exchange_seconds(machine, group, copies * s->job->element, once);
    double exposed = (1 - loom_soft(s->job, LOOM_SOFT_EP_HIDDEN)) * s->job->imbalance;

    if (g->etp > 1) { /* the token copies of a rank are gathered over its expert tensor group, and reduced after */
        double gather = loom_gather_seconds(machine, g->places.etp, 2 * copies * g->etp);
        pair->forward.part[LOOM_TIME_EP] += 2 * gather;
        pair->backward.part[LOOM_TIME_EP] += 2 * gather;
    }
    pair->forward.part[LOOM_TIME_EP] += exposed * (dispatch + combine);
    pair->backward.part[LOOM_TIME_EP] += exposed * (dispatch + combine);
}

static void add_experts(const shape *s, loom_pass_pair *pair)
{
    const loom_moe *moe = &s->model->moe;
    const loom_degrees *g = s->degrees;
    double rows_total = s->tokens / g->tp * moe->top_k * g->etp * s->job->imbalance; /* routed copies on this rank */
    double groups = (double)moe->experts / g->ep;
    double width = (double)moe->ffn / g->etp, h = s->model->hidden;

    add_linear(s, pair, s->outer, h, (double)moe->experts, wide_bits(s->job)); /* router */
    add_stream(s, pair, 12 * s->outer * moe->experts);
    add_expert_exchange(s, pair);
    add_stream(s, pair, loom_soft(s->job, LOOM_SOFT_PERMUTE) * 16 * rows_total * h);
    add_grouped(s, pair, groups, rows_total / groups, h, gates(s->model) * width, s->job->bits);
    add_activation(s, pair, rows_total, width);
    add_grouped(s, pair, groups, rows_total / groups, width, h, s->job->bits);
    if (moe->shared > 0)
        add_mlp_body(s, pair, (double)moe->shared * moe->shared_ffn / g->tp);
}

/* Host time of the launches, where it is more than the device has to do. */
static void add_launch(const loom_job *job, loom_pass *pass, double kernels)
{
    double host = kernels * loom_dev(&job->machine, LOOM_DEV_HOST_KERNEL) * loom_soft(job, LOOM_SOFT_HOST_FACTOR);
    double device = loom_pass_seconds(pass);

    pass->part[LOOM_TIME_POINTWISE] += kernels * loom_dev(&job->machine, LOOM_DEV_KERNEL_GAP);
    if (host > device)
        pass->part[LOOM_TIME_LAUNCH] += host - device;
}

/* What selective recompute repeats, built from the same pieces. */
static loom_pass repeated_pass(const shape *s, loom_layer_kind kind)
{
    loom_pass_pair pair = {0};
    const loom_moe *moe = &s->model->moe;
    int repeat = s->job->repeat;

    if (repeat & LOOM_REPEAT_CORE)
        add_core(s, &pair);
    if (repeat & LOOM_REPEAT_NORM) {
        add_norm(s, &pair);
        add_norm(s, &pair);
    }
    if (repeat & LOOM_REPEAT_ACT) {
        if (kind == LOOM_LAYER_DENSE)
            add_activation(s, &pair, s->tokens, (double)s->model->ffn / s->degrees->tp);
        else
            add_activation(s, &pair, s->tokens / s->degrees->tp * moe->top_k * s->degrees->etp, (double)moe->ffn / s->degrees->etp);
    }
    if ((repeat & LOOM_REPEAT_MLP) && kind == LOOM_LAYER_DENSE)
        add_mlp_body(s, &pair, (double)s->model->ffn / s->degrees->tp);
    if ((repeat & LOOM_REPEAT_LATENT) && s->model->mla.kv_rank) {
        double heads = (double)s->model->heads / s->degrees->tp;
        add_linear(s, &pair, s->tokens, s->model->mla.kv_rank, heads * (s->model->mla.nope_dim + s->model->mla.value_dim), s->job->bits);
        if (s->model->mla.q_rank)
            add_linear(s, &pair, s->tokens, s->model->mla.q_rank, heads * qk_dim(s->model), s->job->bits);
    }
    if (repeat & LOOM_REPEAT_HALF) {
        loom_pass_pair whole = {0};
        add_projections(s, &whole);
        if (kind == LOOM_LAYER_DENSE)
            add_mlp_body(s, &whole, (double)s->model->ffn / s->degrees->tp);
        loom_pass_add(&pair.forward, &whole.forward, 0.5);
    }
    return pair.forward;
}

/* Launches of a layer's forward. A product of narrow numbers brings two quantisations with it. */
static double kernels_of(const loom_job *job, const loom_degrees *degrees, loom_layer_kind kind)
{
    double kernels = loom_soft(job, LOOM_SOFT_KERNELS_DENSE) + (degrees->tp > 1 ? loom_soft(job, LOOM_SOFT_KERNELS_TP) : 0);
    double own = (double)job->model.moe.experts / degrees->ep;

    if (kind == LOOM_LAYER_EXPERTS)
        kernels += loom_soft(job, LOOM_SOFT_KERNELS_MOE) + own * loom_soft(job, LOOM_SOFT_KERNELS_EXPERT) * (job->bits < 16 ? 3 : 1);
    return kernels;
}

loom_pass_pair loom_layer_cost(const loom_job *job, const loom_degrees *degrees, loom_layer_kind kind)
{
    shape s = shape_of(job, degrees);
    loom_pass_pair pair = {0};
    double kernels = kernels_of(job, degrees, kind);
    double backward_kernels = 2 * kernels;

    add_norm(&s, &pair);
    add_attention(&s, &pair);
    add_norm(&s, &pair);
    if (kind == LOOM_LAYER_DENSE) {
        add_mlp_body(&s, &pair, (double)s.model->ffn / degrees->tp);
        add_block_collectives(&s, &pair, job->element * s.tokens * s.model->hidden);
    } else {
        add_experts(&s, &pair);
        if (s.model->moe.shared > 0 && degrees->tp > 1)
            add_block_collectives(&s, &pair, job->element * s.tokens * s.model->hidden);
    }
    add_residual(&s, &pair);

    if (degrees->recompute == LOOM_RECOMPUTE_FULL) {
        loom_pass_add(&pair.backward, &pair.forward, 1);
        backward_kernels += kernels;
    } else if (degrees->recompute == LOOM_RECOMPUTE_SELECTIVE) {
        loom_pass again = repeated_pass(&s, kind);
        loom_pass_add(&pair.backward, &again, 1);
    }
    add_launch(job, &pair.forward, kernels);
    add_launch(job, &pair.backward, backward_kernels);
    return pair;
}

loom_pass_pair loom_layer_cost_bound(const loom_job *job, const loom_degrees *degrees)
{
    loom_job easy = *job;
    loom_degrees g = *degrees;

    /* one group with all rows, nobody to exchange with: as grouped GEMMs grow, each row only gets cheaper */
    easy.machine.dev[LOOM_DEV_GROUPED_0].value = 0;
    easy.model.moe.experts = 1;
    easy.soft[LOOM_SOFT_KERNELS_MOE] = job->soft[LOOM_SOFT_KERNELS_MOE];
    g.ep = g.etp = 1;
    g.places.ep = g.places.etp = (loom_group){1, 1, 1};
    return loom_layer_cost(&easy, &g, LOOM_LAYER_EXPERTS);
}

loom_pass_pair loom_embedding_cost(const loom_job *job, const loom_degrees *degrees)
{
    shape s = shape_of(job, degrees);
    loom_pass_pair pair = {0};

    add_stream(&s, &pair, 6 * s.tokens * s.model->hidden);
    if (degrees->tp > 1) {
        loom_group group = degrees->places.tp;
        double bytes = job->element * s.tokens * s.model->hidden;
        pair.forward.part[LOOM_TIME_TP] += degrees->sequence_parallel ? loom_gather_seconds(&job->machine, group, bytes)
                                                                      : loom_reduce_seconds(&job->machine, group, bytes);
        if (degrees->sequence_parallel)
            pair.backward.part[LOOM_TIME_TP] += loom_gather_seconds(&job->machine, group, bytes);
    }
    return pair;
}

loom_pass_pair loom_head_cost(const loom_job *job, const loom_degrees *degrees)
{
    shape s = shape_of(job, degrees);
    loom_pass_pair pair = {0};
    double columns = (double)s.model->vocab / degrees->tp;

    add_norm(&s, &pair);
    add_linear(&s, &pair, s.tokens, s.model->hidden, columns, wide_bits(job));
    double fused = loom_soft(job, LOOM_SOFT_ELEMENTWISE) < 1.5 ? 1 : 2;
    pair.forward.part[LOOM_TIME_POINTWISE] += loom_stream_seconds(&job->machine, fused * 8 * s.tokens * columns, 4);
    pair.backward.part[LOOM_TIME_POINTWISE] += loom_stream_seconds(&job->machine, fused * 6 * s.tokens * columns, 2);
    if (degrees->tp > 1) {
        loom_group group = degrees->places.tp;
        double bytes = job->element * s.tokens * s.model->hidden;
        double gather = loom_gather_seconds(&job->machine, group, bytes);
        if (degrees->sequence_parallel)
            pair.forward.part[LOOM_TIME_TP] += gather;
        pair.forward.part[LOOM_TIME_TP] += 3 * loom_reduce_seconds(&job->machine, group, 4 * s.tokens);
        pair.backward.part[LOOM_TIME_TP] += degrees->sequence_parallel ? 1.5 * gather : loom_reduce_seconds(&job->machine, group, bytes);
    }
    return pair;
}
