/* A rehearsal in words, and as a trace. */
#include "planner/rehearse.h"

#include <math.h>
#include <stdlib.h>

#include "core/text.h"
#include "planner/goodput.h"

/* --- the critical path ------------------------------------------------------------------------------------------------------- */

/* How much of the path lies on each stage, and between stages. */
typedef struct path {
    double *on_us;      /* [stages] */
    double between_us;  /* messages under way */
    int hops;           /* from stage to stage */
    int first_stage, first_index;
} path;

static void walk(const loom_rehearsing *r, const loom_timeline *line, int stage, path *p)
{
    int index = r->schedule->stage[stage].count - 1;

    while (index > 0 && line->at[stage][index].end_us < line->last_us[stage])
        index--;
    for (;;) {
        const loom_action_time *t = &line->at[stage][index];
        p->on_us[stage] += t->end_us - t->start_us;
        p->first_stage = stage;
        p->first_index = index;
        if (t->cause_stage < 0)
            return;
        const loom_action_time *cause = &line->at[t->cause_stage][t->cause_index];
        p->between_us += fmax(0, t->start_us - cause->end_us);
        p->hops += t->cause_stage != stage;
        stage = t->cause_stage;
        index = t->cause_index;
    }
}

static const loom_handicap *handicap_at(const loom_rehearsing *r, const loom_handicap *all, int count, int block, int stage)
{
    for (int i = 0; i < count; i++) {
        loom_coords at = loom_layout_coords(r->layout, all[i].rank);
        if (at.at[LOOM_AXIS_PP] == stage && at.at[LOOM_AXIS_DP] / r->block == block)
            return &all[i];
    }
    return NULL;
}

static void add_reason(loom_text *out, const loom_rehearsing *r, int block, int stage)
{
    const loom_rehearsal_request *q = r->request;
    const loom_handicap *slow = handicap_at(r, q->slow, q->n_slow, block, stage), *link = handicap_at(r, q->slow_link, q->n_slow_link, block, stage);

    if (slow)
        loom_text_add(out, "; rank %d there computes %g times as long, and its group waits for it", slow->rank, slow->factor);
    if (link)
        loom_text_add(out, "; the links of rank %d there are %g times slower", link->rank, link->factor);
}

loom_status loom_critical_path(const loom_rehearsing *r, int block, const loom_timeline *line, int stage, char **text)
{
    enum { SHOWN = 3 };
    loom_text out = {0};
    char first[80];
    path p = {.on_us = calloc((size_t)r->layout->pp, sizeof *p.on_us)};
    double whole = line->last_us[stage];

    if (!p.on_us)
        return loom_fail(LOOM_E_MEMORY, "no memory for the critical path");
    walk(r, line, stage, &p);
    loom_action_describe(&r->schedule->stage[p.first_stage].at[p.first_index], first, sizeof first);
    loom_text_add(&out, "from %s on stage %d to the end of stage %d, %d changes of stage, %.1f %% messages under way", first, p.first_stage, stage, p.hops,
                  whole > 0 ? 100 * p.between_us / whole : 0);
    for (int shown = 0; shown < SHOWN; shown++) {
        int most = 0;
        for (int s = 1; s < r->layout->pp; s++)
            if (p.on_us[s] > p.on_us[most])
                most = s;
        if (!(p.on_us[most] > 0))
            break;
        loom_text_add(&out, "\n  %.1f %% on stage %d", 100 * p.on_us[most] / whole, most);
        add_reason(&out, r, block, most);
        p.on_us[most] = 0;
    }
    free(p.on_us);
    return loom_text_take(&out, text);
}

/* --- the report ------------------------------------------------------------------------------------------------------------------ */

static void add_coords(loom_text *out, const loom_layout *l, int rank)
{
    loom_coords at = loom_layout_coords(l, rank);

    loom_text_add(out, "tp %d cp %d dp %d pp %d", at.at[LOOM_AXIS_TP], at.at[LOOM_AXIS_CP], at.at[LOOM_AXIS_DP], at.at[LOOM_AXIS_PP]);
}

