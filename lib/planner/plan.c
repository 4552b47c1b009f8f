/* The public search: arrangements of ranks, the fastest layouts of each, and the reasons. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/try.h"
#include "planner/finalists.h"
#include "planner/job.h"
#include "planner/predict.h"

/* Ranks that a layout may use: all, or fewer where groups would not fit nodes otherwise, or where the user asks for the front. */
typedef struct arrangement {
    int world, domain;
} arrangement;
enum { MOST_ARRANGEMENTS = 48, LEAST_FINALISTS = 4, MOST_SIMULATED = 2000000 /* actions: about half a second */ };

typedef struct planning {
    const loom_plan_request *request;
    loom_job job;
    loom_limits limits;
    double memory_limit;
    int keep, shown; /* splits that are looked at again in virtual time, at least those that are shown */
    arrangement at[MOST_ARRANGEMENTS];
    int n_arrangements;
    loom_search search;
    loom_found *merged; /* [LOOM_MOST_FOUND] over all arrangements */
    int n_merged;
    loom_plan *plan;
} planning;

/* --- arrangements --------------------------------------------------------------------------------------------------------------- */

static void arrange(planning *p, int world, int domain)
{
    int most = p->request->max_gpus > 0 ? p->request->max_gpus : world;

    world = world < most ? world : most;
    for (int i = 0; i < p->n_arrangements; i++)
        if (p->at[i].world == world && p->at[i].domain == domain)
            return;
    if (world > 0 && p->n_arrangements < MOST_ARRANGEMENTS)
        p->at[p->n_arrangements++] = (arrangement){world, domain};
}

static void find_arrangements(planning *p)
{
    const loom_topology *t = p->request->topology;
    int ranks = loom_topology_ranks(t), domain = p->job.machine.domain, power = 1;

    arrange(p, ranks, domain);
    for (int size = 2; size <= 8 && domain < size; size *= 2) { /* uneven nodes: leave ranks out so that groups of `size` stay inside */
        int inside = loom_topology_ranks_in_nodes(t, size);
        if (inside > 0)
            arrange(p, inside, size);
    }
    while (2 * power <= ranks)
        power *= 2;
    if (p->request->fewer_gpus)
        for (; power >= 1; power /= 2)
            arrange(p, power, power < domain ? power : domain);
    else if (ranks > domain / 2)
        arrange(p, power, domain); /* degrees are powers of two more often than not: 64 of 72 */
}

/* --- searching ------------------------------------------------------------------------------------------------------------------- */

/* Of this thread's processor: other programs do not make a search slow. */
static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ranks_of(const loom_degrees *g)
{
    return g->tp * g->cp * g->dp * g->pp;
}

static void merge(planning *p)
{
    for (int i = 0; i < p->search.n_found; i++) {
        const loom_found *candidate = &p->search.found[i];
        int at = p->n_merged;
        while (at > 0 && p->merged[at - 1].seconds > candidate->seconds)
            at--;
        if (at >= p->keep)
            continue;
        int end = p->n_merged < p->keep ? p->n_merged++ : p->keep - 1;
        memmove(&p->merged[at + 1], &p->merged[at], (size_t)(end - at) * sizeof *p->merged);
        p->merged[at] = *candidate;
    }
}

/* Searches one arrangement for the `keep` fastest layouts of `job` within `limit` bytes and below so many seconds. */
static loom_status search_in(planning *p, loom_job *job, arrangement a, double limit, double below, int keep)
{
    job->machine.domain = a.domain;
    p->search.space = (loom_space){job, &p->limits, a.world};
    p->search.limit = limit;
    p->search.below = below;
    p->search.keep = keep;
    return loom_search_run(&p->search);
}

static loom_status search_all(planning *p)
{
    for (int i = 0; i < p->n_arrangements; i++) {
        loom_job job = p->job;
        loom_status status = search_in(p, &job, p->at[i], p->memory_limit, INFINITY, p->keep);
        if (status < 0)
            return status;
        p->plan->legal += loom_space_count(&p->search.space);
        p->plan->evaluated += p->search.evaluated;
        p->plan->rejected[0].count += p->search.too_large;
        merge(p);
    }
    return LOOM_OK;
}

