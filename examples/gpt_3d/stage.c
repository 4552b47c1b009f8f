#include "stage.h"
#include "names.h"
#include "stage_memory.h"
#include "try.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- parameters ------------------------------------------------------------------------------------------------------------------ */

static bool on_this_stage(const gpt_stage *stage, int chunk)
{
    return loom_layout_stage_of_chunk(&stage->mesh->layout, chunk) == stage->mesh->here.at[LOOM_AXIS_PP];
}

/* Tied embedding and head on different stages are two copies whose gradients are added; on one stage they are one matrix. */
static bool tied_across_stages(const gpt_stage *stage)
{
    const loom_layout *layout = &stage->mesh->layout;

    return stage->model->tied_embeddings &&
           loom_layout_stage_of_chunk(layout, 0) != loom_layout_stage_of_chunk(layout, layout->n_chunks - 1);
}

/* Parameters from `first` on are of `unit`. */
static void join_unit(const gpt_stage *stage, int first, int unit)
{
    for (int i = first; i < stage->params.count; i++)
        stage->params.at[i]->unit = unit;
}

static loom_status open_embedding(gpt_stage *stage)
{
    const loom_model *model = stage->model;
    char name[GPT_NAME_BYTES], full[GPT_NAME_BYTES + 8];
    loom_vocab_config config = {.name = full, .vocab = model->vocab, .hidden = model->hidden, .init_std = model->init_std};

    stage->embedding_params[0] = stage->params.count;
    config.tied = tied_across_stages(stage);
    config.tied_owner = config.tied;
    snprintf(full, sizeof full, "%s.weight", gpt_name(model, GPT_EMBEDDING, 0, name));
    TRY(loom_vocab_init(&stage->embedding, stage->tp, &config));
    TRY(loom_vocab_declare(&stage->embedding, &stage->params));
    if (model->positions == LOOM_LEARNED) {
        int64_t shape[2] = {model->seq, model->hidden};

        snprintf(full, sizeof full, "%s.weight", gpt_name(model, GPT_POSITIONS, 0, name));
        loom_tp_replicated(stage->tp, full, 2, shape, &stage->positions.shard);
        stage->positions.shard.decay = true;
        stage->positions.shard.init.std = model->init_std;
        TRY(loom_param_list_add(&stage->params, &stage->positions));
    }
    stage->embedding_params[1] = stage->params.count;
    stage->embedding_unit = stage->units++;
    join_unit(stage, stage->embedding_params[0], stage->embedding_unit);
    return LOOM_OK;
}

static loom_status open_head(gpt_stage *stage)
{
    const loom_model *model = stage->model;
    char name[GPT_NAME_BYTES], full[GPT_NAME_BYTES + 8];
    loom_vocab_config config = {.name = full, .vocab = model->vocab, .hidden = model->hidden, .init_std = model->init_std};

    stage->head_params[0] = stage->params.count;
    TRY(gpt_norm_init(&stage->final_norm, &stage->shape, gpt_name(model, GPT_FINAL_NORM, 0, name), &stage->params));
    if (model->tied_embeddings && !tied_across_stages(stage)) {
        stage->head = &stage->embedding; /* its gradient is complete when the embedding's is */
        stage->head_unit = stage->embedding_unit;
    } else {
        config.tied = tied_across_stages(stage);
        snprintf(full, sizeof full, "%s.weight", gpt_name(model, config.tied ? GPT_EMBEDDING : GPT_HEAD, 0, name));
        stage->head = &stage->head_matrix;
        TRY(loom_vocab_init(stage->head, stage->tp, &config));
        TRY(loom_vocab_declare(stage->head, &stage->params));
        stage->head_unit = stage->units++;
    }
    stage->head_params[1] = stage->params.count;
    join_unit(stage, stage->head_params[0], stage->head_unit);
    return LOOM_OK;
}

