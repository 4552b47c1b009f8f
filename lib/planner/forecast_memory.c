/* Allocations of a rank, in the rows of the ledger. Everything is there from the first step on, so the peaks of the rows add up to the peak. */
#include "planner/forecast.h"

#include <math.h>

/* What loom_alloc() counts for `bytes`. */
static uint64_t counted(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void add(loom_rank_forecast *f, loom_memory_use use, int64_t elements)
{
    f->memory[use] += counted(4 * (uint64_t)elements);
}

/* What a rank keeps of a class, and of weights and gradients that are cut the places of whole units. */
static void add_kept(const loom_rank_view *v, loom_param_class c, int what, loom_memory_use use, loom_rank_forecast *f)
{
    bool cut = loom_class_cuts(v->layout, c, what);

    add(f, use, cut ? v->elements[c] / loom_class_parts(v->layout, c) : v->elements[c]);
    for (int i = 0; i < LOOM_UNIT_PLACES && cut && what > LOOM_ZERO_STATE; i++)
        add(f, use, v->largest[c]);
}

static void add_state(const loom_rank_view *v, loom_rank_forecast *f)
{
    for (int c = 0; c < LOOM_CLASSES; c++) {
        add_kept(v, (loom_param_class)c, LOOM_ZERO_STATE, LOOM_MEM_OPTIMIZER, f);
        add_kept(v, (loom_param_class)c, LOOM_ZERO_STATE, LOOM_MEM_OPTIMIZER, f);
        add_kept(v, (loom_param_class)c, LOOM_ZERO_GRADIENTS, LOOM_MEM_GRADIENTS, f);
        add_kept(v, (loom_param_class)c, LOOM_ZERO_WEIGHTS, LOOM_MEM_WEIGHTS, f);
    }
    f->memory[LOOM_MEM_OTHER] += counted(LOOM_REDUCTION_SUMS * sizeof(double)) + counted(sizeof(float)); /* sums of norms and losses, the clip's scale */
}

/* --- activations ---------------------------------------------------------------------------------------------------------------- */

static int64_t sum_aligned(const int64_t *count, int buffers)
{
    int64_t sum = 0;

    for (int i = 0; i < buffers; i++)
        sum += loom_aligned(count[i]);
    return sum;
}

static int64_t kept(const loom_rank_view *v, int64_t ffn)
{
    int64_t count[LOOM_KEPT_BUFFERS];

    loom_kept_counts(v->model, &v->shape, ffn, v->exchanged, count);
    return sum_aligned(count, LOOM_KEPT_BUFFERS);
}

/* Columns of the MLP that every token of layer `index` goes through. */
static int64_t mlp_columns(const loom_rank_view *v, int64_t index)
{
    return loom_model_layer_has_experts(v->model, index) ? v->shape.shared_ffn : v->shape.ffn;
}

/* What depends on the load of a layer of experts, under a balanced one: what each buffer has from the start, and what is needed. */
static void rows_of(const loom_rank_view *v, int64_t balanced[LOOM_ROWS_BUFFERS], int64_t count[LOOM_ROWS_BUFFERS])
{
    loom_expert_rows rows;

    loom_balanced_rows(v, &rows);
    loom_rows_balanced(&v->experts, balanced);
    loom_rows_counts(&v->experts, v->shape.routed_tokens * v->experts.top_k, rows.arrived, rows.arrived + rows.peers, count);
}

static void add_record(const loom_rank_view *v, loom_rank_forecast *f)
{
    int64_t floats[LOOM_RECORD_FLOATS], integers[LOOM_RECORD_INTEGERS], balanced[LOOM_ROWS_BUFFERS], count[LOOM_ROWS_BUFFERS];

    loom_record_counts(&v->experts, floats, integers);
    add(f, LOOM_MEM_ACTIVATIONS, sum_aligned(floats, LOOM_RECORD_FLOATS));
    add(f, LOOM_MEM_ACTIVATIONS, sum_aligned(integers, LOOM_RECORD_INTEGERS));
    f->memory[LOOM_MEM_ACTIVATIONS] += counted(sizeof(double)); /* the balance loss */
    rows_of(v, balanced, count);
    for (int i = LOOM_ROWS_X; i <= LOOM_ROWS_PLACES; i++)
        if (i < LOOM_ROWS_PLACES || count[i] > 0)
            add(f, LOOM_MEM_ACTIVATIONS, loom_rows_grown(balanced[i], count[i]));
}

/* What the layers of experts of a stage share, and the counts of their loads. */
static void add_exchange(const loom_rank_view *v, loom_rank_forecast *f)
{
    int64_t balanced[LOOM_ROWS_BUFFERS], count[LOOM_ROWS_BUFFERS];

    f->memory[LOOM_MEM_OTHER] += counted((uint64_t)(v->expert_layers * v->experts.experts + LOOM_LOAD_TOTALS) * sizeof(double));
    if (v->expert_layers == 0)
        return;
    rows_of(v, balanced, count);
    for (int i = LOOM_ROWS_OF_EXPERT; i < LOOM_ROWS_BUFFERS; i++)
        if (count[i] > 0)
            add(f, i == LOOM_ROWS_OF_EXPERT ? LOOM_MEM_WORKSPACE : LOOM_MEM_COMM, loom_rows_grown(balanced[i], count[i]));
}

static void add_chunk(const loom_rank_view *v, int chunk, loom_rank_forecast *f)
{
    const loom_layout *l = v->layout;
    int64_t layers = l->chunk_layers[chunk], first = loom_layout_first_layer(l, chunk), rows, blocks = 0, widest = 0, experts = 0;
    bool split = loom_schedule_kind_splits(l->schedule), again = l->recompute == LOOM_RECOMPUTE_FULL;
    int slots = loom_schedule_slots(v->schedule, chunk);
    /* Micro-batches of which every block keeps something, and whether all blocks have one place besides, where they are run again. */
    int whole = !again ? slots : split ? loom_schedule_open_backwards(v->schedule, chunk) : 0;

    rows = loom_chunk_rows(layers, chunk == 0, chunk == l->n_chunks - 1, split) * loom_aligned(v->shape.local_tokens * v->shape.hidden);
    for (int64_t i = first; i < first + layers; i++) {
        int64_t block = kept(v, mlp_columns(v, i));

        blocks += block;
        widest = block > widest ? block : widest;
        experts += loom_model_layer_has_experts(v->model, i);
    }
    add(f, LOOM_MEM_ACTIVATIONS, slots * rows + whole * blocks + (again ? widest : 0));
    for (int64_t i = 0; i < whole * experts + (again && experts > 0); i++)
        add_record(v, f);
}

static void add_stage(const loom_rank_view *v, loom_rank_forecast *f)
{
    int64_t count[LOOM_WORK_BUFFERS], offset[LOOM_CP_BUFFERS];

    for (int c = 0; c < v->layout->n_chunks; c++)
        if (loom_layout_stage_of_chunk(v->layout, c) == v->stage)
            add_chunk(v, c, f);
    loom_work_counts(v->model, &v->shape, v->embedding, v->head, v->exchanged, count);
    add(f, LOOM_MEM_WORKSPACE, sum_aligned(count, LOOM_WORK_BUFFERS));
    add(f, LOOM_MEM_COMM, loom_cp_place(&v->cp, offset));
    add(f, LOOM_MEM_OTHER, v->shape.seq);    /* positions: of the sequence by rank, */
    add(f, LOOM_MEM_OTHER, v->shape.tokens); /* and of this rank's tokens */
    if (v->head) {
        add(f, LOOM_MEM_LOGITS, loom_logits_rows(&v->shape) * v->shape.vocab_rows);
        f->memory[LOOM_MEM_LOGITS] += counted(sizeof(double)); /* the loss */
    }
    if (v->model->moe.experts > 0)
        add_exchange(v, f);
}

static loom_status add_pipeline(const loom_rank_view *v, loom_rank_forecast *f)
{
    int inputs, messages;
    int64_t each = loom_aligned(v->shape.local_tokens * v->shape.hidden);
    loom_status status = loom_schedule_buffers(v->schedule, v->stage, &inputs, &messages);

    if (status < 0)
        return status;
    add(f, LOOM_MEM_ACTIVATIONS, inputs * each);
    add(f, LOOM_MEM_COMM, messages * each);
    return LOOM_OK;
}

loom_status loom_forecast_memory(const loom_rank_view *v, loom_rank_forecast *f)
{
    loom_status status = add_pipeline(v, f);

    if (status < 0)
        return status;
    add_state(v, f);
    add_stage(v, f);
    for (int use = 0; use < LOOM_MEM_USES; use++)
        f->memory_total += f->memory[use];
    return LOOM_OK;
}
