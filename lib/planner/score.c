/* Predicts every row of a table of published runs and reports the errors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/number.h"
#include "core/text.h"
#include "core/try.h"
#include "planner/calibrate.h"
#include "planner/choice.h"
#include "planner/interval.h"
#include "planner/overrides.h"
#include "planner/runs.h"

typedef struct scored {
    const char *id, *source, *gpu, *model, *framework, *precision;
    const loom_framework *software;
    int gpus;
    int64_t batch, seq;
    bool one_node;
    double predicted_s, low_s, high_s, measured_s;
    double predicted_gib, measured_gib; /* NaN: not told, not predicted */
    bool fits;
    double one_step_s, one_low_s, one_high_s; /* predicted with the first measured step of its kind, NaN: it is that step */
    char skipped[96];
} scored;

typedef struct tally {
    int rows, inside; /* inside: the interval */
    double absolute, logarithm, worst;
} tally;

static double error_of(double predicted, double measured)
{
    return predicted / measured - 1;
}

static bool timed(const scored *row)
{
    return !row->skipped[0] && row->measured_s > 0 && row->predicted_s > 0;
}

/* Memory of the fullest stage, as the row's figure was read; whether it fits is a matter of all that the device has to hold. */
static void predict_memory(const loom_run *run, scored *row)
{
    double fullest = 0;

    row->predicted_gib = 0;
    for (int i = 0; i < run->degrees.pp; i++) {
        loom_memory memory = loom_stage_memory_of(&run->job, &run->degrees, run->chunk_layers, i);
        row->predicted_gib = fmax(row->predicted_gib, loom_gib(run->measures_allocated ? memory.allocated : memory.total));
        fullest = fmax(fullest, memory.total);
    }
    row->fits = fullest <= loom_dev(&run->job.machine, LOOM_DEV_MEMORY_BYTES);
}

static loom_status predict_row(const loom_csv *csv, int index, const loom_override *overrides, int n_overrides, loom_run *run, scored *row)
{
    loom_step_cost cost;

    loom_run_read(csv, index, overrides, n_overrides, run);
    *row = (scored){.id = run->id,
                    .source = run->source,
                    .gpu = run->gpu,
                    .model = run->model_name,
                    .framework = run->framework,
                    .software = run->software,
                    .precision = run->precision,
                    .gpus = run->gpus,
                    .batch = run->job.global_batch,
                    .seq = run->job.seq,
                    .one_node = run->gpus <= run->job.machine.node,
                    .predicted_s = NAN,
                    .low_s = NAN,
                    .high_s = NAN,
                    .measured_s = run->measured_s,
                    .predicted_gib = NAN,
                    .measured_gib = run->measured_gib,
                    .one_step_s = NAN,
                    .one_low_s = NAN,
                    .one_high_s = NAN};
    memcpy(row->skipped, run->skipped, sizeof row->skipped);
    if (row->skipped[0])
        return LOOM_OK;
    loom_status status = loom_run_predict(run, &cost);
    if (status == LOOM_E_MEMORY)
        return status;
    if (status < 0) {
        snprintf(row->skipped, sizeof row->skipped, "%.95s", loom_last_error());
        return LOOM_OK;
    }
    row->predicted_s = cost.seconds;
    loom_interval(&run->job, &run->degrees, run->chunk_layers, cost.seconds, &row->low_s, &row->high_s);
    predict_memory(run, row);
    return LOOM_OK;
}

static bool same_kind(const scored *a, const scored *b)
{
    return a->software == b->software && strcmp(a->precision, b->precision) == 0 && strcmp(a->source, b->source) == 0 &&
           strcmp(a->gpu, b->gpu) == 0 && strcmp(a->model, b->model) == 0;
}

/* A table, read as often as its rows are asked for. */
typedef struct table {
    const loom_csv *csv;
    const loom_override *overrides;
    int n_overrides;
    loom_run *run; /* of the row read last */
} table;

static void learn(table *t, int index, loom_calibration *calibration)
{
    loom_run *run = t->run;
    loom_step_cost cost;

    loom_run_read(t->csv, index, t->overrides, t->n_overrides, run);
    loom_run_predict(run, &cost);
    loom_calibration_learn(&run->job, &(loom_timed_step){&run->degrees, run->chunk_layers, run->measured_s}, 1, calibration);
}

static void predict_calibrated(table *t, int index, const loom_calibration *calibration, scored *row)
{
    loom_run *run = t->run;
    loom_step_cost cost;

    loom_run_read(t->csv, index, t->overrides, t->n_overrides, run);
    loom_run_predict(run, &cost); /* decides what the row leaves open, as it was decided without */
    loom_calibrate(&run->job, calibration);
    loom_step_predict(&run->job, &run->degrees, run->chunk_layers, &cost);
    loom_calibration_apply(calibration, &run->degrees, &cost);
    row->one_step_s = cost.seconds;
    loom_interval(&run->job, &run->degrees, run->chunk_layers, cost.seconds, &row->one_low_s, &row->one_high_s);
}