static loom_status open_chunk(gpt_stage *stage, gpt_chunk *chunk, int index, const loom_schedule *schedule)
{
    const loom_layout *layout = &stage->mesh->layout;
    bool reruns = stage->recompute && stage->shape.split_backward;

    chunk->index = index;
    chunk->first_layer = loom_layout_first_layer(layout, index);
    chunk->layers = layout->chunk_layers[index];
    chunk->has_embedding = index == 0;
    chunk->has_head = index == layout->n_chunks - 1;
    chunk->slots = loom_schedule_slots(schedule, index);
    chunk->reruns = reruns ? loom_schedule_open_backwards(schedule, index) : 0;
    chunk->blocks = calloc((size_t)chunk->layers + 1, sizeof *chunk->blocks);
    chunk->first_param = calloc((size_t)chunk->layers + 1, sizeof *chunk->first_param);
    chunk->slot = calloc((size_t)chunk->slots + 1, sizeof *chunk->slot);
    chunk->rerun = calloc((size_t)chunk->reruns + 1, sizeof *chunk->rerun);
    if (!chunk->blocks || !chunk->first_param || !chunk->slot || !chunk->rerun)
        return loom_fail(LOOM_E_MEMORY, "chunk %d: no memory for %lld blocks", index, (long long)chunk->layers);
    if (chunk->has_embedding)
        TRY(open_embedding(stage));
    chunk->first_unit = stage->units;
    for (int64_t i = 0; i < chunk->layers; i++) {
        chunk->first_param[i] = stage->params.count;
        TRY(gpt_block_init(&chunk->blocks[i], &stage->shape, chunk->first_layer + i, &stage->params));
        join_unit(stage, chunk->first_param[i], stage->units++);
    }
    chunk->first_param[chunk->layers] = stage->params.count;
    return chunk->has_head ? open_head(stage) : LOOM_OK;
}

static loom_status open_chunks(gpt_stage *stage, const loom_schedule *schedule)
{
    const loom_layout *layout = &stage->mesh->layout;

    stage->chunks = calloc((size_t)layout->vpp, sizeof *stage->chunks);
    if (!stage->chunks)
        return loom_fail(LOOM_E_MEMORY, "no memory for %d chunks", layout->vpp);
    for (int c = 0; c < layout->n_chunks; c++)
        if (on_this_stage(stage, c))
            TRY(open_chunk(stage, &stage->chunks[stage->n_chunks++], c, schedule));
    return LOOM_OK;
}

loom_status gpt_stage_open(const loom_model *model, loom_mesh *mesh, loom_tp *tp, const loom_schedule *schedule, const gpt_stage_options *options,
                           gpt_stage **stage)
{
    gpt_stage *s = calloc(1, sizeof *s);
    loom_ep_config experts = options->experts;
    loom_status status;

    if (!s)
        return loom_fail(LOOM_E_MEMORY, "no memory for a stage");
    s->model = model;
    s->mesh = mesh;
    s->tp = tp;
    s->device = loom_stream_device(tp->compute);
    s->separator = options->separator;
    s->recompute = mesh->layout.recompute == LOOM_RECOMPUTE_FULL;
    s->micro_batches = loom_layout_micro_batches(&mesh->layout);
    gpt_shape_init(&s->shape, model, tp, mesh->layout.micro_batch, mesh->layout.seq);
    experts.split_backward = s->shape.split_backward;
    status = model->moe.experts > 0 ? loom_ep_open(mesh, tp->kernels, tp->compute, &experts, &s->ep) : LOOM_OK;
    s->shape.ep = s->ep;
    if (status == LOOM_OK)
        status = open_chunks(s, schedule);
    if (status < 0) {
        gpt_stage_close(s);
        return status;
    }
    *stage = s;
    return LOOM_OK;
}

static void close_saved(const gpt_chunk *chunk, gpt_saved *saved)
{
    for (int64_t l = 0; saved && l < chunk->layers; l++)
        if (saved[l].experts != chunk->shared_record)
            loom_moe_record_close(saved[l].experts);
    free(saved);
}

static void close_chunk(gpt_stage *stage, gpt_chunk *chunk)
{
    loom_free(stage->device, chunk->memory);
    for (int i = 0; chunk->slot && i < chunk->slots; i++) {
        close_saved(chunk, chunk->slot[i].saved);
        free(chunk->slot[i].x);
    }
    for (int i = 0; chunk->rerun && i < chunk->reruns; i++)
        close_saved(chunk, chunk->rerun[i].saved);
    loom_moe_record_close(chunk->shared_record);
    for (int64_t l = 0; chunk->blocks && l < chunk->layers; l++)
        gpt_block_close(&chunk->blocks[l]);
    free(chunk->slot);
    free(chunk->rerun);
    free(chunk->blocks);
    free(chunk->first_param);
}

