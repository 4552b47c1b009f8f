#include "stage_memory.h"
#include "try.h"

#include <assert.h>
#include <stdlib.h>

/* --- chunks ----------------------------------------------------------------------------------------------------------------------- */

/* What all blocks of the chunk keep of one micro-batch. */
static void carve_saved(gpt_carver *carver, const gpt_stage *stage, const gpt_chunk *chunk, gpt_saved *saved)
{
    for (int64_t i = 0; i < chunk->layers; i++)
        gpt_saved_carve(carver, &stage->shape, chunk->blocks[i].ffn, &saved[i]);
}

static void carve_slot(gpt_carver *carver, const gpt_stage *stage, const gpt_chunk *chunk, gpt_slot *slot)
{
    int64_t rows = stage->shape.Tl * stage->shape.D;

    for (int64_t i = chunk->has_embedding ? 0 : 1; i < chunk->layers; i++)
        gpt_carve(carver, &slot->x[i], rows);
    if (loom_chunk_keeps_gradient(chunk->layers, chunk->has_head, stage->shape.split_backward))
        gpt_carve(carver, &slot->d_out, rows);
    if (!stage->recompute)
        carve_saved(carver, stage, chunk, slot->saved);
}

static int64_t widest_mlp(const gpt_chunk *chunk)
{
    int64_t widest = 0;

    for (int64_t l = 0; l < chunk->layers; l++)
        widest = chunk->blocks[l].ffn > widest ? chunk->blocks[l].ffn : widest;
    return widest;
}

/* A layer with experts keeps what depends on the load in a record of its own: one for each micro-batch that it keeps something of, or one for all where
 * everything is recomputed. */
static loom_status open_records(gpt_stage *stage, gpt_chunk *chunk, gpt_saved *saved, bool shared)
{
    int64_t most = stage->shape.sizes.most_routed; /* of any rank's share, also of fewer tokens */

    for (int64_t l = 0; l < chunk->layers; l++) {
        const gpt_block *block = &chunk->blocks[l];

        if (!block->experts)
            continue;
        if (!shared) {
            TRY(loom_moe_record_open(block->experts, most, &saved[l].experts));
            continue;
        }
        if (!chunk->shared_record)
            TRY(loom_moe_record_open(block->experts, most, &chunk->shared_record));
        saved[l].experts = chunk->shared_record;
    }
    return LOOM_OK;
}

static loom_status open_all_records(gpt_stage *stage, gpt_chunk *chunk)
{
    for (int i = 0; i < chunk->slots; i++)
        TRY(open_records(stage, chunk, chunk->slot[i].saved, stage->recompute));
    for (int i = 0; i < chunk->reruns; i++)
        TRY(open_records(stage, chunk, chunk->rerun[i].saved, false));
    return LOOM_OK;
}

static loom_status open_tables(gpt_chunk *chunk)
{
    size_t layers = (size_t)chunk->layers + 1;
    bool complete = true;

    for (int i = 0; i < chunk->slots; i++) {
        chunk->slot[i].x = calloc(layers, sizeof *chunk->slot[i].x);
        chunk->slot[i].saved = calloc(layers, sizeof *chunk->slot[i].saved);
        complete &= chunk->slot[i].x && chunk->slot[i].saved;
    }
    for (int i = 0; i < chunk->reruns; i++)
        complete &= (chunk->rerun[i].saved = calloc(layers, sizeof *chunk->rerun[i].saved)) != NULL;
    return complete ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "chunk %d: no memory for its slots", chunk->index);
}

static void carve_chunk(gpt_carver *carver, const gpt_stage *stage, gpt_chunk *chunk, gpt_saved *shared)
{
    for (int i = 0; i < chunk->slots; i++)
        carve_slot(carver, stage, chunk, &chunk->slot[i]);
    if (stage->recompute && chunk->layers > 0)
        gpt_saved_carve(carver, &stage->shape, widest_mlp(chunk), shared);
    for (int i = 0; i < chunk->reruns; i++)
        carve_saved(carver, stage, chunk, chunk->rerun[i].saved);
}

