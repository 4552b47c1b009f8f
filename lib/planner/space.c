/* Enumeration of legal degrees, one function a field, in the order in which a layout is built up. */
#include "planner/space.h"

#include <rankloom/sizes.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(loom_choices *choices, int value)
{
    if (choices->count < LOOM_MOST_CHOICES)
        choices->at[choices->count++] = value;
}

void loom_choices_add_new(loom_choices *choices, const loom_choices *more)
{
    for (int i = 0; i < more->count; i++) {
        bool known = false;
        for (int j = 0; j < choices->count && !known; j++)
            known = choices->at[j] == more->at[i];
        if (!known)
            add(choices, more->at[i]);
    }
}

static bool tp_fits(const loom_model *m, int64_t tp)
{
    bool shared = m->moe.experts == 0 || m->moe.shared == 0 || tp <= m->moe.shared_ffn;
    return m->heads % tp == 0 && (m->kv_heads % tp == 0 || tp % m->kv_heads == 0) && (m->ffn == 0 || tp <= m->ffn) && shared &&
           tp <= m->vocab;
}

void loom_space_tp(const loom_space *s, loom_choices *choices)
{
    choices->count = 0;
    for (int tp = 1; tp <= s->world; tp++)
        if (s->world % tp == 0 && tp_fits(&s->job->model, tp) && loom_limits_allow(s->limits, LOOM_FIELD_TP, tp))
            add(choices, tp);
}

void loom_space_cp(const loom_space *s, int tp, loom_choices *choices)
{
    int rest = s->world / tp;

    choices->count = 0;
    for (int cp = 1; cp <= rest; cp++)
        if (rest % cp == 0 && (cp == 1 || s->job->seq % (2 * (int64_t)cp) == 0) && loom_limits_allow(s->limits, LOOM_FIELD_CP, cp))
            add(choices, cp);
}

void loom_space_sequence_parallel(const loom_space *s, int tp, int cp, loom_choices *choices)
{
    int64_t unit = (cp > 1 ? 2 * (int64_t)cp : 1) * tp;

    choices->count = 0;
    if (loom_limits_allow(s->limits, LOOM_FIELD_SEQUENCE_PARALLEL, false))
        add(choices, false);
    if (tp > 1 && s->job->seq % unit == 0 && loom_limits_allow(s->limits, LOOM_FIELD_SEQUENCE_PARALLEL, true))
        add(choices, true);
}

static bool heads_split(const loom_model *m, int64_t parts, int tp)
{
    return loom_cp_heads_split(m->heads, m->kv_heads, parts * tp);
}

static bool has_inner(const loom_model *m, int tp, int cp)
{
    for (int u = 2; u < cp; u++)
        if (cp % u == 0 && heads_split(m, u, tp))
            return true;
    return false;
}

void loom_space_cp_kind(const loom_space *s, int tp, int cp, loom_choices *choices)
{
    const loom_model *m = &s->job->model;

    choices->count = 0;
    for (int kind = LOOM_CP_RING; kind <= LOOM_CP_HYBRID; kind++) {
        bool legal = cp == 1                   ? kind == LOOM_CP_RING
                     : kind == LOOM_CP_ULYSSES ? heads_split(m, cp, tp)
                     : kind == LOOM_CP_HYBRID  ? has_inner(m, tp, cp)
                                               : true;
        if (legal && (cp == 1 || loom_limits_allow(s->limits, LOOM_FIELD_CP_KIND, kind)))
            add(choices, kind);
    }
}

void loom_space_recompute(const loom_space *s, loom_choices *choices)
{
    choices->count = 0;
    for (int recompute = LOOM_RECOMPUTE_NONE; recompute <= LOOM_RECOMPUTE_FULL; recompute++)
        if (loom_limits_allow(s->limits, LOOM_FIELD_RECOMPUTE, recompute))
            add(choices, recompute);
}

void loom_space_pp(const loom_space *s, int tp, int cp, loom_choices *choices)
{
    int rest = s->world / (tp * cp);

    choices->count = 0;
    for (int pp = 1; pp <= rest && pp <= s->job->model.layers && pp <= LOOM_MAX_STAGES; pp++) {
        int dp = rest / pp;
        if (rest % pp == 0 && s->job->global_batch % dp == 0 && loom_limits_allow(s->limits, LOOM_FIELD_PP, pp) &&
            loom_limits_allow(s->limits, LOOM_FIELD_DP, dp))
            add(choices, pp);
    }
}