void gpt_stage_close(gpt_stage *stage)
{
    if (!stage)
        return;
    for (int c = 0; c < stage->n_chunks; c++)
        close_chunk(stage, &stage->chunks[c]);
    free(stage->chunks);
    loom_ep_close(stage->ep);
    loom_free(stage->device, stage->workspace_memory);
    loom_free(stage->device, stage->logits_TV);
    loom_free(stage->device, stage->loss_sum);
    loom_cp_close(stage->shape.cp);
    loom_param_list_free(&stage->params);
    free(stage);
}

/* --- shapes and memory -------------------------------------------------------------------------------------------------------------- */

/* Where in its sequence each token lies, for all ranks of cp: [cp, local_seq]. */
static loom_status reshape_experts(const gpt_shape *s)
{
    int cp = s->tp->mesh->layout.cp;
    int32_t *positions;
    loom_status status;

    if (!s->ep)
        return LOOM_OK;
    if (!(positions = malloc((size_t)s->seq * sizeof *positions)))
        return loom_fail(LOOM_E_MEMORY, "no memory for %lld positions", (long long)s->seq);
    for (int r = 0; r < cp; r++)
        loom_cp_split(s->seq, cp, r, positions + r * s->local_seq);
    status = loom_ep_reshape(s->ep,
                             &(loom_ep_shape){.sequences = s->sequences, .seq = s->local_seq, .whole = s->whole, .positions_CS = positions});
    free(positions);
    return status;
}

static loom_status open_cp(gpt_stage *stage)
{
    gpt_shape *s = &stage->shape;
    loom_cp_config config = {.kind = stage->mesh->layout.cp_kind,
                             .inner = stage->mesh->layout.cp_inner,
                             .batch = s->sequences,
                             .seq = s->seq,
                             .heads = s->heads,
                             .kv_heads = s->kv_heads,
                             .head_dim = s->head_dim,
                             .documents = stage->separator != GPT_NO_SEPARATOR};

    return loom_cp_open(stage->mesh, s->tp->kernels, s->tp->compute, &config, &s->cp);
}

loom_status gpt_stage_allocate(gpt_stage *stage)
{
    const gpt_shape *s = &stage->shape;
    loom_kernels *k = stage->tp->kernels;

    TRY(open_cp(stage));
    TRY(reshape_experts(s));
    TRY(gpt_stage_allocate_buffers(stage));
    if (stage->model->positions != LOOM_ROPE)
        return LOOM_OK;
    return k->rope_table(k,
                         &(loom_rope_table_args){.cos_PK = stage->workspace.cos_SK,
                                                 .sin_PK = stage->workspace.sin_SK,
                                                 .positions = s->seq,
                                                 .head_dim = s->head_dim,
                                                 .theta = stage->model->rope_theta},
                         stage->tp->compute);
}

/* --- what dp is told ------------------------------------------------------------------------------------------------------------- */

static loom_status use_weights(const gpt_stage *stage, int unit)
{
    return stage->dp ? loom_dp_gather_weights(stage->dp, unit) : LOOM_OK;
}

static loom_status begin_gradients(const gpt_stage *stage, int unit)
{
    return stage->dp ? loom_dp_begin_gradients(stage->dp, unit) : LOOM_OK;
}

static loom_status scatter_gradients(const gpt_stage *stage, int unit)
{
    return stage->dp ? loom_dp_scatter_gradients(stage->dp, unit) : LOOM_OK;
}

/* During the last micro-batch's backward every gradient that was just written is complete. */
static loom_status tell_ready(const gpt_stage *stage, int micro_batch, int first, int end)
{
    if (!stage->dp || micro_batch != stage->micro_batches - 1 || first == end)
        return LOOM_OK;
    return loom_dp_ready(stage->dp, stage->params.at + first, end - first);
}

/* --- embedding and head ------------------------------------------------------------------------------------------------------------ */

/* Position of each token that this rank holds between the regions. */
static const int32_t *position_rows(const gpt_shape *s)
{
    return s->positions_T + (s->tp->sequence_parallel ? s->tp->rank * s->Tl : 0);
}

static loom_status embed(gpt_stage *stage, const gpt_shape *s, const int32_t *tokens, float *x)
{
    gpt_workspace *w = &stage->workspace;
    loom_kernels *k = s->tp->kernels;

    TRY(use_weights(stage, stage->embedding_unit));
    TRY(loom_vocab_embed(&stage->embedding, tokens, s->T, s->tp->size == 1 ? x : w->partial_TD));
    TRY(loom_tp_leave(s->tp, s->tp->size == 1 ? x : w->partial_TD, s->T, s->D, x));
    if (stage->model->positions != LOOM_LEARNED)
        return LOOM_OK;
    return k->position(k,
                       &(loom_position_args){.y_TD = x,
                                             .table_PD = stage->positions.value,
                                             .rows_T = position_rows(s),
                                             .tokens = s->Tl,
                                             .hidden = s->D,
                                             .positions = stage->model->seq},
                       s->tp->compute);
}

