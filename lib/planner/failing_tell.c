/* A run with failures, in words and as JSON. */
#include "planner/goodput.h"

#include <math.h>

static const char *const doing_names[] = {"step", "checkpoint", "restart"};

static void add_share(loom_text *out, const char *name, double seconds, double whole)
{
    if (seconds > 0) {
        loom_text_add(out, "  %-20s %6.2f %%  ", name, 100 * seconds / whole);
        loom_add_duration(out, seconds);
        loom_text_add(out, "\n");
    }
}

static void add_event(loom_text *out, const loom_run_event *e)
{
    loom_text_add(out, "  at ");
    loom_add_duration(out, e->at_s);
    loom_text_add(out, " rank %d (node %d) fails", e->rank, e->node);
    if (e->doing == LOOM_RUN_RESTART)
        loom_text_add(out, " while the run restarts, which begins anew");
    else
        loom_text_add(out, " %s step %lld", e->doing == LOOM_RUN_STEP ? "in" : "while a checkpoint is taken after", (long long)e->step);
    if (e->lost_s > 0) {
        loom_text_add(out, "; back to step %lld: ", (long long)e->safe_step);
        loom_add_duration(out, e->lost_s);
        loom_text_add(out, " lost");
    }
    if (e->spare_s > 0) {
        loom_text_add(out, "; no spare for ");
        loom_add_duration(out, e->spare_s);
    }
    loom_text_add(out, "\n");
}

static void add_sums(loom_text *out, const loom_run *r)
{
    add_share(out, "steps that count", r->useful_s, r->seconds);
    add_share(out, "checkpoints", r->checkpoint_s, r->seconds);
    add_share(out, "lost and done again", r->lost_s, r->seconds);
    add_share(out, "until noticed", r->detect_s, r->seconds);
    add_share(out, "no spare at hand", r->spare_s, r->seconds);
    add_share(out, "restarts", r->restart_s, r->seconds);
}

void loom_run_add_text(loom_text *out, const loom_run_request *q, const loom_run *r)
{
    enum { SHOWN = 12 };
    const loom_goodput_request costs = loom_goodput_defaults(&q->costs);

    loom_text_add(out, "a run of ");
    loom_add_duration(out, r->seconds);
    loom_text_add(out, ": %lld steps of %.4f s, a checkpoint of %g s every %lld steps (", (long long)r->steps, q->step_s,
                  costs.checkpoint_s, (long long)r->interval_steps);
    loom_add_duration(out, (double)r->interval_steps * q->step_s);
    loom_text_add(out, "), %lld failure%s", (long long)r->failures, r->failures == 1 ? "" : "s");
    if (q->drawn) {
        loom_text_add(out, " (drawn, one in ");
        loom_add_duration(out, r->mtbf_s);
        loom_text_add(out, ", seed %llu)", (unsigned long long)q->seed);
    }
    loom_text_add(out, "\n");
    add_sums(out, r);
    if (isfinite(r->expected))
        loom_text_add(out, "  goodput %.2f %%; %.2f %% are expected at this rate and interval (rankloom goodput)\n", 100 * r->goodput,
                      100 * r->expected);
    if (q->spares >= 0 && r->failures > 0)
        loom_text_add(out, "  %d spare node%s; at most %d away at a time, each for %g h\n", q->spares, q->spares == 1 ? "" : "s",
                      r->most_away, costs.repair_s / 3600);
    for (int i = 0; i < r->n_events && i < SHOWN; i++)
        add_event(out, &r->event[i]);
    if (r->failures > SHOWN)
        loom_text_add(out, "  … %lld more failures\n", (long long)r->failures - SHOWN);
}

loom_status loom_run_describe(const loom_run_request *q, const loom_run *r, char **text)
{
    loom_text out = {0};

    loom_run_add_text(&out, q, r);
    return loom_text_take(&out, text);
}

static void add_event_json(loom_text *out, const loom_run_event *e)
{
    loom_text_add(out, "{\"rank\":%d,\"node\":%d,\"drawn\":%s,\"doing\":\"%s\",\"step\":%lld,\"safe_step\":%lld,", e->rank, e->node,
                  e->drawn ? "true" : "false", doing_names[e->doing], (long long)e->step, (long long)e->safe_step);
    loom_text_add_field(out, "at_s", e->at_s, ",");
    loom_text_add_field(out, "lost_s", e->lost_s, ",");
    loom_text_add_field(out, "spare_s", e->spare_s, "}");
}

void loom_run_add_json(loom_text *out, const loom_run_request *q, const loom_run *r)
{
    loom_text_add(out, "\"steps\":%lld,\"interval_steps\":%lld,\"failures\":%lld,\"most_away\":%d,", (long long)r->steps,
                  (long long)r->interval_steps, (long long)r->failures, r->most_away);
    loom_text_add_field(out, "step_s", q->step_s, ",");
    loom_text_add_field(out, "seconds", r->seconds, ",");
    loom_text_add_field(out, "useful_s", r->useful_s, ",");
    loom_text_add_field(out, "checkpoint_s", r->checkpoint_s, ",");
    loom_text_add_field(out, "lost_s", r->lost_s, ",");
    loom_text_add_field(out, "detect_s", r->detect_s, ",");
    loom_text_add_field(out, "restart_s", r->restart_s, ",");
    loom_text_add_field(out, "spare_s", r->spare_s, ",");
    loom_text_add_field(out, "goodput", r->goodput, ",");
    loom_text_add_field(out, "expected", r->expected, ",");
    loom_text_add_field(out, "mtbf_s", r->mtbf_s, ",\"events\":[");
    for (int i = 0; i < r->n_events; i++) {
        loom_text_add(out, i ? "," : "");
        add_event_json(out, &r->event[i]);
    }
    loom_text_add(out, "]");
}

loom_status loom_run_json(const loom_run_request *q, const loom_run *r, char **text)
{
    loom_text out = {0};

    loom_text_add(&out, "{\"schema\":1,");
    loom_run_add_json(&out, q, r);
    loom_text_add(&out, "}\n");
    return loom_text_take(&out, text);
}
