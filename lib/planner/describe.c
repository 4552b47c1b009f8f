/* What people and programs read of a plan: text in 100 columns, JSON, YAML. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "planner/cost.h"

enum { HANGING = 12 }; /* columns of the lines' heads */

/* --- text ------------------------------------------------------------------------------------------------------------------ */

static void add_seconds(loom_text *out, double seconds)
{
    if (seconds >= 1)
        loom_text_add(out, "%.3f s", seconds);
    else
        loom_text_add(out, "%.2f ms", 1e3 * seconds);
}

/* Equal neighbours together: "16 x 8, 2 x 7". */
static void add_runs(loom_text *out, const int64_t *values, int n)
{
    for (int i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && values[i + run] == values[i];)
            run++;
        loom_text_add(out, i ? ", " : "");
        if (run > 1)
            loom_text_add(out, "%d x ", run);
        loom_text_add(out, "%lld", (long long)values[i]);
    }
}

/* token/s: of one device */
static void tell_table(loom_text *out, const loom_prediction *list, int n)
{
    char layout[128];

    loom_text_add(out, "   %9s %13s %8s %5s %6s  layout\n", "step s", "80 %", "token/s", "MFU", "GiB");
    for (int i = 0; i < n; i++) {
        const loom_prediction *p = &list[i];
        char range[32];
        loom_layout_describe(&p->layout, layout, sizeof layout);
        snprintf(range, sizeof range, "%.3g-%.3g", p->low_s, p->high_s);
        loom_text_add(out, "%2d %9.4g %13s %8.0f %4.1f%% %6.1f  %s\n", i + 1, p->step_s, range, p->tokens_per_s_per_gpu,
                      100 * p->mfu_causal, loom_gib(p->memory[p->fullest].total), layout);
    }
}

static void tell_split(loom_text *out, const loom_prediction *p)
{
    bool first = true;

    loom_text_add(out, "  time      ");
    for (int i = 0; i < LOOM_TIME_PARTS; i++) {
        if (p->part_s[i] < 0.002 * p->step_s)
            continue;
        loom_text_add(out, "%s%s %.1f%%", first ? "" : ", ", loom_time_part_name(i), 100 * p->part_s[i] / p->step_s);
        first = false;
    }
    loom_text_add(out, "\n");
}

/* Stages that differ: the first, the fullest, the last. */
static void tell_memory(loom_text *out, const loom_prediction *p)
{
    for (int stage = 0; stage < p->stages; stage++) {
        const loom_stage_memory *m = &p->memory[stage];
        bool shown = p->stages <= 8 || stage == 0 || stage == p->fullest || stage == p->stages - 1;
        if (!shown)
            continue;
        loom_text_add(out, "  stage %-4d %5.1f of %.1f GiB%s:", stage, loom_gib(m->total), loom_gib(p->memory_limit),
                      stage == p->fullest ? " (fullest)" : "");
        bool first = true;
        for (int i = 0; i < LOOM_MEMORY_PARTS; i++) {
            if (m->part[i] < 0.01 * m->total)
                continue;
            loom_text_add(out, "%s %s %.1f", first ? "" : ",", loom_memory_part_name(i), loom_gib(m->part[i]));
            first = false;
        }
        loom_text_add(out, "\n");
    }
    if (p->stages > 8)
        loom_text_add(out, "  (%d stages; --format json has them all)\n", p->stages);
    if (p->memory_exact)
        loom_text_add(out, "  memory    as this engine allocates it, to the byte%s\n", p->layout.ep * p->layout.etp > 1 ? " under a balanced load of experts" : "");
}

static void tell_order(loom_text *out, const loom_layout *l)
{
    loom_text_add(out, "  ranks     fastest first:");
    for (int i = 0; i < 4; i++)
        loom_text_add(out, " %s", loom_axis_name(l->order[i]));
}