static loom_status embed_backward(gpt_stage *stage, const gpt_shape *s, const int32_t *tokens, const float *d)
{
    loom_kernels *k = s->tp->kernels;
    const float *d_full;

    TRY(begin_gradients(stage, stage->embedding_unit));
    if (stage->model->positions == LOOM_LEARNED)
        TRY(k->position_backward(k,
                                 &(loom_position_backward_args){.dtable_PD = stage->positions.gradient,
                                                                .dy_TD = d,
                                                                .rows_T = position_rows(s),
                                                                .tokens = s->Tl,
                                                                .hidden = s->D,
                                                                .positions = stage->model->seq},
                                 s->tp->compute));
    TRY(loom_tp_leave_backward(s->tp, d, s->T, s->D, stage->workspace.gathered_TD, &d_full));
    TRY(loom_vocab_embed_backward(&stage->embedding, tokens, s->T, d_full));
    return scatter_gradients(stage, stage->embedding_unit);
}

/* Logits, loss and both gradients of some tokens; d_full gets the gradient of their x. */
static loom_status head_piece(gpt_stage *stage, const float *x_full, const int32_t *targets, int64_t tokens, float *d_full)
{
    loom_kernels *k = stage->tp->kernels;

    TRY(loom_vocab_logits(stage->head, x_full, tokens, stage->logits_TV));
    TRY(loom_tp_cross_entropy(stage->tp, stage->model->vocab, stage->head->rows, stage->logits_TV, targets, tokens, NULL, stage->loss_T,
                              stage->scratch_4T));
    TRY(k->sum(k, &(loom_sum_args){.sum = stage->loss_sum, .x = stage->loss_T, .count = tokens, .accumulate = true}, stage->tp->compute));
    TRY(loom_vocab_logits_backward_input(stage->head, stage->logits_TV, tokens, d_full));
    return loom_vocab_logits_backward_weight(stage->head, x_full, stage->logits_TV, tokens);
}

/* The head's backward follows at once: so logits live for one call, and only a [Tl, D] gradient waits for the micro-batch's backward. */
static loom_status head_forward_backward(gpt_stage *stage, const float *x, const int32_t *targets, float *d)
{
    const gpt_shape *s = &stage->shape;
    gpt_workspace *w = &stage->workspace;
    const float *x_full;

    TRY(use_weights(stage, stage->head_unit));
    TRY(begin_gradients(stage, stage->head_unit));
    TRY(gpt_norm_forward(&stage->final_norm, s, x, NULL, NULL, stage->norm_TD, stage->mean_T, stage->rstd_T));
    TRY(loom_tp_enter(s->tp, stage->norm_TD, s->T, s->D, w->gathered_TD, &x_full));
    for (int64_t t = 0; t < s->T; t += stage->logits_tokens) {
        int64_t tokens = s->T - t < stage->logits_tokens ? s->T - t : stage->logits_tokens;

        TRY(head_piece(stage, x_full + t * s->D, targets + t, tokens, w->partial_TD + t * s->D));
    }
    TRY(loom_tp_enter_backward_begin(s->tp, w->partial_TD, s->T, s->D, w->branch_TlD));
    TRY(loom_tp_enter_backward_end(s->tp));
    TRY(gpt_norm_backward(&stage->final_norm, s, w->branch_TlD, x, stage->mean_T, stage->rstd_T, d, false));
    return scatter_gradients(stage, stage->head_unit);
}

/* --- the pipeline's callbacks ------------------------------------------------------------------------------------------------------- */

static gpt_chunk *find_chunk(gpt_stage *stage, int index)
{
    for (int c = 0; c < stage->n_chunks; c++)
        if (stage->chunks[c].index == index)
            return &stage->chunks[c];
    return NULL;
}

/* Where block `i` reads and what block `i - 1` writes. */
static float *block_input(const gpt_chunk *chunk, const gpt_slot *slot, int64_t i, const float *input)
{
    return i == 0 && !chunk->has_embedding ? (float *)input : slot->x[i];
}

