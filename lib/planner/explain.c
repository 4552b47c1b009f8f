/* "Why not this layout?", and where every rank of a layout sits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "planner/job.h"
#include "planner/limits.h"
#include "planner/predict.h"

/* --- why not ------------------------------------------------------------------------------------------------------------------ */

/* "needs 91.2 of 79.2 GiB on stage 0, of which 61.0 activations, 20.1 optimizer". */
static void explain_memory(loom_text *out, const loom_prediction *p)
{
    const loom_stage_memory *m = &p->memory[p->fullest];
    int most = 0, second = 0;

    for (int i = 1; i < LOOM_MEMORY_PARTS; i++)
        if (m->part[i] > m->part[most])
            most = i;
    second = most == 0;
    for (int i = 0; i < LOOM_MEMORY_PARTS; i++)
        if (i != most && m->part[i] > m->part[second])
            second = i;
    loom_text_add(out, "needs %.1f of %.1f GiB on stage %d, of which %.1f %s and %.1f %s", loom_gib(m->total), loom_gib(p->memory_limit),
                  p->fullest, loom_gib(m->part[most]), loom_memory_part_name(most), loom_gib(m->part[second]),
                  loom_memory_part_name(second));
}

static void compare(loom_text *out, const loom_prediction *asked, const loom_prediction *best)
{
    char layout[128];
    double behind = asked->step_s - best->step_s;

    loom_layout_describe(&best->layout, layout, sizeof layout);
    if (behind <= 0) {
        loom_text_add(out, "it is the plan: nothing that fits is faster\n");
        return;
    }
    loom_text_add(out, "the plan, %s, takes %.3g s, %.1f %% less:\n", layout, best->step_s, 100 * behind / asked->step_s);
    for (int i = 0; i < LOOM_TIME_PARTS; i++) {
        double more = asked->part_s[i] - best->part_s[i];
        if (fabs(more) > 0.05 * behind)
            loom_text_add(out, "  %+10.4f s %s\n", more, loom_time_part_name(i));
    }
}

/* Whole but illegal layouts are explained by their rules alone. */
static loom_status explain_rules(const char *text, loom_text *out)
{
    loom_text_add(out, "%s is no legal layout:\n%s\n", text, loom_last_error());
    return LOOM_OK;
}

static loom_status explain_legal(const loom_plan_request *request, const loom_layout *layout, loom_text *out)
{
    loom_prediction *asked = malloc(sizeof *asked);
    loom_plan *plan = NULL;
    char *full = NULL;
    loom_status status = asked ? loom_plan_predict(request, layout, asked) : loom_fail(LOOM_E_MEMORY, "no memory for a prediction");

    if (status >= 0)
        status = loom_prediction_describe(request, asked, LOOM_PLAN_AS_TEXT, &full);
    if (status >= 0)
        status = loom_plan_search(request, &plan);
    if (status >= 0) {
        loom_text_add(out, "%s\n", full);
        if (!asked->fits) {
            loom_text_add(out, "It does not fit: it ");
            explain_memory(out, asked);
            loom_text_add(out, ".\n");
        }
        if (plan->n_best)
            compare(out, asked, &plan->best[0]);
        else
            loom_text_add(out, "%s\n", plan->hopeless);
    }
    loom_text_free(full);
    loom_plan_free(plan);
    free(asked);
    return status;
}

loom_status loom_plan_explain(const loom_plan_request *request, const char *text, char **explanation)
{
    loom_text out = {0};
    loom_layout *layout = calloc(1, sizeof *layout);
    loom_status status = layout ? loom_layout_parse(text, text, layout) : loom_fail(LOOM_E_MEMORY, "no memory for a layout");

    if (status < 0) { /* not a layout at all */
        free(layout);
        return status;
    }
    status = loom_plan_layout(request, text, layout);
    if (status == LOOM_E_INVALID)
        status = explain_rules(text, &out);
    else if (status >= 0)
        status = explain_legal(request, layout, &out);
    free(layout);
    if (status >= 0)
        return loom_text_take_wrapped(&out, LOOM_TEXT_WIDTH, 4, explanation);
    loom_text_drop(&out);
    return status;
}

/* --- the map ---------------------------------------------------------------------------------------------------------------------- */

static void map_ranks(loom_text *out, const loom_topology *t, const loom_layout *l, int world)
{
    loom_text_add(out, "%6s %5s %6s %7s %5s %5s %5s %5s %5s %5s\n", "rank", "node", "local", "domain", "tp", "cp", "dp", "pp", "etp", "ep");
    for (int rank = 0; rank < world; rank++) {
        loom_coords c = loom_layout_coords(l, rank);
        loom_text_add(out, "%6d %5d %6d %7d %5d %5d %5d %5d %5d %5d\n", rank, loom_topology_node_of(t, rank),
                      loom_topology_local_rank(t, rank), loom_topology_domain_of(t, rank), c.at[LOOM_AXIS_TP], c.at[LOOM_AXIS_CP],
                      c.at[LOOM_AXIS_DP], c.at[LOOM_AXIS_PP], c.at[LOOM_AXIS_ETP], c.at[LOOM_AXIS_EP]);
    }
}

/* Members as "0-7" or "0, 8, 16": runs of neighbours, at most a line of them. */
static void map_members(loom_text *out, const int *members, int n)
{
    enum { MOST_RUNS = 12 };
    int runs = 0;

    for (int i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && members[i + run] == members[i] + run;)
            run++;
        if (++runs > MOST_RUNS) {
            loom_text_add(out, ", …");
            return;
        }
        loom_text_add(out, i ? ", %d" : "%d", members[i]);
        if (run > 1)
            loom_text_add(out, "-%d", members[i + run - 1]);
    }
}

static void map_groups(loom_text *out, const loom_topology *t, const loom_layout *l, int world, int *members)
{
    enum { SHOWN = 8 };

    for (int axis = 0; axis < LOOM_AXES; axis++) {
        int shown = 0, groups = 0;
        if (loom_layout_degree(l, axis) < 2)
            continue;
        loom_text_add(out, "\n%s groups of %d:\n", loom_axis_name(axis), loom_layout_degree(l, axis));
        for (int rank = 0; rank < world; rank++) {
            if (loom_layout_coords(l, rank).at[axis] != 0)
                continue; /* each group once, at its first member */
            groups++;
            if (++shown > SHOWN)
                continue;
            int n = loom_layout_group(l, axis, rank, members);
            loom_group_link link = loom_topology_group(t, members, n);
            loom_text_add(out, "  ");
            map_members(out, members, n);
            loom_text_add(out, "  (%s)\n", loom_level_name(link.level));
        }
        if (groups > SHOWN)
            loom_text_add(out, "  and %d more\n", groups - SHOWN);
    }
}

loom_status loom_plan_map(const loom_plan_request *request, const loom_layout *layout, char **text)
{
    loom_text out = {0};
    int world = loom_layout_world(layout);
    int *members = malloc((size_t)world * sizeof *members);

    if (!members)
        return loom_fail(LOOM_E_MEMORY, "no memory for a map of %d ranks", world);
    if (world > loom_topology_ranks(request->topology)) {
        free(members);
        return loom_fail(LOOM_E_INVALID, "the layout has %d ranks, the topology %d", world, loom_topology_ranks(request->topology));
    }
    map_ranks(&out, request->topology, layout, world);
    map_groups(&out, request->topology, layout, world, members);
    free(members);
    return loom_text_take(&out, text);
}
