/* The layout as plain data: defaults, degrees, where a rank sits and who is in its groups. */
#include <rankloom/layout.h>

#include <assert.h>
#include <string.h>

const char *loom_axis_name(loom_axis axis)
{
    static const char *const names[LOOM_AXES] = {"tp", "cp", "dp", "pp", "etp", "ep", "edp"};

    return axis >= 0 && axis < LOOM_AXES ? names[axis] : "unknown axis";
}

const char *loom_schedule_kind_name(loom_schedule_kind kind)
{
    static const char *const names[LOOM_SCHEDULE_KINDS] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};

    return kind >= 0 && kind < LOOM_SCHEDULE_KINDS ? names[kind] : "unknown schedule";
}

bool loom_schedule_kind_splits(loom_schedule_kind kind)
{
    return kind == LOOM_SCHEDULE_ZB_H1 || kind == LOOM_SCHEDULE_ZB_V;
}

const char *loom_recompute_name(loom_recompute recompute)
{
    static const char *const names[] = {"none", "selective", "full"};

    return recompute >= 0 && recompute <= LOOM_RECOMPUTE_FULL ? names[recompute] : "unknown recompute";
}

const char *loom_cp_kind_name(loom_cp_kind kind)
{
    static const char *const names[] = {"ring", "allgather", "ulysses", "hybrid", "auto"};

    return kind >= 0 && kind <= LOOM_CP_AUTO ? names[kind] : "unknown cp kind";
}

void loom_layout_default(const loom_model *model, loom_layout *layout)
{
    *layout = (loom_layout){
        .tp = 1, .cp = 1, .dp = 1, .pp = 1, .vpp = 1, .ep = 1, .etp = 1,
        .schedule = LOOM_SCHEDULE_1F1B,
        .recompute = LOOM_RECOMPUTE_NONE,
        .cp_kind = LOOM_CP_RING,
        .micro_batch = 1,
        .seq = model ? model->seq : 0,
        .order = {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP},
    };
}

int loom_layout_world(const loom_layout *layout)
{
    return layout->tp * layout->cp * layout->dp * layout->pp;
}

int64_t loom_layout_micro_batches(const loom_layout *layout)
{
    int64_t unit = layout->micro_batch * layout->dp;

    return unit > 0 ? layout->global_batch / unit : 0;
}

int64_t loom_layout_padded_seq(const loom_layout *layout, int64_t seq)
{
    int64_t unit = (layout->cp > 1 ? 2 * (int64_t)layout->cp : 1) * (layout->sequence_parallel ? layout->tp : 1);

    return (seq + unit - 1) / unit * unit;
}

static int ranks_of_stage(const loom_layout *layout)
{
    return layout->tp * layout->cp * layout->dp;
}

int loom_layout_edp(const loom_layout *layout)
{
    return ranks_of_stage(layout) / (layout->ep * layout->etp);
}

int loom_layout_stage_of_chunk(const loom_layout *layout, int chunk)
{
    int row = chunk / layout->pp, column = chunk % layout->pp;
    bool folds_back = layout->schedule == LOOM_SCHEDULE_ZB_V && row % 2 == 1;

    return folds_back ? layout->pp - 1 - column : column;
}

int64_t loom_layout_first_layer(const loom_layout *layout, int chunk)
{
    int64_t first = 0;

    for (int c = 0; c < chunk; c++)
        first += layout->chunk_layers[c];
    return first;
}

int loom_layout_degree(const loom_layout *layout, loom_axis axis)
{
    switch (axis) {
    case LOOM_AXIS_TP:
        return layout->tp;
    case LOOM_AXIS_CP:
        return layout->cp;
    case LOOM_AXIS_DP:
        return layout->dp;
    case LOOM_AXIS_PP:
        return layout->pp;
    case LOOM_AXIS_ETP:
        return layout->etp;
    case LOOM_AXIS_EP:
        return layout->ep;
    case LOOM_AXIS_EDP:
        return loom_layout_edp(layout);
    case LOOM_AXES:
        break;
    }
    return 0;
}

/* The ranks of a stage are numbered tp fastest, then cp, then dp, whatever `order` says; the expert axes cut those numbers again, etp
 * fastest. So where ranks sit changes what travels far, never which rank holds which expert with whom. */
static void fold(const loom_layout *layout, int at[LOOM_AXES])
{
    int place = at[LOOM_AXIS_TP] + layout->tp * (at[LOOM_AXIS_CP] + layout->cp * at[LOOM_AXIS_DP]);

    at[LOOM_AXIS_ETP] = place % layout->etp;
    at[LOOM_AXIS_EP] = place / layout->etp % layout->ep;
    at[LOOM_AXIS_EDP] = place / (layout->etp * layout->ep);
}

static void unfold(const loom_layout *layout, int at[LOOM_AXES])
{
    int place = at[LOOM_AXIS_ETP] + layout->etp * (at[LOOM_AXIS_EP] + layout->ep * at[LOOM_AXIS_EDP]);

    at[LOOM_AXIS_TP] = place % layout->tp;
    at[LOOM_AXIS_CP] = place / layout->tp % layout->cp;
    at[LOOM_AXIS_DP] = place / (layout->tp * layout->cp);
}

loom_coords loom_layout_coords(const loom_layout *layout, int rank)
{
    loom_coords coords = {{0}};

    assert(rank >= 0 && rank < loom_layout_world(layout));
    for (int i = 0; i < 4; i++) {
        int degree = loom_layout_degree(layout, layout->order[i]);
        coords.at[layout->order[i]] = rank % degree;
        rank /= degree;
    }
    fold(layout, coords.at);
    return coords;
}

int loom_layout_rank(const loom_layout *layout, const int at[4])
{
    int rank = 0;

    for (int i = 3; i >= 0; i--)
        rank = rank * loom_layout_degree(layout, layout->order[i]) + at[layout->order[i]];
    return rank;
}

int loom_layout_group(const loom_layout *layout, loom_axis axis, int rank, int *members)
{
    loom_coords coords = loom_layout_coords(layout, rank);
    int degree = loom_layout_degree(layout, axis);

    for (int i = 0; i < degree; i++) {
        coords.at[axis] = i;
        if (axis >= LOOM_AXIS_ETP)
            unfold(layout, coords.at);
        members[i] = loom_layout_rank(layout, coords.at);
    }
    return degree;
}

int loom_layout_gradient_group(const loom_layout *layout, int rank, int *members)
{
    loom_coords coords = loom_layout_coords(layout, rank);
    int count = 0;

    for (int d = 0; d < layout->dp; d++)
        for (int c = 0; c < layout->cp; c++) {
            coords.at[LOOM_AXIS_DP] = d;
            coords.at[LOOM_AXIS_CP] = c;
            members[count++] = loom_layout_rank(layout, coords.at);
        }
    return count;
}

loom_range loom_cut(int64_t n, int parts, int index)
{
    /* n * index stays far below 2^63: no tensor has 2^40 rows over 2^20 ranks. */
    return (loom_range){n * index / parts, n * (index + 1) / parts};
}