/* Embedding and blocks; leaves the chunk's result in `out`. */
static loom_status run_layers(gpt_stage *stage, gpt_chunk *chunk, const gpt_shape *s, const gpt_slot *slot, const int32_t *tokens,
                              const float *input, float *out)
{
    if (chunk->has_embedding)
        TRY(embed(stage, s, tokens, chunk->layers > 0 ? slot->x[0] : out));
    else if (chunk->layers == 0)
        TRY(loom_stream_copy(s->tp->compute, out, input, (size_t)(s->Tl * s->D) * sizeof *out));
    for (int64_t i = 0; i < chunk->layers; i++) {
        float *to = i + 1 < chunk->layers ? slot->x[i + 1] : out;

        TRY(use_weights(stage, chunk->first_unit + (int)i));
        TRY(gpt_block_forward(&chunk->blocks[i], s, &stage->workspace, &slot->saved[i], block_input(chunk, slot, i, input), to));
        loom_device_progress(stage->device);
    }
    return LOOM_OK;
}

static const int32_t *micro_batch_of(const gpt_stage *stage, const int32_t *all, int micro_batch)
{
    return all + micro_batch * stage->shape.T;
}

/* The shape, with what this micro-batch's attention and embedding need to know of its tokens. */
static gpt_shape shape_of(const gpt_stage *stage, int micro_batch)
{
    const gpt_batch *batch = &stage->batch;
    gpt_shape s = stage->shape;

    s.positions_T = batch->positions ? micro_batch_of(stage, batch->positions, micro_batch) : loom_cp_positions(s.cp);
    s.documents_T = batch->documents ? micro_batch_of(stage, batch->documents, micro_batch) : NULL;
    return s;
}

static loom_status forward(void *context, int index, int micro_batch, int slot_index, const float *input, float *output)
{
    gpt_stage *stage = context;
    gpt_shape s = shape_of(stage, micro_batch);
    gpt_chunk *chunk = find_chunk(stage, index);
    gpt_slot *slot = &chunk->slot[slot_index];
    float *out = chunk->has_head ? stage->final_TD : output;

    TRY(run_layers(stage, chunk, &s, slot, micro_batch_of(stage, stage->batch.tokens, micro_batch), input, out));
    if (!chunk->has_head)
        return LOOM_OK;
    return head_forward_backward(stage, out, micro_batch_of(stage, stage->batch.targets, micro_batch), slot->d_out);
}

static loom_status copy_rows(const gpt_stage *stage, float *to, const float *from)
{
    return loom_stream_copy(stage->tp->compute, to, from, (size_t)(stage->shape.Tl * stage->shape.D) * sizeof *to);
}

/* What the backward of block `i` reads, and leaves for the weights' half. */
static const gpt_saved *saved_of(const gpt_slot *slot, int64_t i)
{
    return slot->rerun ? &slot->rerun->saved[i] : &slot->saved[i];
}

static loom_status block_backward(gpt_stage *stage, gpt_chunk *chunk, const gpt_shape *s, const gpt_slot *slot, int64_t i, const float *input, float *d)
{
    const float *x = block_input(chunk, slot, i, input);
    int unit = chunk->first_unit + (int)i;

    TRY(use_weights(stage, unit));
    TRY(begin_gradients(stage, unit));
    if (stage->recompute) /* its output is not needed again: it goes where the backward's first gradient will overwrite it */
        TRY(gpt_block_forward(&chunk->blocks[i], s, &stage->workspace, saved_of(slot, i), x, stage->workspace.branch_TlD));
    TRY(gpt_block_backward(&chunk->blocks[i], s, &stage->workspace, saved_of(slot, i), x, d));
    TRY(scatter_gradients(stage, unit));
    if (s->split_backward && i > 0) /* nobody reads this input any more, and the weights of the block before want its gradient */
        TRY(copy_rows(stage, slot->x[i], d));
    loom_device_progress(stage->device);
    return LOOM_OK;
}

/* The gradient of the chunk's output, where it is changed into that of its input, and where the weights' half will find it. */
static loom_status take_gradient(gpt_stage *stage, const gpt_chunk *chunk, const gpt_slot *slot, const float *d_output, float *d)
{
    if (chunk->has_head)
        return copy_rows(stage, d, slot->d_out);
    if (slot->d_out)
        TRY(copy_rows(stage, slot->d_out, d_output));
    return copy_rows(stage, d, d_output);
}

/* The whole of a backward, or its input's half: that leaves out the matrices of the blocks. The embedding's gradient is made here too, since all that it
 * needs is the gradient at hand; the head's was made in forward, where the logits are. */