/* The fastest layout of `job` within `limit` bytes that takes less than `below` seconds; found->seconds is `below` when none does. */
static loom_status fastest(planning *p, loom_job *job, double limit, double below, loom_found *found)
{
    found->seconds = below;
    for (int i = 0; i < p->n_arrangements; i++) {
        loom_status status = search_in(p, job, p->at[i], limit, found->seconds, 1);
        if (status < 0)
            return status;
        if (p->search.n_found && p->search.found[0].seconds < found->seconds)
            *found = p->search.found[0];
    }
    return LOOM_OK;
}

static void describe(const loom_found *found, const loom_job *job, char *text, size_t bytes)
{
    loom_layout layout;

    loom_layout_of_degrees(&found->degrees, job, found->chunk_layers, &layout);
    loom_layout_describe(&layout, text, bytes);
}

/* --- reasons ---------------------------------------------------------------------------------------------------------------------- */

static const struct {
    loom_time_part part;
    const char *words;
} waits[] = {
    {LOOM_TIME_TP, "tensor-parallel communication"},
    {LOOM_TIME_CP, "context-parallel communication"},
    {LOOM_TIME_EP, "the exchange of experts"},
    {LOOM_TIME_DP, "gradient reduction and weight gathers"},
    {LOOM_TIME_PP, "messages between stages"},
    {LOOM_TIME_BUBBLE, "the pipeline's bubble"},
    {LOOM_TIME_LAUNCH, "launching kernels from the host"},
    {LOOM_TIME_POINTWISE, "memory-bound kernels"},
};

static loom_status find_binding(planning *p)
{
    const loom_prediction *best = &p->plan->best[0];
    loom_found *free_of_memory = p->merged + p->keep; /* one place more than is kept */
    char layout[128];
    loom_job job = p->job;
    int most = 0;
    double below = 0.98 * fmin(p->merged[0].seconds, best->step_s);
    loom_status status = fastest(p, &job, 2 * p->memory_limit, below, free_of_memory); /* no device has more than the next larger one */

    if (status < 0)
        return status;
    if (free_of_memory->seconds < below) {
        describe(free_of_memory, &p->job, layout, sizeof layout);
        snprintf(p->plan->binding, sizeof p->plan->binding, "memory: stage %d takes %.1f of %.1f GiB; with %.1f GiB, %s would take %.3g s",
                 best->fullest, loom_gib(best->memory[best->fullest].total), loom_gib(best->memory_limit), loom_gib(free_of_memory->fullest),
                 layout, free_of_memory->seconds);
        return LOOM_OK;
    }
    for (int i = 1; i < (int)(sizeof waits / sizeof waits[0]); i++)
        if (best->part_s[waits[i].part] > best->part_s[waits[most].part])
            most = i;
    double share = best->part_s[waits[most].part] / best->step_s;
    if (share > 0.1)
        snprintf(p->plan->binding, sizeof p->plan->binding, "%s takes %.0f %% of the step", waits[most].words, 100 * share);
    else
        snprintf(p->plan->binding, sizeof p->plan->binding, "compute: GEMM and attention take %.0f %% of the step",
                 100 * (best->part_s[LOOM_TIME_GEMM] + best->part_s[LOOM_TIME_ATTENTION]) / best->step_s);
    return LOOM_OK;
}

static const char *words_of(loom_time_part part)
{
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++)
        if (waits[i].part == part)
            return waits[i].words;
    return loom_time_part_name(part);
}

static void compare_runner_up(loom_plan *plan)
{
    if (plan->n_best < 2)
        return;

    const loom_prediction *best = &plan->best[0], *second = &plan->best[1];
    double behind = second->step_s - best->step_s;
    char layout[128];
    int part = 0;

    for (int i = 1; i < LOOM_TIME_PARTS; i++)
        if (second->part_s[i] - best->part_s[i] > second->part_s[part] - best->part_s[part])
            part = i;
    loom_layout_describe(&second->layout, layout, sizeof layout);
    double excess = second->part_s[part] - best->part_s[part], needed = second->part_s[part] > 0 ? behind / second->part_s[part] : 1;
    char hope[64] = "without that it would still not win";
    if (needed < 1)
        snprintf(hope, sizeof hope, "it would win if that cost %.0f %% less", 100 * needed);
    if (behind < 0.001 * best->step_s)
        snprintf(plan->runner_up, sizeof plan->runner_up, "%s is as fast", layout);
    else
        snprintf(plan->runner_up, sizeof plan->runner_up, "%s is %.1f %% slower: %.3g s more for %s; %s", layout,
                 100 * behind / best->step_s, excess, words_of(part), hope);
}