/* One measured step: the first timed row of equal source, device, precision, model and software calibrates the others. */
static void calibrate_with_one(table *t, scored *rows, int n)
{
    for (int first = 0; first < n; first++) {
        loom_calibration calibration = {.n = 0};
        for (int i = first + 1; i < n && timed(&rows[first]) && isnan(rows[first].one_step_s); i++) {
            if (!timed(&rows[i]) || !same_kind(&rows[i], &rows[first]))
                continue;
            if (calibration.n == 0)
                learn(t, first, &calibration);
            predict_calibrated(t, i, &calibration, &rows[i]);
        }
    }
}

static void count(tally *t, double predicted, double measured, bool inside)
{
    double e = fabs(error_of(predicted, measured));

    t->rows++;
    t->inside += inside;
    t->absolute += e;
    t->logarithm += log(predicted / measured);
    t->worst = fmax(t->worst, e);
}

/* --- groups: source x device kind ------------------------------------------------------------------------------------------- */

typedef struct group {
    const char *source, *gpu;
    tally plain, one, memory;
    int skipped;
} group;

static group *group_of(group *groups, int *n, const scored *row)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(groups[i].source, row->source) == 0 && strcmp(groups[i].gpu, row->gpu) == 0)
            return &groups[i];
    groups[*n] = (group){.source = row->source, .gpu = row->gpu};
    return &groups[(*n)++];
}

static void sort_into_groups(const scored *rows, int n, group *groups, int *n_groups)
{
    for (int i = 0; i < n; i++) {
        group *g = group_of(groups, n_groups, &rows[i]);
        const scored *r = &rows[i];
        if (timed(r))
            count(&g->plain, r->predicted_s, r->measured_s, r->low_s <= r->measured_s && r->measured_s <= r->high_s);
        else
            g->skipped++;
        if (timed(r) && r->one_step_s > 0)
            count(&g->one, r->one_step_s, r->measured_s, r->one_low_s <= r->measured_s && r->measured_s <= r->one_high_s);
        if (r->measured_gib > 0 && r->predicted_gib > 0)
            count(&g->memory, r->predicted_gib, r->measured_gib, false);
    }
}

static double mean_of_groups(const group *groups, int n, size_t which)
{
    double sum = 0;
    int used = 0;

    for (int i = 0; i < n; i++) {
        const tally *t = (const tally *)((const char *)&groups[i] + which);
        if (t->rows) {
            sum += t->absolute / t->rows;
            used++;
        }
    }
    return used ? sum / used : NAN;
}

/* Median absolute error over all rows; one_step: of the calibrated predictions. */
static double median_error(const scored *rows, int n, bool one_step)
{
    double *errors = malloc((size_t)n * sizeof *errors), median = NAN;
    int used = 0;

    for (int i = 0; errors && i < n; i++) {
        double predicted = one_step ? rows[i].one_step_s : rows[i].predicted_s;
        if (timed(&rows[i]) && predicted > 0)
            errors[used++] = fabs(error_of(predicted, rows[i].measured_s));
    }
    if (used) {
        qsort(errors, (size_t)used, sizeof *errors, loom_by_value);
        median = errors[used / 2];
    }
    free(errors);
    return median;
}

static tally sum_of_groups(const group *groups, int n, size_t which)
{
    tally sum = {0};

    for (int i = 0; i < n; i++) {
        const tally *t = (const tally *)((const char *)&groups[i] + which);
        sum.rows += t->rows;
        sum.inside += t->inside;
        sum.absolute += t->absolute;
        sum.worst = fmax(sum.worst, t->worst);
    }
    return sum;
}

/* --- choices among layouts of equal model, devices and batch --------------------------------------------------------------------- */

static bool same_task(const scored *a, const scored *b)
{
    return same_kind(a, b) && strcmp(a->framework, b->framework) == 0 && a->gpus == b->gpus && a->batch == b->batch && a->seq == b->seq;
}

static loom_status judge_choices(const scored *rows, int n, loom_choice *one_node, loom_choice *several)
{
    loom_candidate *candidates = calloc(n > 0 ? (size_t)n : 1, sizeof *candidates);
    int n_groups = 0;

    if (!candidates)
        return loom_fail(LOOM_E_MEMORY, "no memory to judge %d layouts", n);
    for (int i = 0; i < n; i++) {
        int first = 0;
        while (first < i && !same_task(&rows[first], &rows[i]))
            first++;
        candidates[i] = (loom_candidate){first < i ? candidates[first].group : n_groups++, rows[i].one_node, rows[i].fits,
                                         rows[i].skipped[0] ? NAN : rows[i].predicted_s, rows[i].measured_s};
    }
    loom_status status = loom_choice_judge(candidates, n, n_groups, true, one_node);
    if (status >= 0)
        status = loom_choice_judge(candidates, n, n_groups, false, several);
    free(candidates);
    return status;
}