static loom_status backward(void *context, int index, int micro_batch, int slot_index, const float *input, const float *d_output, float *d_input)
{
    gpt_stage *stage = context;
    gpt_chunk *chunk = find_chunk(stage, index);
    gpt_slot *slot = &chunk->slot[slot_index];
    gpt_shape s = shape_of(stage, micro_batch);
    float *d = chunk->has_embedding ? stage->embedding_d : d_input;

    TRY(take_gradient(stage, chunk, slot, d_output, d));
    if (chunk->has_head)
        TRY(tell_ready(stage, micro_batch, stage->head_params[0], stage->head_params[1]));
    gpt_rerun_take(chunk, slot);
    for (int64_t i = chunk->layers - 1; i >= 0; i--) {
        TRY(block_backward(stage, chunk, &s, slot, i, input, d));
        if (!s.split_backward)
            TRY(tell_ready(stage, micro_batch, chunk->first_param[i], chunk->first_param[i + 1]));
    }
    if (!chunk->has_embedding)
        return LOOM_OK;
    TRY(embed_backward(stage, &s, micro_batch_of(stage, stage->batch.tokens, micro_batch), d));
    return tell_ready(stage, micro_batch, stage->embedding_params[0], stage->embedding_params[1]);
}

static loom_status backward_weight(void *context, int index, int micro_batch, int slot_index, const float *input)
{
    gpt_stage *stage = context;
    gpt_chunk *chunk = find_chunk(stage, index);
    gpt_slot *slot = &chunk->slot[slot_index];
    gpt_shape s = shape_of(stage, micro_batch);

    (void)input; /* no weight is multiplied by it: a norm stands between */
    for (int64_t i = chunk->layers - 1; i >= 0; i--) {
        const float *d_out = i + 1 < chunk->layers ? slot->x[i + 1] : slot->d_out;
        int unit = chunk->first_unit + (int)i;

        TRY(begin_gradients(stage, unit));
        TRY(gpt_block_backward_weight(&chunk->blocks[i], &s, &stage->workspace, saved_of(slot, i), d_out));
        TRY(scatter_gradients(stage, unit));
        TRY(tell_ready(stage, micro_batch, chunk->first_param[i], chunk->first_param[i + 1]));
        loom_device_progress(stage->device);
    }
    gpt_rerun_give_back(slot);
    return LOOM_OK;
}

void gpt_stage_ops(gpt_stage *stage, loom_stage_ops *ops)
{
    *ops = (loom_stage_ops){.context = stage, .forward = forward};
    if (!stage->shape.split_backward) {
        ops->backward = backward;
        return;
    }
    ops->backward_input = backward;
    ops->backward_weight = backward_weight;
}

int64_t gpt_stage_boundary(const gpt_stage *stage)
{
    return stage->shape.Tl * stage->shape.D;
}

static bool has_head(const gpt_stage *stage)
{
    return stage->head != NULL;
}

loom_status gpt_stage_begin(gpt_stage *stage, const gpt_batch *batch)
{
    const loom_layout *layout = &stage->mesh->layout;

    stage->batch = *batch;
    if (stage->ep)
        TRY(loom_ep_begin(stage->ep, (double)batch->counted / (double)(layout->global_batch / layout->micro_batch)));
    return has_head(stage) ? loom_stream_fill_zero(stage->tp->compute, stage->loss_sum, sizeof *stage->loss_sum) : LOOM_OK;
}

loom_status gpt_stage_loss(gpt_stage *stage, double *loss_sum)
{
    *loss_sum = 0;
    if (has_head(stage))
        TRY(loom_stream_copy(stage->tp->compute, loss_sum, stage->loss_sum, sizeof *loss_sum));
    return loom_stream_wait(stage->tp->compute);
}

/* --- forward only ------------------------------------------------------------------------------------------------------------------ */