/* Whether every tensor-parallel group stays among fast links, in a sentence. */
static void tell_placement(loom_text *out, const loom_plan_request *request, const loom_layout *l)
{
    int stride = 1;

    tell_order(out, l);
    for (int i = 0; i < 4 && l->order[i] != LOOM_AXIS_TP; i++)
        stride *= loom_layout_degree(l, l->order[i]);
    if (l->tp > 1 && (int64_t)l->tp * stride <= loom_topology_ranks(request->topology)) {
        loom_group_link link = loom_topology_axis(request->topology, l->tp, stride);
        if (link.domains <= 1)
            loom_text_add(out, "; every tensor-parallel group is inside one domain");
        else
            loom_text_add(out, "; tensor-parallel groups of %d cross %d domains: only %d of their ranks share fast links", l->tp,
                          link.domains, link.in_domain);
    }
    loom_text_add(out, "\n");
}

static void tell_prediction(loom_text *out, const loom_plan_request *request, const loom_prediction *p)
{
    const loom_layout *l = &p->layout;
    char layout[128];

    loom_layout_describe(l, layout, sizeof layout);
    loom_text_add(out, "%s on %d devices\n", layout, loom_layout_world(l));
    loom_text_add(out, "  step      ");
    add_seconds(out, p->step_s);
    loom_text_add(out, " (80 %%: %.3g to %.3g s), %.0f tokens/s, %.0f a device\n", p->low_s, p->high_s, p->tokens_per_s,
                  p->tokens_per_s_per_gpu);
    loom_text_add(out, "  MFU       %.1f %% counting half of the attention square, %.1f %% all of it; HFU %.1f %%\n", 100 * p->mfu_causal,
                  100 * p->mfu_full, 100 * p->hfu);
    loom_text_add(out, "  batch     %lld sequences of %lld tokens: %lld micro-batches of %lld", (long long)l->global_batch,
                  (long long)l->seq, (long long)p->micro_batches, (long long)l->micro_batch);
    if (l->pp > 1)
        loom_text_add(out, ", idle %.1f %% (bubble %.1f %% of the busy time)", 100 * p->part_s[LOOM_TIME_BUBBLE] / p->step_s,
                      100 * p->bubble);
    loom_text_add(out, "\n  layers    ");
    add_runs(out, l->chunk_layers, l->n_chunks);
    loom_text_add(out, l->vpp > 1 ? " on the chunks in model order\n" : " on the stages\n");
    tell_split(out, p);
    tell_placement(out, request, l);
    tell_memory(out, p);
    loom_text_add(out, "  basis     %.0f %% of the time rests on defaults%s\n", 100 * p->default_share,
                  request->n_measured ? "; a measured step has moved the constants" : "");
}

static void tell_count(loom_text *out, double value)
{
    loom_text_add(out, value < 1e6 ? "%.0f" : "%.3g", value);
}

static void tell_plan(loom_text *out, const loom_plan_request *request, const loom_plan *plan)
{
    char *line = NULL;

    if (loom_topology_line(request->topology, &line) == LOOM_OK)
        loom_text_add(out, "%s on %s\n\n", request->model->name, line);
    loom_text_free(line);
    if (plan->n_best == 0) {
        loom_text_add(out, "%s\n", plan->hopeless);
        return;
    }
    tell_table(out, plan->best, plan->n_best);
    loom_text_add(out, "\n1: ");
    tell_prediction(out, request, &plan->best[0]);
    loom_text_add(out, "  limit     %s\n", plan->binding);
    if (plan->runner_up[0])
        loom_text_add(out, "  second    %s\n", plan->runner_up);
    for (int i = 0; i < plan->n_changes; i++)
        loom_text_add(out, "%s%4.1f %% by: %s\n", i ? "            " : "  gain      ", 100 * plan->changes[i].gain, plan->changes[i].text);
    if (plan->n_front) {
        loom_text_add(out, "\nfewest seconds, GiB and devices (none of these is beaten in all three):\n");
        tell_table(out, plan->front, plan->n_front);
    }
    loom_text_add(out, "\nsearched ");
    tell_count(out, (double)plan->legal);
    loom_text_add(out, " legal layouts in %.2f s, %llu worked out, the others bounded", plan->seconds, (unsigned long long)plan->evaluated);
    if (plan->simulated)
        loom_text_add(out, "; %d schedules of the fastest splits simulated", plan->simulated);
    loom_text_add(out, "\n");
}

/* A plan, or a prediction, in words. */
static loom_status tell_wrapped(const loom_plan_request *request, const loom_plan *plan, const loom_prediction *prediction, char **text)
{
    loom_text out = {0};

    if (plan)
        tell_plan(&out, request, plan);
    else
        tell_prediction(&out, request, prediction);
    return loom_text_take_wrapped(&out, LOOM_TEXT_WIDTH, HANGING, text);
}