static void add_injected(loom_text *out, const loom_rehearsal_request *q)
{
    for (int i = 0; i < q->n_slow + q->n_slow_link; i++) {
        bool link = i >= q->n_slow;
        const loom_handicap *h = link ? &q->slow_link[i - q->n_slow] : &q->slow[i];
        loom_text_add(out, "injected: rank %d (", h->rank);
        add_coords(out, q->layout, h->rank);
        loom_text_add(out, ") %s %g times as long\n", link ? "sends and receives" : "computes", h->factor);
    }
    if (q->jitter > 0)
        loom_text_add(out, "injected: jitter of %g %% on every action of every rank, seed %llu\n", 100 * q->jitter, (unsigned long long)q->seed);
}

static void add_slowdown(loom_text *out, const loom_rehearsal *h)
{
    const double SHOWN_S = 5e-5; /* four decimals */
    const loom_slowdown *s = &h->slowdown;

    loom_text_add(out, "why: on stage %d, which computes during %.1f %% of the undisturbed step, passes", s->stage, 100 * s->compute_share);
    if (s->passes_s > 0)
        loom_text_add(out, " compute %.4f s longer", s->passes_s);
    if (s->links_s > 0)
        loom_text_add(out, "%s communicate %.4f s longer", s->passes_s > 0 ? " and" : "", s->links_s);
    loom_text_add(out, ";\n     ");
    if (s->hidden_s > SHOWN_S)
        loom_text_add(out, "%.4f s of that hide in waits that it had anyway, and ", s->hidden_s);
    else if (s->hidden_s < -SHOWN_S)
        loom_text_add(out, "it waits %.4f s more for other stages, and ", -s->hidden_s);
    loom_text_add(out, "what follows takes %.4f s %s\n", fabs(s->behind_s), s->behind_s < 0 ? "less" : "more");
}

static void add_parts(loom_text *out, const loom_rehearsal *h)
{
    loom_text_add(out, "the step as stage %d, the busiest, spends it:\n", h->busiest);
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        if (h->part_s[i] > 0)
            loom_text_add(out, "  %-10s %9.4f s  %5.1f %%\n", loom_time_part_name(i), h->part_s[i], 100 * h->part_s[i] / h->step_s);
}

static void add_stages(loom_text *out, const loom_rehearsal *h)
{
    enum { MOST = 64 };

    loom_text_add(out, "stage   compute       tp       cp       ep       dp     wait      end  reduction (s, exposed)\n");
    for (int i = 0; i < h->stages && i < MOST; i++) {
        const loom_rehearsed_stage *s = &h->stage[i];
        loom_text_add(out, "%5d %9.4f %8.4f %8.4f %8.4f %8.4f %8.4f %8.4f %10.4f\n", i, s->compute_s, s->tp_s, s->cp_s, s->ep_s, s->dp_s, s->wait_s, s->end_s, s->reduction_s);
    }
    if (h->stages > MOST)
        loom_text_add(out, "  … %d more stages\n", h->stages - MOST);
}

