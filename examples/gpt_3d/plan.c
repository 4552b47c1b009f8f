#include "plan.h"
#include "try.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBE_SECONDS = 4 };

/* A balance loss over the tokens of a micro-batch makes the micro-batch part of the model; else it is the plan's to choose. */
static int64_t fixed_micro_batch(const gpt_run *run)
{
    const loom_moe *moe = &run->model.moe;

    return moe->experts > 0 && moe->balance == LOOM_BALANCE_SWITCH ? run->train.micro_batch : 0;
}

static void say(const loom_plan *plan, const loom_topology *topology)
{
    const loom_prediction *best = &plan->best[0];
    char text[256];

    printf("planned  %s: %.1f ms a step (%.1f to %.1f), %.0f tokens/s, the fastest of %llu legal layouts\n",
           loom_layout_describe(&best->layout, text, sizeof text), 1e3 * best->step_s, 1e3 * best->low_s, 1e3 * best->high_s, best->tokens_per_s,
           (unsigned long long)plan->legal);
    if (plan->n_best > 1)
        printf("         next %s: %.1f ms\n", loom_layout_describe(&plan->best[1].layout, text, sizeof text), 1e3 * plan->best[1].step_s);
    printf("         with the figures of %s\n", topology->measured[0] ? topology->measured : topology->source);
}

static loom_status search(gpt_run *run, const loom_topology *topology, int world)
{
    loom_plan_request request = {.model = &run->model,
                                 .topology = topology,
                                 .train = {.global_batch = run->train.global_batch,
                                           .micro_batch = fixed_micro_batch(run),
                                           .seq = run->train.seq,
                                           .precision = LOOM_F32},
                                 .max_gpus = world,
                                 .exclude = loom_engine_excluded()};
    loom_plan *plan = NULL;
    loom_status status = loom_plan_search(&request, &plan);

    if (status == LOOM_OK && plan->n_best == 0)
        status = loom_fail(LOOM_E_INVALID, "layout: auto: %s", plan->hopeless);
    if (status == LOOM_OK) {
        run->layout = plan->best[0].layout;
        say(plan, topology);
    }
    loom_plan_free(plan);
    return status < 0 ? status : loom_layout_check(&run->layout, &run->model, world);
}

static loom_status load_topology(const gpt_run *run, int world, loom_topology **topology)
{
    TRY(loom_topology_load(run->topology, topology));
    if (loom_topology_ranks(*topology) < world)
        return loom_fail(LOOM_E_INVALID, "topology: %s has %d devices, and there are %d ranks", run->topology, loom_topology_ranks(*topology), world);
    return LOOM_OK;
}

/* What rank 0 has to tell. */
typedef struct verdict {
    int64_t status;
    char message[2048];
    loom_layout layout;
} verdict;

/* Collective: whatever happened on rank 0, the others hear of it. */
static loom_status plan_with(gpt_run *run, loom_comm *world, loom_topology *topology, loom_status status)
{
    verdict *v = calloc(1, sizeof *v);

    if (!v)
        return loom_fail(LOOM_E_MEMORY, "no memory for a planned layout");
    if (loom_comm_rank(world) == 0) {
        if (status == LOOM_OK)
            status = search(run, topology, loom_comm_size(world));
        v->status = status;
        if (status < 0)
            snprintf(v->message, sizeof v->message, "%s", loom_last_error());
        v->layout = run->layout;
    }
    status = loom_comm_broadcast_host(world, v, sizeof *v, 0);
    if (status == LOOM_OK && v->status < 0)
        status = loom_fail((loom_status)v->status, "%s", v->message);
    run->layout = v->layout;
    free(v);
    return status;
}

loom_status gpt_plan(gpt_run *run, loom_comm *world)
{
    loom_topology *topology = NULL;
    loom_status status = LOOM_OK;

    if (!run->topology[0]) {
        loom_probe_config config = {.budget_s = PROBE_SECONDS,
                                    .model = &run->model,
                                    .train = {.seq = run->train.seq, .micro_batch = run->train.micro_batch}};
        TRY(loom_probe(world, &config, &topology));
    } else if (loom_comm_rank(world) == 0) {
        status = load_topology(run, loom_comm_size(world), &topology);
    }
    status = plan_with(run, world, topology, status);
    loom_topology_free(topology);
    loom_device_reset_peak(loom_comm_device(world)); /* the measurement's buffers are not the training's */
    return status;
}

loom_status gpt_plan_dry(gpt_run *run, int world)
{
    loom_topology *topology = NULL;
    loom_status status;

    if (!run->topology[0])
        return loom_fail(LOOM_E_INVALID, "layout: auto measures the ranks at hand, and a dry run has none: name a `topology:` file (rankloom probe -n %d -o FILE)",
                         world > 0 ? world : 1);
    status = load_topology(run, world, &topology);
    if (status == LOOM_OK)
        status = search(run, topology, world > 0 ? world : loom_topology_ranks(topology));
    loom_topology_free(topology);
    return status;
}