static loom_status allocate_chunk(gpt_stage *stage, gpt_chunk *chunk)
{
    gpt_carver carver = {0};
    gpt_saved shared = {0};

    TRY(open_tables(chunk));
    carve_chunk(&carver, stage, chunk, &shared); /* counts */
    TRY(loom_alloc(stage->device, (size_t)carver.used * sizeof(float), LOOM_MEM_ACTIVATIONS, (void **)&chunk->memory));
    carver = (gpt_carver){.memory = chunk->memory};
    carve_chunk(&carver, stage, chunk, &shared);
    for (int i = 0; stage->recompute && i < chunk->slots; i++)
        for (int64_t l = 0; l < chunk->layers; l++)
            chunk->slot[i].saved[l] = shared;
    return open_all_records(stage, chunk);
}

/* --- what chunks share -------------------------------------------------------------------------------------------------------------- */

static loom_status allocate_workspace(gpt_stage *stage)
{
    gpt_workspace *w = &stage->workspace;
    float **const buffer[LOOM_WORK_BUFFERS] = {
        [LOOM_WORK_GATHERED] = &w->gathered_TD,   [LOOM_WORK_PARTIAL] = &w->partial_TD,          [LOOM_WORK_BRANCH] = &w->branch_TlD,
        [LOOM_WORK_QKV] = &w->qkv,                [LOOM_WORK_DQKV] = &w->d_qkv,                  [LOOM_WORK_DINNER] = &w->d_inner,
        [LOOM_WORK_COS] = &w->cos_SK,             [LOOM_WORK_SIN] = &w->sin_SK,                  [LOOM_WORK_EMBEDDING_D] = &stage->embedding_d,
        [LOOM_WORK_FINAL] = &stage->final_TD,     [LOOM_WORK_FINAL_NORM] = &stage->norm_TD,      [LOOM_WORK_MEAN] = &stage->mean_T,
        [LOOM_WORK_RSTD] = &stage->rstd_T,        [LOOM_WORK_LOSS] = &stage->loss_T,             [LOOM_WORK_SCRATCH] = &stage->scratch_4T};
    int64_t count[LOOM_WORK_BUFFERS], offset[LOOM_WORK_BUFFERS], used;

    loom_work_counts(stage->model, &stage->shape.sizes, stage->chunks[0].has_embedding, stage->head != NULL, loom_cp_saved(stage->shape.cp), count);
    used = loom_carve(count, LOOM_WORK_BUFFERS, offset);
    TRY(loom_alloc(stage->device, (size_t)used * sizeof(float), LOOM_MEM_WORKSPACE, (void **)&stage->workspace_memory));
    for (int i = 0; i < LOOM_WORK_BUFFERS; i++)
        *buffer[i] = count[i] > 0 ? stage->workspace_memory + offset[i] : NULL;
    if (!w->branch_TlD)
        w->branch_TlD = w->partial_TD; /* the sum over tp is taken in place */
    return LOOM_OK;
}

static loom_status allocate_logits(gpt_stage *stage)
{
    stage->logits_tokens = loom_logits_rows(&stage->shape.sizes);
    TRY(loom_alloc(stage->device, (size_t)(stage->logits_tokens * stage->head->rows) * sizeof(float), LOOM_MEM_LOGITS,
                   (void **)&stage->logits_TV));
    return loom_alloc(stage->device, sizeof *stage->loss_sum, LOOM_MEM_LOGITS, (void **)&stage->loss_sum);
}

loom_status gpt_stage_allocate_buffers(gpt_stage *stage)
{
    for (int c = 0; c < stage->n_chunks; c++)
        TRY(allocate_chunk(stage, &stage->chunks[c]));
    TRY(allocate_workspace(stage));
    return stage->head ? allocate_logits(stage) : LOOM_OK;
}

/* --- blocks that are run again -------------------------------------------------------------------------------------------------------- */

void gpt_rerun_take(gpt_chunk *chunk, gpt_slot *slot)
{
    for (int i = 0; i < chunk->reruns && !slot->rerun; i++)
        if (!chunk->rerun[i].taken)
            slot->rerun = &chunk->rerun[i];
    assert(slot->rerun || chunk->reruns == 0);
    if (slot->rerun)
        slot->rerun->taken = true;
}

void gpt_rerun_give_back(gpt_slot *slot)
{
    if (slot->rerun)
        slot->rerun->taken = false;
    slot->rerun = NULL;
}