/* Percent of the rows. */
static double share_inside(const tally *t)
{
    return t->rows ? 100.0 * t->inside / t->rows : NAN;
}

/* --- telling --------------------------------------------------------------------------------------------------------------------- */

static void tell_choice(loom_text *out, const char *where, const loom_choice *c)
{
    if (c->groups)
        loom_text_add(out,
                      "Choosing among layouts of equal model, devices and batch %s: %d groups, mean regret %.2f %% (worst %.1f %%), rank "
                      "correlation %.2f.\n",
                      where, c->groups, 100 * c->regret, 100 * c->worst_regret, c->rank_correlation);
}

static void tell_text(loom_text *out, const scored *rows, int n, const group *groups, int n_groups, const loom_choice *one_node,
                      const loom_choice *several)
{
    tally all = sum_of_groups(groups, n_groups, offsetof(group, plain)), one = sum_of_groups(groups, n_groups, offsetof(group, one));

    loom_text_add(out, "%-34s %-22s %5s %7s %7s %7s %9s %8s\n", "source", "device", "rows", "bias", "mean", "worst", "one step", "memory");
    for (int i = 0; i < n_groups; i++) {
        const group *g = &groups[i];
        if (!g->plain.rows && !g->memory.rows)
            continue;
        loom_text_add(out, "%-34.34s %-22.22s %5d ", g->source, g->gpu, g->plain.rows);
        if (g->plain.rows)
            loom_text_add(out, "%+6.1f%% %6.1f%% %6.1f%% ", 100 * (exp(g->plain.logarithm / g->plain.rows) - 1),
                          100 * g->plain.absolute / g->plain.rows, 100 * g->plain.worst);
        else
            loom_text_add(out, "%7s %7s %7s ", "", "", "");
        if (g->one.rows)
            loom_text_add(out, "%8.1f%% ", 100 * g->one.absolute / g->one.rows);
        else
            loom_text_add(out, "%9s ", "");
        if (g->memory.rows)
            loom_text_add(out, "%7.1f%%", 100 * g->memory.absolute / g->memory.rows);
        loom_text_add(out, "\n");
    }
    loom_text_add(
        out,
        "\n%d of %d rows predicted. Error averaged by source and device first: %.1f %% mean; over rows %.1f %% mean, %.1f %% median.\n",
        all.rows, n, 100 * mean_of_groups(groups, n_groups, offsetof(group, plain)), all.rows ? 100 * all.absolute / all.rows : NAN,
        100 * median_error(rows, n, false));
    loom_text_add(out,
                  "With one measured step of the same model, device, precision and software: %.1f %% mean by source and device, %.1f %% "
                  "median over rows.\n",
                  100 * mean_of_groups(groups, n_groups, offsetof(group, one)), 100 * median_error(rows, n, true));
    loom_text_add(out, "The 80 %% interval held for %.0f %% of the rows, with one measured step for %.0f %%.\n", share_inside(&all), share_inside(&one));
    tell_choice(out, "on one node", one_node);
    tell_choice(out, "on several nodes", several);
}

static void tell_json_row(loom_text *out, const scored *r)
{
    loom_text_add(out, "{\"id\":");
    loom_text_add_json(out, r->id);
    loom_text_add(out, ",");
    loom_text_add_field(out, "predicted_step_time_s", r->predicted_s, ",");
    loom_text_add_field(out, "low", r->low_s, ",");
    loom_text_add_field(out, "high", r->high_s, ",");
    loom_text_add_field(out, "measured_step_time_s", r->measured_s, ",");
    loom_text_add_field(out, "one_step_calibrated_s", r->one_step_s, ",");
    loom_text_add_field(out, "one_step_low", r->one_low_s, ",");
    loom_text_add_field(out, "one_step_high", r->one_high_s, ",");
    loom_text_add_field(out, "predicted_mem_gib", r->predicted_gib, ",");
    loom_text_add_field(out, "measured_mem_gib", r->measured_gib, ",");
    loom_text_add(out, "\"predicted_fits\":%s,", r->skipped[0] ? "null" : r->fits ? "true" : "false");
    loom_text_add(out, "\"skipped\":");
    loom_text_add_json(out, r->skipped[0] ? r->skipped : NULL);
    loom_text_add(out, "}");
}