/* --- JSON, which is YAML too --------------------------------------------------------------------------------------------------------- */

static void json_breakdown(loom_text *out, const loom_prediction *p)
{
    loom_text_add(out, "\"breakdown\":{");
    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        loom_text_add_field(out, loom_time_part_name(i), p->part_s[i], i + 1 < LOOM_TIME_PARTS ? "," : "},");
    loom_text_add_field(out, "hidden_dp", p->hidden_dp_s, ""); /* under compute: not of the step */
}

static void json_memory(loom_text *out, const loom_prediction *p)
{
    loom_text_add(out, "\"memory_gib_per_stage\":[");
    for (int stage = 0; stage < p->stages; stage++) {
        loom_text_add(out, stage ? "," : "");
        loom_text_add_number(out, loom_gib(p->memory[stage].total));
    }
    loom_text_add(out, "],\"memory_parts_per_stage\":[");
    for (int stage = 0; stage < p->stages; stage++) {
        loom_text_add(out, stage ? ",{" : "{");
        loom_text_add_field(out, "parameters", p->memory[stage].parameters, ",");
        loom_text_add_field(out, "layers", p->memory[stage].layers, ",");
        loom_text_add_field(out, "chunks_in_flight", p->memory[stage].in_flight, ",");
        loom_text_add_field(out, "allocated", p->memory[stage].allocated, ",");
        for (int i = 0; i < LOOM_MEMORY_PARTS; i++)
            loom_text_add_field(out, loom_memory_part_name(i), p->memory[stage].part[i], i + 1 < LOOM_MEMORY_PARTS ? "," : "}");
    }
    loom_text_add(out, "]");
}

/* The members of a prediction's object. */
static void json_prediction(loom_text *out, const loom_prediction *p, const char *binding)
{
    const loom_layout *l = &p->layout;

    loom_text_add(out,
                  "\"tp\":%d,\"pp\":%d,\"vpp\":%d,\"cp\":%d,\"ep\":%d,\"etp\":%d,\"dp\":%d,\"zero\":%d,\"micro_batch\":%lld,\"recompute\":"
                  "\"%s\",\"sequence_parallel\":%s,",
                  l->tp, l->pp, l->vpp, l->cp, l->ep, l->etp, l->dp, l->zero, (long long)l->micro_batch, loom_recompute_name(l->recompute),
                  l->sequence_parallel ? "true" : "false");
    loom_text_add(out, "\"schedule\":\"%s\",\"cp_kind\":\"%s\",\"order\":[\"%s\",\"%s\",\"%s\",\"%s\"],\"layers_per_stage\":[",
                  loom_schedule_kind_name(l->schedule), loom_cp_kind_name(l->cp_kind), loom_axis_name(l->order[0]),
                  loom_axis_name(l->order[1]), loom_axis_name(l->order[2]), loom_axis_name(l->order[3]));
    for (int stage = 0; stage < p->stages; stage++)
        loom_text_add(out, "%s%d", stage ? "," : "", p->memory[stage].layers);
    loom_text_add(out, "],\"layers_per_chunk\":["); /* in model order */
    for (int i = 0; i < l->n_chunks; i++)
        loom_text_add(out, "%s%lld", i ? "," : "", (long long)l->chunk_layers[i]);
    loom_text_add(out, "],");
    loom_text_add_field(out, "step_time_s", p->step_s, ",");
    loom_text_add_field(out, "low", p->low_s, ",");
    loom_text_add_field(out, "high", p->high_s, ",");
    loom_text_add_field(out, "tokens_per_s_per_gpu", p->tokens_per_s_per_gpu, ",");
    loom_text_add_field(out, "mfu", p->mfu_causal, ",");
    loom_text_add_field(out, "mfu_full_attention", p->mfu_full, ",");
    loom_text_add_field(out, "bubble", p->bubble, ",");
    loom_text_add_field(out, "default_share", p->default_share, ",");
    loom_text_add_field(out, "memory_limit_gib", loom_gib(p->memory_limit), ",");
    loom_text_add(out, "\"memory_exact\":%s,\"fits\":%s,", p->memory_exact ? "true" : "false", p->fits ? "true" : "false");
    json_memory(out, p);
    loom_text_add(out, ",");
    json_breakdown(out, p);
    loom_text_add(out, ",\"binding\":");
    loom_text_add_json(out, binding);
}