/* The chunks in model order, each on its stage; what crosses stages goes over the pp axis. The last one's output is in *at when this stage has it. */
static loom_status walk_chunks(gpt_stage *stage, const gpt_shape *s, const int32_t *tokens, float *at, float *spare, float **result)
{
    const loom_layout *layout = &stage->mesh->layout;
    loom_comm *pp = stage->mesh->axis[LOOM_AXIS_PP];
    int here = loom_comm_rank(pp);

    for (int c = 0; c < layout->n_chunks; c++) {
        int owner = loom_layout_stage_of_chunk(layout, c), from = c > 0 ? loom_layout_stage_of_chunk(layout, c - 1) : owner;
        size_t count = (size_t)(s->Tl * s->D);

        if (from != owner && here == from)
            TRY(loom_send(pp, at, count, LOOM_F32, owner, (uint64_t)c, stage->tp->compute));
        if (from != owner && here == owner)
            TRY(loom_recv(pp, at, count, LOOM_F32, from, (uint64_t)c, stage->tp->compute));
        if (here != owner)
            continue;
        gpt_chunk *chunk = find_chunk(stage, c);
        TRY(run_layers(stage, chunk, s, &chunk->slot[0], tokens, at, spare));
        float *swap = at;
        at = spare;
        spare = swap;
    }
    *result = at;
    return LOOM_OK;
}

/* Columns of all tp ranks side by side, without the padding. */
static void join_columns(const gpt_stage *stage, const float *gathered, int64_t rows, float *logits)
{
    int64_t columns = stage->head->rows, vocab = stage->model->vocab;

    for (int64_t v = 0; v < vocab; v++)
        for (int64_t t = 0; t < rows; t++)
            logits[t * vocab + v] = gathered[((v / columns) * rows + t) * columns + v % columns];
}

/* Rows `first` .. of the sequences as a whole, from the context-parallel ranks that have them: each adds its own to zeros, so nothing is rounded. */
static loom_status collect_rows(const gpt_stage *stage, const gpt_shape *s, const float *x_full, int64_t first, int64_t rows, float *x_rows)
{
    const int32_t *positions = loom_cp_host_positions(s->cp);
    size_t row = (size_t)s->D * sizeof *x_rows;

    TRY(loom_stream_fill_zero(s->tp->compute, x_rows, (size_t)rows * row));
    for (int64_t t = 0; t < s->T; t++) {
        int64_t position = positions[t % s->local_seq], at = t / s->local_seq * s->whole + position - first;

        if (position < s->whole && at >= 0 && at < rows)
            TRY(loom_stream_copy(s->tp->compute, x_rows + at * s->D, x_full + t * s->D, row));
    }
    return loom_all_reduce(stage->mesh->axis[LOOM_AXIS_CP], x_rows, x_rows, (size_t)(rows * s->D), LOOM_F32, LOOM_SUM, s->tp->compute);
}

/* Logits of a few rows, on all tp ranks of this stage. */
static loom_status piece_logits(const gpt_stage *stage, const gpt_shape *s, const float *x_full, int64_t first, int64_t rows, float *x_rows,
                                float *gathered, float *host, float *logits)
{
    TRY(collect_rows(stage, s, x_full, first, rows, x_rows));
    TRY(loom_vocab_logits(stage->head, x_rows, rows, stage->logits_TV));
    TRY(loom_all_gather(stage->mesh->axis[LOOM_AXIS_TP], stage->logits_TV, gathered, (size_t)(rows * stage->head->rows), LOOM_F32, s->tp->compute));
    TRY(loom_stream_copy(s->tp->compute, host, gathered, (size_t)(rows * stage->head->rows * s->tp->size) * sizeof *host));
    TRY(loom_stream_wait(s->tp->compute));
    join_columns(stage, host, rows, logits);
    return LOOM_OK;
}

static loom_status head_logits(gpt_stage *stage, const gpt_shape *s, const float *x, int64_t first_row, int64_t rows, float *logits)
{
    int64_t most = rows < stage->logits_tokens ? rows : stage->logits_tokens, columns = stage->head->rows * s->tp->size;
    loom_status status = LOOM_OK;
    const float *x_full;
    float *buffers, *host = NULL;

    TRY(use_weights(stage, stage->head_unit));
    TRY(gpt_norm_forward(&stage->final_norm, s, x, NULL, NULL, stage->norm_TD, stage->mean_T, stage->rstd_T));
    TRY(loom_tp_enter(s->tp, stage->norm_TD, s->T, s->D, stage->workspace.gathered_TD, &x_full));
    TRY(loom_alloc(stage->device, (size_t)(most * (columns + s->D)) * sizeof(float), LOOM_MEM_LOGITS, (void **)&buffers));
    status = loom_alloc_host(stage->device, (size_t)(most * columns) * sizeof(float), (void **)&host);
    for (int64_t done = 0; done < rows && status == LOOM_OK; done += most)
        status = piece_logits(stage, s, x_full, first_row + done, rows - done < most ? rows - done : most, buffers + most * columns, buffers,
                              host, logits + done * stage->model->vocab);
    loom_free_host(stage->device, host);
    loom_free(stage->device, buffers);
    return status;
}

