/* What is split by the vocabulary: the embedding, the head, and the cross-entropy over logits that no rank ever sees whole. */
#include <rankloom/sizes.h>
#include <rankloom/tp.h>

#include "core/try.h"

#include <string.h>

int64_t loom_tp_vocab_rows(const loom_tp *tp, int64_t vocab)
{
    return loom_vocab_rows(vocab, tp->size);
}

loom_status loom_vocab_init(loom_vocab_matrix *matrix, loom_tp *tp, const loom_vocab_config *config)
{
    int64_t shape[2] = {config->vocab, config->hidden};
    loom_shard *shard = &matrix->weight.shard;
    int64_t end;

    if (config->vocab < 1 || config->hidden < 1)
        return loom_fail(LOOM_E_INVALID, "%s: vocab %lld and hidden %lld must be positive", config->name, (long long)config->vocab,
                         (long long)config->hidden);
    memset(matrix, 0, sizeof *matrix);
    matrix->tp = tp;
    matrix->vocab = config->vocab;
    matrix->hidden = config->hidden;
    matrix->rows = loom_tp_vocab_rows(tp, config->vocab);
    matrix->first = tp->rank * matrix->rows < config->vocab ? tp->rank * matrix->rows : config->vocab;
    end = matrix->first + matrix->rows < config->vocab ? matrix->first + matrix->rows : config->vocab;
    matrix->real_rows = end - matrix->first;

    loom_tp_replicated(tp, config->name, 2, shape, shard);
    shard->split_dim = 0;
    shard->n_ranges = 1;
    shard->ranges[0] = (loom_range){matrix->first, end};
    shard->padding = matrix->rows - matrix->real_rows;
    shard->holders = 1;
    shard->holder = 0;
    shard->gradient = LOOM_GRADIENT_WHOLE;
    shard->decay = true;
    shard->tied = config->tied;
    shard->tied_owner = config->tied_owner;
    shard->init.kind = LOOM_INIT_NORMAL;
    shard->init.std = config->init_std;
    return LOOM_OK;
}

loom_status loom_vocab_declare(loom_vocab_matrix *matrix, loom_param_list *params)
{
    return loom_param_list_add(params, &matrix->weight);
}

loom_status loom_vocab_embed(const loom_vocab_matrix *matrix, const int32_t *tokens_T, int64_t tokens, float *y_partial)
{
    loom_tp *tp = matrix->tp;

    return tp->kernels->embedding(tp->kernels,
                                  &(loom_embedding_args){.y_TD = y_partial,
                                                         .table_VD = matrix->weight.value,
                                                         .ids_T = tokens_T,
                                                         .tokens = tokens,
                                                         .hidden = matrix->hidden,
                                                         .first = matrix->first,
                                                         .rows = matrix->real_rows},
                                  tp->compute);
}

loom_status loom_vocab_embed_backward(loom_vocab_matrix *matrix, const int32_t *tokens_T, int64_t tokens, const float *dy_full)
{
    loom_tp *tp = matrix->tp;

    return tp->kernels->embedding_backward(tp->kernels,
                                           &(loom_embedding_backward_args){.dtable_VD = matrix->weight.gradient,
                                                                           .dy_TD = dy_full,
                                                                           .ids_T = tokens_T,
                                                                           .tokens = tokens,
                                                                           .hidden = matrix->hidden,
                                                                           .first = matrix->first,
                                                                           .rows = matrix->real_rows},
                                           tp->compute);
}

/* The products run over the real rows only; columns beyond them are padding that no kernel reads. */
loom_status loom_vocab_logits(const loom_vocab_matrix *matrix, const float *x_full, int64_t tokens, float *logits_TV)
{
    loom_tp *tp = matrix->tp;

    return tp->kernels->gemm(tp->kernels,
                             &(loom_gemm_args){.c_MN = logits_TV,
                                               .a_MK = x_full,
                                               .b_KN = matrix->weight.value,
                                               .m = tokens,
                                               .n = matrix->real_rows,
                                               .k = matrix->hidden,
                                               .ldc = matrix->rows,
                                               .transpose_b = true},
                             tp->compute);
}