void loom_space_micro_batch(const loom_space *s, int dp, loom_choices *choices)
{
    int64_t share = s->job->global_batch / dp;

    choices->count = 0;
    for (int64_t b = 1; b <= share; b++)
        if (share % b == 0 && loom_limits_allow(s->limits, LOOM_FIELD_MICRO_BATCH, b))
            add(choices, (int)b);
}

void loom_space_etp(const loom_space *s, int stage_ranks, loom_choices *choices)
{
    choices->count = 0;
    for (int etp = 1; etp <= (s->job->model.moe.experts ? stage_ranks : 1); etp++)
        if (stage_ranks % etp == 0 && (etp == 1 || etp <= s->job->model.moe.ffn) && loom_limits_allow(s->limits, LOOM_FIELD_ETP, etp))
            add(choices, etp);
}

void loom_space_ep(const loom_space *s, int etp, int stage_ranks, loom_choices *choices)
{
    int64_t experts = s->job->model.moe.experts;
    int most = experts == 0 ? 1 : experts < stage_ranks / etp ? (int)experts : stage_ranks / etp;

    choices->count = 0;
    for (int ep = 1; ep <= most; ep++)
        if ((experts == 0 || experts % ep == 0) && stage_ranks % (ep * etp) == 0 && loom_limits_allow(s->limits, LOOM_FIELD_EP, ep))
            add(choices, ep);
}

void loom_space_zero(const loom_space *s, int copies, loom_choices *choices)
{
    choices->count = 0;
    for (int zero = 0; zero <= (copies > 1 ? 3 : 0); zero++)
        if (copies == 1 || loom_limits_allow(s->limits, LOOM_FIELD_ZERO, zero))
            add(choices, zero);
}

static void add_schedule(const loom_space *s, loom_schedules *schedules, loom_schedule_kind kind, loom_pipeline pipeline, int vpp)
{
    if (schedules->count == LOOM_MOST_CHOICES || !loom_limits_allow(s->limits, LOOM_FIELD_VPP, vpp) ||
        !loom_limits_allow(s->limits, LOOM_FIELD_SCHEDULE, kind))
        return;
    schedules->pipeline[schedules->count] = pipeline;
    schedules->vpp[schedules->count++] = vpp;
}

void loom_space_schedules(const loom_space *s, int pp, int64_t micro_batches, loom_schedules *schedules)
{
    int most = (int)s->job->model.layers / pp;

    schedules->count = 0;
    add_schedule(s, schedules, LOOM_SCHEDULE_1F1B, LOOM_PIPE_1F1B, 1);
    if (pp == 1)
        return; /* the others are the same thing */
    add_schedule(s, schedules, LOOM_SCHEDULE_GPIPE, LOOM_PIPE_GPIPE, 1);
    add_schedule(s, schedules, LOOM_SCHEDULE_ZB_H1, LOOM_PIPE_ZB_H1, 1);
    if (most >= 2)
        add_schedule(s, schedules, LOOM_SCHEDULE_ZB_V, LOOM_PIPE_ZB_V, 2);
    for (int vpp = 2; micro_batches % pp == 0 && vpp <= most && (int64_t)pp * vpp <= LOOM_MAX_STAGES; vpp++)
        add_schedule(s, schedules, LOOM_SCHEDULE_INTERLEAVED, LOOM_PIPE_INTERLEAVED, vpp);
}

static void permute(loom_orders *orders, loom_axis *order, int at, int n)
{
    if (at >= n || at >= 4) {
        memcpy(orders->at[orders->count++], order, 4 * sizeof *order);
        return;
    }
    for (int i = at; i < n && i < 4; i++) { /* rotate each remaining axis to the front, so that the given order comes first */
        loom_axis chosen = order[i];
        memmove(&order[at + 1], &order[at], (size_t)(i - at) * sizeof *order);
        order[at] = chosen;
        permute(orders, order, at + 1, n);
        memmove(&order[at], &order[at + 1], (size_t)(i - at) * sizeof *order);
        order[i] = chosen;
    }
}

void loom_space_orders(int tp, int cp, int dp, int pp, loom_orders *orders)
{
    const int degree[4] = {[LOOM_AXIS_TP] = tp, [LOOM_AXIS_CP] = cp, [LOOM_AXIS_DP] = dp, [LOOM_AXIS_PP] = pp};
    loom_axis order[4];
    int n = 0, behind = 4;

    for (int axis = 0; axis < 4; axis++)
        if (degree[axis] > 1)
            order[n++] = axis;
    for (int axis = 3; axis >= 0; axis--)
        if (degree[axis] == 1)
            order[--behind] = axis;
    orders->count = 0;
    permute(orders, order, 0, n);
}