/* What one could change, cheapest first: a switch, a number in the run file, then hardware. */
typedef struct idea {
    const char *text;
    void (*apply)(planning *p, loom_job *job, double *limit);
} idea;

static void better_tp(planning *p, loom_job *job, double *limit)
{
    (void)p, (void)limit;
    job->soft[LOOM_SOFT_TP_HIDDEN].value = fmax(job->soft[LOOM_SOFT_TP_HIDDEN].value, 0.6);
}

static void better_ep(planning *p, loom_job *job, double *limit)
{
    (void)p, (void)limit;
    job->soft[LOOM_SOFT_EP_HIDDEN].value = fmax(job->soft[LOOM_SOFT_EP_HIDDEN].value, 0.7);
}

static void better_dp(planning *p, loom_job *job, double *limit)
{
    (void)p, (void)limit;
    job->soft[LOOM_SOFT_DP_WINDOW].value = job->soft[LOOM_SOFT_GATHER_WINDOW].value = 0.9;
}

static void half_gradients(planning *p, loom_job *job, double *limit)
{
    (void)p, (void)limit;
    job->soft[LOOM_SOFT_GRADIENT_BYTES].value = fmin(job->soft[LOOM_SOFT_GRADIENT_BYTES].value, 2);
}

static void fewer_launches(planning *p, loom_job *job, double *limit)
{
    (void)p, (void)limit;
    job->soft[LOOM_SOFT_HOST_FACTOR].value = 0;
}

static void fp8(planning *p, loom_job *job, double *limit)
{
    (void)p, (void)limit;
    if (job->bits == 16 && loom_dev(&job->machine, LOOM_DEV_PEAK_8) > 0)
        job->bits = 8;
}

static void twice_the_batch(planning *p, loom_job *job, double *limit)
{
    (void)p, (void)limit;
    job->global_batch *= 2;
}

static void no_margin(planning *p, loom_job *job, double *limit)
{
    (void)p;
    *limit = loom_dev(&job->machine, LOOM_DEV_MEMORY_BYTES) * 0.98;
}

static void more_memory(planning *p, loom_job *job, double *limit)
{
    (void)p, (void)job;
    *limit *= 1.5;
}

static void twice_the_network(planning *p, loom_job *job, double *limit)
{
    (void)p, (void)limit;
    job->machine.dev[LOOM_DEV_NET_RATE].value *= 2;
}

static const idea ideas[] = {
    {"overlap gradient reduction and weight gathers", better_dp},
    {"overlap tensor-parallel communication with chunked GEMMs", better_tp},
    {"overlap the exchange of experts with other work", better_ep},
    {"capture the step in graphs, so that launches cost nothing", fewer_launches},
    {"reduce gradients in 16 bits", half_gradients},
    {"leave 2 % of the memory free, not more", no_margin},
    {"double the global batch", twice_the_batch},
    {"8-bit GEMMs", fp8},
    {"half as much memory again on every device", more_memory},
    {"twice the network bandwidth", twice_the_network},
};

static loom_status advise(planning *p)
{
    loom_plan *plan = p->plan;
    loom_found *found = p->merged + p->keep;
    char layout[128];

    for (size_t i = 0; i < sizeof ideas / sizeof ideas[0] && plan->n_changes < LOOM_PLAN_CHANGES; i++) {
        loom_job job = p->job;
        double limit = p->memory_limit;
        ideas[i].apply(p, &job, &limit);
        double now = p->merged[0].seconds * (double)job.global_batch / (double)p->job.global_batch;
        loom_status status = fastest(p, &job, limit, 0.98 * now, found);
        if (status < 0)
            return status;
        if (found->seconds >= 0.98 * now)
            continue;
        loom_plan_change *change = &plan->changes[plan->n_changes++];
        describe(found, &job, layout, sizeof layout);
        change->gain = 1 - found->seconds / now;
        snprintf(change->text, sizeof change->text, "%s: %s", ideas[i].text, layout);
    }
    return LOOM_OK;
}