loom_status loom_vocab_logits_backward_input(const loom_vocab_matrix *matrix, const float *dlogits_TV, int64_t tokens, float *dx_full)
{
    loom_tp *tp = matrix->tp;

    return tp->kernels->gemm(tp->kernels,
                             &(loom_gemm_args){.c_MN = dx_full,
                                               .a_MK = dlogits_TV,
                                               .b_KN = matrix->weight.value,
                                               .m = tokens,
                                               .n = matrix->hidden,
                                               .k = matrix->real_rows,
                                               .lda = matrix->rows},
                             tp->compute);
}

loom_status loom_vocab_logits_backward_weight(loom_vocab_matrix *matrix, const float *x_full, const float *dlogits_TV, int64_t tokens)
{
    loom_tp *tp = matrix->tp;

    return tp->kernels->gemm(tp->kernels,
                             &(loom_gemm_args){.c_MN = matrix->weight.gradient,
                                               .a_MK = dlogits_TV,
                                               .b_KN = x_full,
                                               .m = matrix->real_rows,
                                               .n = matrix->hidden,
                                               .k = tokens,
                                               .lda = matrix->rows,
                                               .transpose_a = true,
                                               .accumulate = true},
                             tp->compute);
}

static loom_range vocab_columns(const loom_tp *tp, int64_t vocab, int64_t columns)
{
    loom_range range = {tp->rank * columns, (tp->rank + 1) * columns};

    range.begin = range.begin < vocab ? range.begin : vocab;
    range.end = range.end < vocab ? range.end : vocab;
    return range;
}

loom_status loom_tp_cross_entropy(loom_tp *tp, int64_t vocab, int64_t columns, float *logits_TV, const int32_t *target_T, int64_t tokens,
                                  const float *weight_T, float *loss_T, float *scratch)
{
    loom_comm *comm = tp->mesh->axis[LOOM_AXIS_TP];
    loom_range mine = vocab_columns(tp, vocab, columns);
    float *sum_T = scratch, *hit_T = sum_T + tokens, *max_T = hit_T + tokens, *local_max_T = max_T + tokens;
    loom_kernels *k = tp->kernels;
    loom_status status;

    if (columns != loom_tp_vocab_rows(tp, vocab))
        return loom_fail(LOOM_E_INVALID,
                         "cross-entropy: logits have %lld columns, a shard of vocab %lld over tp=%d has %lld; gathered logits are not a shard",
                         (long long)columns, (long long)vocab, tp->size, (long long)loom_tp_vocab_rows(tp, vocab));
    if (tp->size == 1)
        return k->xent(k,
                       &(loom_xent_args){.loss_T = loss_T,
                                         .logits_TV = logits_TV,
                                         .targets_T = target_T,
                                         .weight_T = weight_T,
                                         .tokens = tokens,
                                         .cols = vocab,
                                         .ld = columns},
                       tp->compute);
    LOOM_TRY(k->xent_local(k,
                           &(loom_xent_local_args){.max_T = local_max_T,
                                                   .sum_T = sum_T,
                                                   .target_T = hit_T,
                                                   .logits_TV = logits_TV,
                                                   .targets_T = target_T,
                                                   .tokens = tokens,
                                                   .cols = mine.end - mine.begin,
                                                   .ld = columns,
                                                   .first = mine.begin},
                           tp->compute));
    LOOM_TRY(loom_all_reduce(comm, local_max_T, max_T, (size_t)tokens, LOOM_F32, LOOM_MAX, tp->compute));
    LOOM_TRY(k->xent_rebase(
        k, &(loom_xent_rebase_args){.sum_T = sum_T, .local_max_T = local_max_T, .global_max_T = max_T, .tokens = tokens}, tp->compute));
    LOOM_TRY(loom_all_reduce(comm, sum_T, sum_T, (size_t)(2 * tokens), LOOM_F32, LOOM_SUM, tp->compute)); /* sums and target logits */
    return k->xent_gradient(k,
                            &(loom_xent_gradient_args){.logits_TV = logits_TV,
                                                       .loss_T = loss_T,
                                                       .max_T = max_T,
                                                       .sum_T = sum_T,
                                                       .target_T = hit_T,
                                                       .targets_T = target_T,
                                                       .weight_T = weight_T,
                                                       .tokens = tokens,
                                                       .cols = mine.end - mine.begin,
                                                       .ld = columns,
                                                       .first = mine.begin},
                            tp->compute);

fail:
    return status;
}