/* Values of one degree over all others. */
static void values_of(const loom_space *s, loom_field field, loom_choices *values)
{
    loom_choices tp, cp, some;

    values->count = 0;
    loom_space_tp(s, &tp);
    for (int i = 0; i < tp.count; i++) {
        loom_space_cp(s, tp.at[i], &cp);
        for (int j = 0; j < cp.count; j++) {
            loom_space_pp(s, tp.at[i], cp.at[j], &some);
            if (some.count == 0)
                continue;
            if (field == LOOM_FIELD_PP)
                loom_choices_add_new(values, &some);
            for (int k = 0; k < some.count && field == LOOM_FIELD_DP; k++)
                loom_choices_add_new(values, &(loom_choices){{s->world / (tp.at[i] * cp.at[j] * some.at[k])}, 1});
            if (field == LOOM_FIELD_TP || field == LOOM_FIELD_CP)
                loom_choices_add_new(values, &(loom_choices){{field == LOOM_FIELD_TP ? tp.at[i] : cp.at[j]}, 1});
        }
    }
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

char *loom_space_values(const loom_space *s, loom_field field, char *text, size_t bytes)
{
    static const char *const names[] = {[LOOM_FIELD_TP] = "tp", [LOOM_FIELD_CP] = "cp", [LOOM_FIELD_DP] = "dp", [LOOM_FIELD_PP] = "pp"};
    enum { SHOWN = 8 };
    loom_choices values;
    size_t length = 0;

    text[0] = '\0';
    if (field != LOOM_FIELD_TP && field != LOOM_FIELD_CP && field != LOOM_FIELD_DP && field != LOOM_FIELD_PP)
        return text;
    values_of(s, field, &values);
    qsort(values.at, (size_t)values.count, sizeof values.at[0], ascending);
    for (int i = 0; i < values.count && i < SHOWN && length < bytes; i++) {
        const char *before = i == 0 ? "" : i == values.count - 1 ? " or " : ", ";
        length += (size_t)snprintf(text + length, bytes - length, "%s%s%d", i ? "" : names[field], i ? before : " ", values.at[i]);
    }
    if (values.count > SHOWN && length < bytes)
        snprintf(text + length, bytes - length, " …");
    return text;
}

/* Ways to fold experts onto the ranks of a stage. */
static uint64_t count_folds(const loom_space *s, int stage_ranks)
{
    loom_choices etp, ep;
    uint64_t count = 0;

    loom_space_etp(s, stage_ranks, &etp);
    for (int i = 0; i < etp.count; i++) {
        loom_space_ep(s, etp.at[i], stage_ranks, &ep);
        count += (uint64_t)ep.count;
    }
    return count;
}

/* Ways to run a pipeline of `pp` stages: micro-batch and schedule together. */
static uint64_t count_runs(const loom_space *s, int pp, int dp)
{
    loom_choices micro_batch;
    loom_schedules schedules;
    uint64_t count = 0;

    loom_space_micro_batch(s, dp, &micro_batch);
    for (int i = 0; i < micro_batch.count; i++) {
        loom_space_schedules(s, pp, s->job->global_batch / dp / micro_batch.at[i], &schedules);
        count += (uint64_t)schedules.count;
    }
    return count;
}

uint64_t loom_space_count(const loom_space *s)
{
    loom_choices tp, cp, sp, kind, recompute, pp, zero;
    loom_orders orders;
    uint64_t count = 0;

    loom_space_tp(s, &tp);
    loom_space_recompute(s, &recompute);
    for (int i = 0; i < tp.count; i++) {
        loom_space_cp(s, tp.at[i], &cp);
        for (int j = 0; j < cp.count; j++) {
            int t = tp.at[i], c = cp.at[j];
            loom_space_sequence_parallel(s, t, c, &sp);
            loom_space_cp_kind(s, t, c, &kind);
            loom_space_pp(s, t, c, &pp);
            for (int k = 0; k < pp.count; k++) {
                int dp = s->world / (t * c * pp.at[k]);
                loom_space_zero(s, dp * c, &zero);
                loom_space_orders(t, c, dp, pp.at[k], &orders);
                count += (uint64_t)(sp.count * kind.count * recompute.count * zero.count * orders.count) * count_folds(s, t * c * dp) *
                         count_runs(s, pp.at[k], dp);
            }
        }
    }
    return count;
}