/* --- nothing fits -------------------------------------------------------------------------------------------------------------------- */

/* The one condition without which there are layouts, or all of them together. False: the conditions are not to blame. */
static bool explain_conditions(planning *p)
{
    loom_limits fewer = {.count = 0};
    const loom_space all = {&p->job, &fewer, p->at[0].world}, asked = {&p->job, &p->limits, p->at[0].world};

    if (p->limits.count == 0 || loom_space_count(&asked) > 0 || loom_space_count(&all) == 0)
        return false;
    for (int i = 0; i < p->limits.count; i++) {
        char condition[48], values[96];
        fewer.count = 0;
        for (int j = 0; j < p->limits.count; j++)
            if (j != i)
                fewer.at[fewer.count++] = p->limits.at[j];
        uint64_t count = loom_space_count(&all);
        if (count == 0)
            continue;
        loom_condition_describe(&p->limits.at[i], condition, sizeof condition);
        loom_space_values(&all, p->limits.at[i].field, values, sizeof values);
        snprintf(p->plan->hopeless, sizeof p->plan->hopeless,
                 "no legal layout of %d ranks meets the condition %s; without it there are %llu%s%s", all.world, condition,
                 (unsigned long long)count, values[0] ? ", with " : "", values);
        return true;
    }
    snprintf(p->plan->hopeless, sizeof p->plan->hopeless, "no legal layout of %d ranks meets all %d conditions, nor all but one of them",
             all.world, p->limits.count);
    return true;
}

/* The leanest of the layouts that divide the most: full recompute, one sequence at a time. */
static void explain_nothing(planning *p)
{
    const loom_space space = {&p->job, &p->limits, p->at[0].world};
    loom_choices tp, pp;
    double least = INFINITY;
    char text[128] = "";

    if (explain_conditions(p))
        return;
    loom_space_tp(&space, &tp);
    for (int i = 0; i < tp.count; i++) {
        loom_space_pp(&space, tp.at[i], 1, &pp);
        for (int j = 0; j < pp.count; j++) {
            loom_found *found = p->merged;
            int dp = space.world / (tp.at[i] * pp.at[j]);
            found->degrees = (loom_degrees){.tp = tp.at[i],
                                            .cp = 1,
                                            .dp = dp,
                                            .pp = pp.at[j],
                                            .vpp = 1,
                                            .ep = 1,
                                            .etp = 1,
                                            .zero = dp > 1 ? 3 : 0,
                                            .micro_batch = 1,
                                            .sequence_parallel = tp.at[i] > 1,
                                            .pipeline = LOOM_PIPE_1F1B,
                                            .recompute = LOOM_RECOMPUTE_FULL,
                                            .order = {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}};
            if (loom_search_evaluate(&p->job, &found->degrees, 1e30, found) && found->fullest < least) {
                least = found->fullest;
                describe(found, &p->job, text, sizeof text);
            }
        }
    }
    if (text[0])
        snprintf(p->plan->hopeless, sizeof p->plan->hopeless,
                 "no layout fits: the leanest (%s, full recompute) needs %.1f GiB on its fullest stage, %.1f GiB are there with the margin "
                 "taken off; fewer layers or parameters, more devices, or offload would help",
                 text, loom_gib(least), loom_gib(p->memory_limit));
    else
        snprintf(
            p->plan->hopeless, sizeof p->plan->hopeless,
            "every layout of %d ranks breaks a rule: with each of the %d tensor-parallel degrees that divide ranks and heads, no number "
            "of stages up to %lld layers leaves a dp that divides the global batch of %lld; a multiple of %d sequences would",
            space.world, tp.count, (long long)p->job.model.layers, (long long)p->job.global_batch, space.world);
}

/* --- Pareto ------------------------------------------------------------------------------------------------------------------ */