/* Of one value a token of [sequences, whole] those that lie on this rank; padding gets 0. */
static void take_local(const gpt_shape *s, const int32_t *all, int32_t *local)
{
    const int32_t *positions = loom_cp_host_positions(s->cp);

    for (int64_t t = 0; t < s->T; t++) {
        int32_t at = positions[t % s->local_seq];
        local[t] = at < s->whole ? all[t / s->local_seq * s->whole + at] : 0;
    }
}

/* Tokens, positions and documents of this rank's part, behind each other in `local`. */
static loom_status local_ids(const gpt_stage *stage, const gpt_shape *s, const int32_t *tokens, int32_t *local)
{
    int64_t count = s->sequences * s->whole;
    int32_t *documents = malloc(2 * (size_t)count * sizeof *documents), *positions;

    if (!documents)
        return loom_fail(LOOM_E_MEMORY, "no memory for the documents of %lld tokens", (long long)count);
    positions = documents + count;
    for (int64_t b = 0; b < s->sequences; b++)
        gpt_data_documents(tokens + b * s->whole, s->whole, stage->separator, documents + b * s->whole, positions + b * s->whole);
    take_local(s, tokens, local);
    take_local(s, positions, local + s->T);
    take_local(s, documents, local + 2 * s->T);
    free(documents);
    return LOOM_OK;
}

/* The same in memory of the device, and in the shape what attention and embedding need of it. */
static loom_status place_ids(const gpt_stage *stage, gpt_shape *s, const int32_t *tokens, int32_t *ids)
{
    size_t bytes = 3 * (size_t)s->T * sizeof *ids;
    int32_t *host;
    loom_status status;

    TRY(loom_alloc_host(stage->device, bytes, (void **)&host));
    status = local_ids(stage, s, tokens, host);
    if (status == LOOM_OK)
        status = loom_stream_copy(s->tp->compute, ids, host, bytes);
    if (status == LOOM_OK)
        status = loom_stream_wait(s->tp->compute);
    loom_free_host(stage->device, host);
    s->positions_T = ids + s->T;
    s->documents_T = stage->separator == GPT_NO_SEPARATOR ? NULL : ids + 2 * s->T;
    return status;
}

static loom_status logits_with_buffers(gpt_stage *stage, gpt_shape *s, const int32_t *tokens, int64_t first_row, int64_t rows,
                                       float *logits, float *buffers, int32_t *ids)
{
    const loom_layout *layout = &stage->mesh->layout;
    float *result;

    TRY(place_ids(stage, s, tokens, ids));
    TRY(walk_chunks(stage, s, ids, buffers, buffers + s->Tl * s->D, &result));
    if (has_head(stage))
        TRY(head_logits(stage, s, result, first_row, rows, logits));
    TRY(loom_stream_wait(stage->tp->compute));
    return loom_comm_broadcast_host(stage->mesh->axis[LOOM_AXIS_PP], logits, (size_t)(rows * stage->model->vocab) * sizeof *logits,
                                    loom_layout_stage_of_chunk(layout, layout->n_chunks - 1));
}

loom_status gpt_stage_logits(gpt_stage *stage, const int32_t *tokens, int64_t sequences, int64_t seq, int64_t first_row, int64_t rows,
                             float *logits)
{
    const gpt_shape *trained = &stage->shape;
    gpt_shape s;
    float *buffers;
    size_t activations, ids;
    loom_status status;

    gpt_shape_init(&s, stage->model, stage->tp, sequences, seq);
    s.cp = trained->cp;
    s.ep = trained->ep;
    TRY(loom_cp_reshape(s.cp, sequences, s.seq));
    TRY(reshape_experts(&s));
    activations = (size_t)(2 * s.Tl * s.D) * sizeof *buffers;
    ids = 3 * (size_t)s.T * sizeof *tokens;
    TRY(loom_alloc(stage->device, activations + ids, LOOM_MEM_WORKSPACE, (void **)&buffers));
    status = logits_with_buffers(stage, &s, tokens, first_row, rows, logits, buffers, (int32_t *)(buffers + 2 * s.Tl * s.D));
    loom_free(stage->device, buffers);
    TRY(status);
    TRY(loom_cp_reshape(trained->cp, trained->sequences, trained->seq));
    return reshape_experts(trained);
}
