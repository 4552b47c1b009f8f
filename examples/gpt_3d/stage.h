/* What one pipeline rank runs: its chunks of layers, the embedding and the head where they fall, as callbacks for loom_pipeline. */
#ifndef GPT_3D_STAGE_H
#define GPT_3D_STAGE_H

#include "block.h"
#include "data.h"

/* The tokens of one step on this rank, micro-batch after micro-batch: [micro_batches, sequences, local_seq], of each sequence what loom_cp_split()
 * gives it. Targets of -100 do not count: padding, and what is behind a document. */
typedef struct gpt_batch {
    const int32_t *tokens, *targets;
    const int32_t *positions; /* of each token in its document; NULL: in its sequence */
    const int32_t *documents; /* NULL: a sequence is one */
    int64_t counted;          /* targets that count, in the global batch */
} gpt_batch;

/* What blocks that are run again leave for the weights' half of a split backward. */
typedef struct gpt_rerun {
    gpt_saved *saved; /* [layers] */
    bool taken;
} gpt_rerun;

/* Memory of one micro-batch in flight on one chunk. */
typedef struct gpt_slot {
    float **x;        /* [layers] input of each block, and after its backward, where that is split, the gradient of it; x[0] of a chunk without
                         embedding is the pipeline's buffer */
    gpt_saved *saved; /* [layers], or one for all where everything is recomputed */
    gpt_rerun *rerun; /* between the halves of its backward, where everything is recomputed; else NULL */
    float *d_out;     /* gradient of the last block's output: what the head left, or what the weights' half reads again; else NULL */
} gpt_slot;

typedef struct gpt_chunk {
    int index; /* global, in model order */
    int64_t first_layer, layers;
    bool has_embedding, has_head;
    gpt_block *blocks;
    int *first_param; /* [layers + 1] where each block's parameters begin in stage->params */
    int first_unit;   /* of its blocks, one each */
    int slots;
    gpt_slot *slot;
    loom_moe_record *shared_record; /* of all layers with experts, where everything is recomputed */
    int reruns;                     /* 0 where nothing is recomputed or backward is whole */
    gpt_rerun *rerun;
    float *memory;
} gpt_chunk;

typedef struct gpt_stage {
    const loom_model *model;
    loom_mesh *mesh;
    loom_device *device;
    loom_tp *tp;
    loom_ep *ep; /* NULL: the model has no experts */
    gpt_shape shape;
    int32_t separator; /* that ends a document, or GPT_NO_SEPARATOR */
    bool recompute;    /* keep only the input of every block, run it again in backward */
    int64_t micro_batches;

    gpt_chunk *chunks; /* those of this stage */
    int n_chunks;
    loom_vocab_matrix embedding, head_matrix;
    loom_vocab_matrix *head; /* head_matrix, or the embedding where both are one */
    loom_param positions;
    gpt_norm final_norm;
    int embedding_params[2], head_params[2]; /* first and end in params */
    int embedding_unit, head_unit;           /* one where they share a matrix */
    int units;                               /* of parameters that are used together */
    loom_param_list params;                  /* in forward order */

    gpt_workspace workspace;
    float *workspace_memory;
    float *embedding_d; /* gradient of the embedding's output */
    float *final_TD, *norm_TD, *mean_T, *rstd_T, *loss_T, *scratch_4T; /* of the head */
    float *logits_TV;
    int64_t logits_tokens; /* rows of logits at a time */
    double *loss_sum;       /* of the step, on the device */

    gpt_batch batch;
    loom_dp *dp; /* told when parameters are used, and when gradients are complete; NULL: nobody is */
    loom_monitor *monitor;
} gpt_stage;

/* How this run treats its tokens. */
typedef struct gpt_stage_options {
    int32_t separator;      /* that ends a document, or GPT_NO_SEPARATOR */
    loom_ep_config experts; /* how tokens reach them */
} gpt_stage_options;

/* Declares parameters, allocates nothing of the device yet: loom_dp_open(&stage->params) comes between. */
loom_status gpt_stage_open(const loom_model *model, loom_mesh *mesh, loom_tp *tp, const loom_schedule *schedule, const gpt_stage_options *options,
                           gpt_stage **stage);
/* Activations, workspace, logits. */
loom_status gpt_stage_allocate(gpt_stage *stage);
void gpt_stage_close(gpt_stage *stage); /* accepts NULL */

/* Elements that travel from chunk to chunk. */
int64_t gpt_stage_boundary(const gpt_stage *stage);
void gpt_stage_ops(gpt_stage *stage, loom_stage_ops *ops);

/* Before a step: the data, and the loss sum back to 0. */
loom_status gpt_stage_begin(gpt_stage *stage, const gpt_batch *batch);
/* Sum of the losses of this rank's tokens (0 where it has no head). Waits for the compute stream. */
loom_status gpt_stage_loss(gpt_stage *stage, double *loss_sum);

/* Forward without backward, of whole sequences, tokens [sequences, seq], no more and no longer than training's: for text and for tests. Every rank of a
 * data-parallel replica (tp x cp x pp) calls; with experts every rank of the world, since they may be on any. logits [rows, vocab] of the tokens first_row .. first_row + rows - 1, on every rank. */
loom_status gpt_stage_logits(gpt_stage *stage, const int32_t *tokens, int64_t sequences, int64_t seq, int64_t first_row, int64_t rows,
                             float *logits);

#endif