enum { MOST_FRONT = 24 };

static bool dominated(const loom_found *front, int n, const loom_found *f)
{
    for (int i = 0; i < n; i++)
        if (front[i].seconds <= f->seconds && front[i].fullest <= f->fullest && ranks_of(&front[i].degrees) <= ranks_of(&f->degrees))
            return true;
    return false;
}

/* For each number of ranks: the fastest, then the fastest that takes less memory than that one by a twentieth, and so on. */
static loom_status find_front(planning *p, loom_found *front, int *n)
{
    *n = 0;
    for (int i = 0; i < p->n_arrangements; i++) {
        double limit = p->memory_limit;
        while (*n < MOST_FRONT) {
            loom_job job = p->job;
            loom_status status = search_in(p, &job, p->at[i], limit, INFINITY, 1);
            if (status < 0)
                return status;
            if (!p->search.n_found)
                break;
            const loom_found *found = &p->search.found[0];
            limit = 0.95 * found->fullest;
            if (!dominated(front, *n, found))
                front[(*n)++] = *found;
        }
    }
    return LOOM_OK;
}

static int faster_prediction_first(const void *a, const void *b)
{
    double x = ((const loom_prediction *)a)->step_s, y = ((const loom_prediction *)b)->step_s;
    return (x > y) - (x < y);
}

static loom_status predict_all(planning *p, const loom_found *found, int n, loom_prediction **predictions)
{
    loom_prediction *all = calloc((size_t)(n ? n : 1), sizeof *all);

    if (!all)
        return loom_fail(LOOM_E_MEMORY, "no memory for %d predictions", n);
    for (int i = 0; i < n; i++)
        loom_predict_degrees(&p->job, &found[i].degrees, found[i].chunk_layers, p->memory_limit, &all[i]);
    *predictions = all;
    return LOOM_OK;
}

static double fullest_of(const loom_prediction *p)
{
    return p->memory[p->fullest].total;
}

/* Fastest first, without those that another beats: simulated pipelines can change the order of closed forms. Returns how many stay. */
static int thin_front(loom_prediction *front, int n)
{
    int kept = 0;

    qsort(front, (size_t)n, sizeof *front, faster_prediction_first);
    for (int i = 0; i < n; i++) {
        bool beaten = false;
        for (int j = 0; j < kept && !beaten; j++)
            beaten = fullest_of(&front[j]) <= fullest_of(&front[i]) &&
                     loom_layout_world(&front[j].layout) <= loom_layout_world(&front[i].layout);
        if (!beaten)
            front[kept++] = front[i];
    }
    return kept;
}

static loom_status add_front(planning *p)
{
    loom_found *front = calloc(MOST_FRONT, sizeof *front);
    int n = 0;
    loom_status status = front ? find_front(p, front, &n) : loom_fail(LOOM_E_MEMORY, "no memory for the front");

    if (status >= 0) {
        status = predict_all(p, front, n, &p->plan->front);
        p->plan->n_front = status >= 0 ? thin_front(p->plan->front, n) : 0;
    }
    free(front);
    return status;
}

/* --- what the rules took away ------------------------------------------------------------------------------------------------ */

static void reject(loom_plan *plan, const char *reason, uint64_t count)
{
    if (count == 0 || plan->n_rejected == LOOM_PLAN_RULES)
        return;
    snprintf(plan->rejected[plan->n_rejected].reason, LOOM_PLAN_TEXT, "%s", reason);
    plan->rejected[plan->n_rejected++].count = count;
}

static void count_rejected(planning *p)
{
    const loom_model *m = &p->job.model;
    uint64_t heads = 0, layers = 0, batch = 0, sequence = 0;
    int world = p->at[0].world;

    for (int n = 1; n <= world; n++) {
        if (world % n)
            continue;
        heads += m->heads % n != 0 || (m->kv_heads % n != 0 && n % m->kv_heads != 0);
        layers += n > m->layers;
        batch += p->job.global_batch % n != 0;
        sequence += n > 1 && p->job.seq % (2 * (int64_t)n) != 0;
    }
    p->plan->n_rejected = 1;
    snprintf(p->plan->rejected[0].reason, LOOM_PLAN_TEXT, "memory");
    reject(p->plan, "tp-heads", heads);
    reject(p->plan, "pp-layers", layers);
    reject(p->plan, "batch", batch);
    reject(p->plan, "seq", sequence);
}

