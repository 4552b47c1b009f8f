/* Sizes of what layers of experts keep. */
#include <rankloom/sizes.h>

void loom_expert_shape_of(const loom_model *m, const loom_layout *l, const loom_coords *here, loom_expert_shape *s)
{
    loom_rank_shape rank;

    loom_rank_shape_of(m, l, here, l->micro_batch, l->seq, &rank);
    *s = (loom_expert_shape){.ep = l->ep,
                             .etp = l->etp,
                             .experts = m->moe.experts,
                             .here = m->moe.experts / l->ep,
                             .top_k = m->moe.top_k,
                             .hidden = m->hidden,
                             .ffn = rank.expert_ffn,
                             .units = m->moe.balance == LOOM_BALANCE_SEQUENCE ? l->micro_batch : 1,
                             .capacity = rank.most_routed,
                             .split_backward = loom_schedule_kind_splits(l->schedule)};
}

void loom_record_counts(const loom_expert_shape *s, int64_t floats[LOOM_RECORD_FLOATS], int64_t integers[LOOM_RECORD_INTEGERS])
{
    int64_t choices = s->capacity * s->top_k;

    floats[LOOM_RECORD_LOGITS] = floats[LOOM_RECORD_SCORES] = floats[LOOM_RECORD_DLOGITS] = s->capacity * s->experts;
    floats[LOOM_RECORD_LSE] = s->capacity;
    floats[LOOM_RECORD_WEIGHTS] = floats[LOOM_RECORD_DWEIGHTS] = choices;
    floats[LOOM_RECORD_RETURNED] = choices * s->hidden;
    floats[LOOM_RECORD_STATS] = 2 * s->units * s->experts;
    floats[LOOM_RECORD_SLOPES] = s->units * s->experts;
    integers[LOOM_RECORD_IDS] = integers[LOOM_RECORD_ROWS] = integers[LOOM_RECORD_ORDER] = choices;
    integers[LOOM_RECORD_OFFSETS] = s->experts + 1;
    integers[LOOM_RECORD_COUNTS] = s->experts;
    integers[LOOM_RECORD_TABLES] = s->experts * s->etp;
    integers[LOOM_RECORD_FIRST_ROWS] = s->here + 1;
}

int64_t loom_expert_scratch(const loom_expert_shape *s)
{
    return s->split_backward && s->ffn > s->hidden ? s->ffn : s->hidden;
}

void loom_rows_counts(const loom_expert_shape *s, int64_t choices, int64_t arrived, int64_t rows, int64_t count[LOOM_ROWS_BUFFERS])
{
    bool travels = s->ep > 1 || s->etp > 1, sorts = travels && s->here > 1; /* rows of one local expert need no sorting */

    count[LOOM_ROWS_X] = rows * s->hidden;
    count[LOOM_ROWS_WIDE] = 2 * rows * s->ffn;
    count[LOOM_ROWS_ACTIVE] = rows * s->ffn;
    count[LOOM_ROWS_OUT] = s->split_backward ? rows * s->hidden : 0;
    count[LOOM_ROWS_OF_EXPERT] = rows * loom_expert_scratch(s);
    count[LOOM_ROWS_PLACES] = sorts ? 2 * rows : 0;
    count[LOOM_ROWS_LEAVING] = travels ? choices * s->hidden : 0;
    count[LOOM_ROWS_ARRIVED] = s->etp > 1 || sorts ? arrived * s->hidden : 0;
    count[LOOM_ROWS_GATHERED] = s->etp > 1 && sorts ? rows * s->hidden : 0;
    count[LOOM_ROWS_PARTIAL] = s->etp > 1 ? arrived * s->etp * s->hidden : 0;
}

/* Balanced, as many rows come in over ep as go out, and every etp rank sees those of all. */
void loom_rows_balanced(const loom_expert_shape *s, int64_t count[LOOM_ROWS_BUFFERS])
{
    int64_t choices = s->capacity * s->top_k;

    loom_rows_counts(s, choices, choices, choices * s->etp, count);
}

int64_t loom_rows_grown(int64_t balanced, int64_t count)
{
    int64_t step = loom_aligned(balanced / 8 + 1);

    return count <= balanced ? balanced : balanced + (count - balanced + step - 1) / step * step;
}