static void json_choice(loom_text *out, const char *name, const loom_choice *c)
{
    loom_text_add(out, "\"%s\":{\"groups\":%d,", name, c->groups);
    loom_text_add_field(out, "mean_regret", c->regret, ",");
    loom_text_add_field(out, "worst_regret", c->worst_regret, ",");
    loom_text_add_field(out, "rank_correlation", c->rank_correlation, "},");
}

static void tell_json(loom_text *out, const scored *rows, int n, const group *groups, int n_groups, const loom_choice *one_node,
                      const loom_choice *several)
{
    tally all = sum_of_groups(groups, n_groups, offsetof(group, plain)), one = sum_of_groups(groups, n_groups, offsetof(group, one));
    bool first = true;

    loom_text_add(out, "{\"schema\":1,\"rows\":[");
    for (int i = 0; i < n; i++) {
        loom_text_add(out, i ? ",\n" : "\n");
        tell_json_row(out, &rows[i]);
    }
    loom_text_add(out, "],\n\"summary\":{");
    loom_text_add_field(out, "predicted", all.rows, ",");
    loom_text_add_field(out, "mean_by_source_and_device", mean_of_groups(groups, n_groups, offsetof(group, plain)), ",");
    loom_text_add_field(out, "mean", all.rows ? all.absolute / all.rows : NAN, ",");
    loom_text_add_field(out, "median", median_error(rows, n, false), ",");
    loom_text_add_field(out, "one_step_mean_by_source_and_device", mean_of_groups(groups, n_groups, offsetof(group, one)), ",");
    loom_text_add_field(out, "one_step_median", median_error(rows, n, true), ",");
    loom_text_add_field(out, "interval_holds", share_inside(&all) / 100, ",");
    loom_text_add_field(out, "one_step_interval_holds", share_inside(&one) / 100, ",");
    json_choice(out, "choice_one_node", one_node);
    json_choice(out, "choice_several_nodes", several);
    loom_text_add(out, "\"groups\":[");
    for (int i = 0; i < n_groups; i++) {
        const group *g = &groups[i];
        if (!g->plain.rows && !g->memory.rows)
            continue;
        loom_text_add(out, first ? "\n{\"source\":" : ",\n{\"source\":");
        first = false;
        loom_text_add_json(out, g->source);
        loom_text_add(out, ",\"gpu\":");
        loom_text_add_json(out, g->gpu);
        loom_text_add(out, ",\"rows\":%d,", g->plain.rows);
        loom_text_add_field(out, "mean", g->plain.rows ? g->plain.absolute / g->plain.rows : NAN, ",");
        loom_text_add_field(out, "one_step_mean", g->one.rows ? g->one.absolute / g->one.rows : NAN, ",");
        loom_text_add_field(out, "memory_mean", g->memory.rows ? g->memory.absolute / g->memory.rows : NAN, "}");
    }
    loom_text_add(out, "]}}\n");
}

loom_status loom_plan_score(const char *path, const char *const *set, loom_plan_format format, char **text)
{
    loom_status status;
    loom_csv csv = {0};
    loom_text out = {0};
    loom_override *overrides = NULL;
    int n_overrides = 0, n_groups = 0;
    loom_run *run = malloc(sizeof *run);
    scored *rows = NULL;
    group *groups = NULL;
    loom_choice one_node, several;

    if (!run) {
        status = loom_fail(LOOM_E_MEMORY, "no memory to score %s", path);
        goto fail;
    }
    LOOM_TRY(loom_overrides_read(set, &overrides, &n_overrides));
    LOOM_TRY(loom_csv_load(path, &csv));
    rows = calloc((size_t)csv.rows, sizeof *rows);
    groups = calloc((size_t)csv.rows, sizeof *groups);
    if (!rows || !groups) {
        status = loom_fail(LOOM_E_MEMORY, "no memory for %d rows of %s", csv.rows, path);
        goto fail;
    }
    for (int i = 0; i < csv.rows; i++)
        LOOM_TRY(predict_row(&csv, i, overrides, n_overrides, run, &rows[i]));
    calibrate_with_one(&(table){&csv, overrides, n_overrides, run}, rows, csv.rows);
    sort_into_groups(rows, csv.rows, groups, &n_groups);
    LOOM_TRY(judge_choices(rows, csv.rows, &one_node, &several));
    if (format == LOOM_PLAN_AS_JSON) {
        tell_json(&out, rows, csv.rows, groups, n_groups, &one_node, &several);
        status = loom_text_take(&out, text);
    } else {
        tell_text(&out, rows, csv.rows, groups, n_groups, &one_node, &several);
        status = loom_text_take_wrapped(&out, LOOM_TEXT_WIDTH, 4, text);
    }

fail:
    free(groups);
    free(rows);
    free(overrides);
    loom_csv_free(&csv);
    free(run);
    return status;
}