/* --- the call ---------------------------------------------------------------------------------------------------------------- */

static loom_status prepare(planning *p)
{
    loom_status status;
    const loom_plan_request *r = p->request;
    char fixed[32];
    const char *micro_batch[2] = {fixed, NULL};

    LOOM_TRY(loom_job_make(r, &p->job));
    LOOM_TRY(loom_job_calibrate(r, &p->job));
    LOOM_TRY(loom_limits_of(r, &p->job, &p->limits));
    if (r->train.micro_batch > 0 && p->limits.count < LOOM_MOST_CONDITIONS) {
        loom_limits more;
        snprintf(fixed, sizeof fixed, "micro_batch=%lld", (long long)r->train.micro_batch);
        LOOM_TRY(loom_limits_read(micro_batch, NULL, &more));
        p->limits.at[p->limits.count++] = more.at[0];
    }
    p->memory_limit = loom_job_memory_limit(r, &p->job);
    p->shown = r->keep > 0 ? (r->keep < LOOM_MOST_FOUND ? r->keep : LOOM_MOST_FOUND - 1) : 5;
    p->keep = p->shown > LEAST_FINALISTS ? p->shown : LEAST_FINALISTS;
    p->search.found = calloc(LOOM_MOST_FOUND + 1, sizeof *p->search.found);
    p->merged = calloc(LOOM_MOST_FOUND + 2, sizeof *p->merged);
    p->plan = calloc(1, sizeof *p->plan);
    if (!p->search.found || !p->merged || !p->plan)
        return loom_fail(LOOM_E_MEMORY, "no memory for a plan");
    find_arrangements(p);
    return LOOM_OK;

fail:
    return status;
}

/* Schedules in virtual time: closed forms are not exact for all of them. */
static void refine(planning *p)
{
    loom_space space = {&p->job, &p->limits, p->at[0].world};
    int64_t actions = MOST_SIMULATED;

    for (int i = 0; i < p->n_merged; i++)
        p->plan->simulated += loom_finalist_refine(&space, p->memory_limit, &actions, &p->merged[i]);
}

static loom_status fill(planning *p)
{
    loom_status status;
    double start = seconds_now();

    LOOM_TRY(search_all(p));
    p->plan->seconds = seconds_now() - start;
    p->plan->peak_bytes = (2 * LOOM_MOST_FOUND + 3) * sizeof *p->merged + p->search.peak_bytes;
    count_rejected(p);
    if (p->n_merged == 0) {
        explain_nothing(p);
        return LOOM_OK;
    }
    start = seconds_now();
    refine(p);
    p->plan->simulation_s = seconds_now() - start;
    LOOM_TRY(predict_all(p, p->merged, p->n_merged, &p->plan->best));
    p->plan->n_best = p->n_merged < p->shown ? p->n_merged : p->shown;
    qsort(p->plan->best, (size_t)p->n_merged, sizeof *p->plan->best, faster_prediction_first); /* the finalists have been simulated */
    LOOM_TRY(find_binding(p));
    compare_runner_up(p->plan);
    if (p->request->advise)
        LOOM_TRY(advise(p));
    if (p->request->pareto)
        LOOM_TRY(add_front(p));
    return LOOM_OK;

fail:
    return status;
}

loom_status loom_plan_search(const loom_plan_request *request, loom_plan **plan)
{
    planning *p = calloc(1, sizeof *p);
    loom_status status;

    if (!p)
        return loom_fail(LOOM_E_MEMORY, "no memory for a plan");
    p->request = request;
    status = prepare(p);
    if (status >= 0)
        status = fill(p);
    if (status >= 0)
        *plan = p->plan;
    else
        loom_plan_free(p->plan);
    free(p->search.found);
    free(p->merged);
    free(p);
    return status;
}

void loom_plan_free(loom_plan *plan)
{
    if (!plan)
        return;
    free(plan->best);
    free(plan->front);
    free(plan);
}