static void json_list(loom_text *out, const char *name, const loom_prediction *list, int n, const char *binding)
{
    loom_text_add(out, "\"%s\":[", name);
    for (int i = 0; i < n; i++) {
        loom_text_add(out, i ? ",\n{" : "\n{");
        json_prediction(out, &list[i], i == 0 ? binding : NULL);
        loom_text_add(out, "}");
    }
    loom_text_add(out, "]");
}

static void json_plan(loom_text *out, const loom_plan *plan)
{
    loom_text_add(out, "{\"schema\":1,");
    json_list(out, "layouts", plan->best, plan->n_best, plan->binding[0] ? plan->binding : NULL);
    if (plan->n_front) {
        loom_text_add(out, ",\n");
        json_list(out, "front", plan->front, plan->n_front, NULL);
    }
    loom_text_add(out, ",\n\"search\":{\"legal\":%llu,\"evaluated\":%llu,\"simulated\":%d,", (unsigned long long)plan->legal,
                  (unsigned long long)plan->evaluated, plan->simulated);
    loom_text_add_field(out, "seconds", plan->seconds, ",");
    loom_text_add(out, "\"peak_bytes\":%zu},\n\"rejected\":{", plan->peak_bytes);
    for (int i = 0; i < plan->n_rejected; i++)
        loom_text_add(out, "%s\"%s\":%llu", i ? "," : "", plan->rejected[i].reason, (unsigned long long)plan->rejected[i].count);
    loom_text_add(out, "},\n\"runner_up\":");
    loom_text_add_json(out, plan->runner_up[0] ? plan->runner_up : NULL);
    loom_text_add(out, ",\"changes\":[");
    for (int i = 0; i < plan->n_changes; i++) {
        loom_text_add(out, "%s{\"text\":", i ? "," : "");
        loom_text_add_json(out, plan->changes[i].text);
        loom_text_add(out, ",");
        loom_text_add_field(out, "gain", plan->changes[i].gain, "}");
    }
    loom_text_add(out, "],\"hopeless\":");
    loom_text_add_json(out, plan->hopeless[0] ? plan->hopeless : NULL);
    loom_text_add(out, "}\n");
}

/* --- YAML: the layout file, with what was predicted as a comment ------------------------------------------------------------- */

static void yaml_layout(loom_text *out, const loom_prediction *p)
{
    char *yaml = NULL;

    loom_text_add(out, "# predicted: %.4g s a step (%.4g to %.4g), %.1f of %.1f GiB on stage %d\n", p->step_s, p->low_s, p->high_s,
                  loom_gib(p->memory[p->fullest].total), loom_gib(p->memory_limit), p->fullest);
    if (loom_layout_yaml(&p->layout, &yaml) == LOOM_OK)
        loom_text_add(out, "%s", yaml);
    else
        out->failed = true;
    loom_text_free(yaml);
}

loom_status loom_plan_describe(const loom_plan_request *request, const loom_plan *plan, loom_plan_format format, char **text)
{
    loom_text out = {0};

    if (format == LOOM_PLAN_AS_JSON)
        json_plan(&out, plan);
    else if (format == LOOM_PLAN_AS_YAML && plan->n_best > 0)
        yaml_layout(&out, &plan->best[0]);
    else if (format == LOOM_PLAN_AS_YAML)
        loom_text_add(&out, "# %s\n", plan->hopeless);
    else
        return tell_wrapped(request, plan, NULL, text);
    return loom_text_take(&out, text);
}

loom_status loom_prediction_describe(const loom_plan_request *request, const loom_prediction *prediction, loom_plan_format format,
                                     char **text)
{
    loom_text out = {0};

    if (format == LOOM_PLAN_AS_JSON) {
        loom_text_add(&out, "{\"schema\":1,");
        json_prediction(&out, prediction, NULL);
        loom_text_add(&out, "}\n");
    } else if (format == LOOM_PLAN_AS_YAML) {
        yaml_layout(&out, prediction);
    } else {
        return tell_wrapped(request, NULL, prediction, text);
    }
    return loom_text_take(&out, text);
}