loom_status loom_rehearsal_describe(const loom_rehearsal_request *q, const loom_rehearsal *h, char **text)
{
    loom_text out = {0};
    char line[256];

    loom_text_add(&out, "%s on %d ranks: step %.4f s", loom_layout_describe(q->layout, line, sizeof line), loom_layout_world(q->layout), h->step_s);
    if (q->n_slow + q->n_slow_link > 0 || q->jitter > 0)
        loom_text_add(&out, ", undisturbed %.4f s: %.1f %% longer, %.1f %% less throughput", h->undisturbed_s, 100 * (h->step_s / h->undisturbed_s - 1), 100 * (1 - h->undisturbed_s / h->step_s));
    loom_text_add(&out, "\n");
    add_injected(&out, q);
    if (h->slowdown.passes_s + h->slowdown.links_s > 0)
        add_slowdown(&out, h);
    loom_text_add(&out, "%d pipeline%s of %lld actions", h->replicas, h->replicas == 1 ? "" : "s", (long long)h->actions);
    if (h->replicas_together > 1)
        loom_text_add(&out, ", each of %d dp ranks in lockstep", h->replicas_together);
    loom_text_add(&out, "; %d differ%s and %s run; that of dp %d ends last; bubble %.2f %%\n", h->timelines, h->timelines == 1 ? "s" : "", h->timelines == 1 ? "was" : "were",
                  h->last_replica, 100 * h->bubble);
    add_parts(&out, h);
    add_stages(&out, h);
    loom_text_add(&out, "critical path: %s\n", h->critical_path);
    if (q->run) {
        const loom_run_request run = loom_rehearsed_run(q, h->step_s);
        loom_run_add_text(&out, &run, &h->run);
    }
    return loom_text_take(&out, text);
}

/* --- JSON --------------------------------------------------------------------------------------------------------------------------- */

static void add_slowdown_json(loom_text *out, const loom_slowdown *s)
{
    loom_text_add(out, "\"slowdown\":{\"stage\":%d,", s->stage);
    loom_text_add_field(out, "passes_s", s->passes_s, ",");
    loom_text_add_field(out, "links_s", s->links_s, ",");
    loom_text_add_field(out, "hidden_s", s->hidden_s, ",");
    loom_text_add_field(out, "behind_s", s->behind_s, ",");
    loom_text_add_field(out, "compute_share", s->compute_share, "},");
}

loom_status loom_rehearsal_json(const loom_rehearsal_request *q, const loom_rehearsal *h, char **text)
{
    loom_text out = {0};
    char line[256];

    loom_text_add(&out, "{\"schema\":1,\"layout\":");
    loom_text_add_json(&out, loom_layout_describe(q->layout, line, sizeof line));
    loom_text_add(&out, ",\"ranks\":%d,", loom_layout_world(q->layout));
    loom_text_add_field(&out, "step_s", h->step_s, ",");
    loom_text_add_field(&out, "undisturbed_s", h->undisturbed_s, ",");
    add_slowdown_json(&out, &h->slowdown);
    loom_text_add_field(&out, "bubble", h->bubble, ",");
    loom_text_add(&out, "\"busiest\":%d,\"pipelines\":%d,\"last_pipeline\":%d,\"breakdown\":{", h->busiest, h->replicas, h->last_replica);
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        loom_text_add_field(&out, loom_time_part_name(i), h->part_s[i], i + 1 < LOOM_TIME_PARTS ? "," : "},\"stages\":[");
    for (int i = 0; i < h->stages; i++) {
        const loom_rehearsed_stage *s = &h->stage[i];
        loom_text_add(&out, i ? ",{" : "{");
        loom_text_add_field(&out, "compute_s", s->compute_s, ",");
        loom_text_add_field(&out, "tp_s", s->tp_s, ",");
        loom_text_add_field(&out, "cp_s", s->cp_s, ",");
        loom_text_add_field(&out, "ep_s", s->ep_s, ",");
        loom_text_add_field(&out, "dp_s", s->dp_s, ",");
        loom_text_add_field(&out, "wait_s", s->wait_s, ",");
        loom_text_add_field(&out, "end_s", s->end_s, ",");
        loom_text_add_field(&out, "reduction_s", s->reduction_s, "}");
    }
    loom_text_add(&out, "],\"critical_path\":");
    loom_text_add_json(&out, h->critical_path);
    if (q->run) {
        const loom_run_request run = loom_rehearsed_run(q, h->step_s);
        loom_text_add(&out, ",\"run\":{");
        loom_run_add_json(&out, &run, &h->run);
        loom_text_add(&out, "}");
    }
    loom_text_add(&out, "}\n");
    return loom_text_take(&out, text);
}

/* --- the trace -------------------------------------------------------------------------------------------------------------------- */

static void add_event(loom_text *out, int rank, const char *name, double start_us, double duration_us)
{
    loom_text_add(out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f", rank, name, start_us, duration_us);
}

static void add_actions(loom_text *out, const loom_rehearsing *r, int rank, int block, int stage, const loom_timeline *line)
{
    static const char *const axes[LOOM_EXPOSED] = {"tp", "cp", "ep", "dp"};
    const loom_stage_actions *list = &r->schedule->stage[stage];

    for (int i = 0; i < list->count; i++) {
        const loom_action_time *t = &line->at[stage][i];
        double compute, exposed[LOOM_EXPOSED];
        char name[80];
        if (!(t->end_us > t->start_us))
            continue;
        add_event(out, rank, loom_action_describe(&list->at[i], name, sizeof name), t->start_us, t->end_us - t->start_us);
        loom_rehearsing_action(r, block, stage, i, line, &compute, exposed);
        loom_text_add(out, ",\"args\":{\"compute_us\":%.3f", compute);
        for (int axis = 0; axis < LOOM_EXPOSED; axis++)
            if (exposed[axis] > 0)
                loom_text_add(out, ",\"%s_us\":%.3f", axes[axis], exposed[axis]);
        loom_text_add(out, "}}");
    }
}

static loom_status add_rank(loom_text *out, loom_rehearsing *r, int rank, const loom_rehearsal *h)
{
    loom_coords at = loom_layout_coords(r->layout, rank);
    int stage = at.at[LOOM_AXIS_PP], block = at.at[LOOM_AXIS_DP] / r->block;
    double end_us = 1e6 * h->stage[stage].end_s, optimizer = 1e6 * h->part_s[LOOM_TIME_OPTIMIZER], other = 1e6 * h->part_s[LOOM_TIME_OTHER];
    loom_timeline line;
    loom_status status = loom_rehearsing_run(r, block, true, &line);

    if (status < 0)
        return status;
    loom_text_add(out, ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d (", rank, rank);
    add_coords(out, r->layout, rank);
    loom_text_add(out, ")\"}}");
    add_actions(out, r, rank, block, stage, &line);
    if (h->stage[stage].reduction_s > 0) {
        add_event(out, rank, "nccl gradients", end_us, 1e6 * h->stage[stage].reduction_s);
        loom_text_add(out, "}");
    }
    add_event(out, rank, "optimizer", 1e6 * h->step_s - other - optimizer, optimizer);
    loom_text_add(out, "}");
    loom_timeline_free(&line);
    return LOOM_OK;
}

loom_status loom_rehearsal_trace(const loom_rehearsal_request *q, const loom_rehearsal *h, const int *ranks, int count, char **text)
{
    loom_text out = {0};
    int world = loom_layout_world(q->layout);

    for (int i = 0; i < count; i++)
        if (ranks[i] < 0 || ranks[i] >= world)
            return loom_fail(LOOM_E_INVALID, "rank %d is not in the layout; ranks are 0 to %d", ranks[i], world - 1);
    loom_rehearsing *r = malloc(sizeof *r);
    loom_status status = r ? loom_rehearsing_open(q, r) : loom_fail(LOOM_E_MEMORY, "no memory for a trace");
    if (status == LOOM_OK) {
        loom_text_add(&out, "{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"trace\",\"args\":{\"step_s\":%.6f}}", h->step_s);
        for (int i = 0; i < count && status == LOOM_OK; i++)
            status = add_rank(&out, r, ranks[i], h);
        loom_text_add(&out, "\n]}\n");
        loom_rehearsing_close(r);
    }
    free(r);
    if (status == LOOM_OK)
        return loom_text_take(&out, text);
    loom_text_drop(&out);
    return status;
}
