/* Splits of layers over stages: dynamic programming over (stage, layers already placed). */
#include "planner/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_up(loom_layer_table *t)
{
    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++) {
        t->forward[kind] = loom_pass_seconds(&t->layer[kind].forward);
        t->backward[kind] = loom_pass_seconds(&t->layer[kind].backward);
        t->weight[kind] = t->layer[kind].backward.weight;
    }
    t->embedding_forward = loom_pass_seconds(&t->embedding.forward);
    t->embedding_backward = loom_pass_seconds(&t->embedding.backward);
    t->head_forward = loom_pass_seconds(&t->head.forward);
    t->head_backward = loom_pass_seconds(&t->head.backward);
    t->head_weight = t->head.backward.weight;
}

/* All but layers with experts. */
static void set_dense(const loom_job *job, const loom_degrees *g, loom_layer_table *t)
{
    memset(t, 0, sizeof *t);
    t->layer[LOOM_LAYER_DENSE] = loom_layer_cost(job, g, LOOM_LAYER_DENSE);
    t->embedding = loom_embedding_cost(job, g);
    t->head = loom_head_cost(job, g);
}

void loom_layer_table_passes(const loom_job *job, const loom_degrees *g, loom_layer_table *t)
{
    set_dense(job, g, t);
    loom_layer_table_change_experts(job, g, t, t);
}

void loom_layer_table_change_experts(const loom_job *job, const loom_degrees *g, const loom_layer_table *like, loom_layer_table *t)
{
    if (t != like)
        *t = *like;
    if (job->model.moe.experts > 0)
        t->layer[LOOM_LAYER_EXPERTS] = loom_layer_cost(job, g, LOOM_LAYER_EXPERTS);
    add_up(t);
}

void loom_layer_table_make_bound(const loom_job *job, const loom_degrees *g, loom_layer_table *t)
{
    set_dense(job, g, t);
    if (job->model.moe.experts > 0)
        t->layer[LOOM_LAYER_EXPERTS] = loom_layer_cost_bound(job, g);
    add_up(t);
}

void loom_layer_table_shard(const loom_job *job, const loom_degrees *g, const loom_memory_table *memory, const loom_layer_table *passes,
                            loom_layer_table *t)
{
    const loom_weights embedding = {memory->embedding, 0}, head = {memory->head, 0};

    *t = *passes;
    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++)
        if (kind == LOOM_LAYER_DENSE || job->model.moe.experts > 0)
            loom_add_sharding(job, g, &memory->weights[kind], &t->layer[kind]);
    loom_add_sharding(job, g, &embedding, &t->embedding);
    loom_add_sharding(job, g, &head, &t->head);
    add_up(t);
}

void loom_layer_table_make(const loom_job *job, const loom_degrees *g, loom_layer_table *t)
{
    loom_layer_table passes;

    loom_layer_table_passes(job, g, &passes);
    loom_memory_table memory = loom_memory_table_of(job, g);
    loom_layer_table_shard(job, g, &memory, &passes, t);
}

enum { MOST_LAYERS = 1024 };

typedef struct splitter {
    const loom_job *job;
    const loom_degrees *g;
    const loom_layer_table *layers;
    const loom_memory_table *memory;
    double limit, bound;
    int n_layers, stages;
    int experts_before[MOST_LAYERS + 1];                        /* among the first so many layers */
    double forward[MOST_LAYERS + 1], backward[MOST_LAYERS + 1]; /* sums over the first so many layers */
    double in_flight[LOOM_MAX_STAGES];
    loom_memory_line middle[LOOM_LAYER_KINDS];     /* of stages that are neither first nor last */
    short most[LOOM_LAYER_KINDS][LOOM_MAX_STAGES]; /* layers of one kind that fit; -2: not worked out yet */
    double micro_batches;
    double worst; /* a term from which on nobody is interested */
} splitter;

static void prepare_memory(splitter *s)
{
    s->n_layers = (int)s->job->model.layers;
    s->experts_before[0] = 0;
    for (int i = 0; i < s->n_layers; i++)
        s->experts_before[i + 1] = s->experts_before[i] + (loom_layer_kind_of(&s->job->model, i) == LOOM_LAYER_EXPERTS);
    s->micro_batches = (double)loom_micro_batches_of(s->job, s->g);
    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++)
        s->middle[kind] = loom_memory_line_of(s->job, s->g, s->memory, kind, false, false);
    for (int i = 0; i < s->stages; i++) {
        s->in_flight[i] = loom_in_flight(s->g, i, (int64_t)s->micro_batches);
        s->most[LOOM_LAYER_DENSE][i] = s->most[LOOM_LAYER_EXPERTS][i] = -2;
    }
}

static void prepare_time(splitter *s)
{
    s->forward[0] = s->backward[0] = 0;
    for (int i = 0; i < s->n_layers; i++) {
        loom_layer_kind kind = s->experts_before[i + 1] > s->experts_before[i] ? LOOM_LAYER_EXPERTS : LOOM_LAYER_DENSE;
        s->forward[i + 1] = s->forward[i] + s->layers->forward[kind];
        s->backward[i + 1] = s->backward[i] + s->layers->backward[kind];
    }
}

static loom_stage_load load_of(const splitter *s, int stage, int first, int n)
{
    int experts = s->experts_before[first + n] - s->experts_before[first];
    return (loom_stage_load){{n - experts, experts}, stage == 0, stage == s->stages - 1};
}

static bool load_fits(const splitter *s, int stage, const loom_stage_load *load)
{
    return loom_memory_total(s->job, s->g, s->memory, load, s->in_flight[stage]) <= s->limit;
}

/* Most layers of one kind that fit on a stage: memory grows evenly with each. -1: not even none. */
static int most_that_fit(const splitter *s, int stage, loom_layer_kind kind)
{
    bool first = stage == 0, last = stage == s->stages - 1;
    loom_memory_line line = first || last ? loom_memory_line_of(s->job, s->g, s->memory, kind, first, last) : s->middle[kind];
    double room = s->limit - line.whole - s->in_flight[stage] * line.ends, each = line.layer + s->in_flight[stage] * line.kept;

    if (room >= each)
        return room < each * (s->n_layers + 1) ? (int)(room / each) : s->n_layers;
    loom_stage_load none = {{0}, first, last};
    return load_fits(s, stage, &none) ? 0 : -1;
}

/* The same, worked out once. */
static int most_known(splitter *s, int stage, loom_layer_kind kind)
{
    if (s->most[kind][stage] < -1)
        s->most[kind][stage] = (short)most_that_fit(s, stage, kind);
    return s->most[kind][stage];
}

static bool fits(splitter *s, int stage, int first, int n)
{
    loom_stage_load load = load_of(s, stage, first, n);
    loom_layer_kind kind = load.layers[LOOM_LAYER_DENSE] == 0 ? LOOM_LAYER_EXPERTS : LOOM_LAYER_DENSE;

    if (load.layers[kind] != n)
        return load_fits(s, stage, &load);
    return n <= most_known(s, stage, kind);
}

/* Seconds of the layers before `first` and of the embedding, forward and backward. */
static double before(const splitter *s, int stage, int first)
{
    double ends = stage > 0 ? s->layers->embedding_forward + s->layers->embedding_backward : 0;
    return s->forward[first] + s->backward[first] + ends;
}

/* What stage `stage` with layers first .. first + n - 1 makes the whole pipeline take at least; the largest of all stages is what it takes.
 */
static double stage_term(const splitter *s, int stage, int first, int n)
{
    bool last = stage == s->stages - 1;
    double f =
        s->forward[first + n] - s->forward[first] + (stage == 0 ? s->layers->embedding_forward : 0) + (last ? s->layers->head_forward : 0);
    double b = s->backward[first + n] - s->backward[first] + (stage == 0 ? s->layers->embedding_backward : 0) +
               (last ? s->layers->head_backward : 0);

    if (s->g->pipeline != LOOM_PIPE_1F1B)
        return f + b;
    double all = s->forward[s->n_layers] + s->backward[s->n_layers] + s->layers->embedding_forward + s->layers->embedding_backward +
                 s->layers->head_forward + s->layers->head_backward;
    double ahead = before(s, stage, first), after = loom_larger(0, all - ahead - f - b);
    double k = loom_smaller(s->stages - stage - 1, s->micro_batches - 1);
    double drain = loom_smaller(after, loom_larger(0, after - k * f) + loom_larger(0, after - k * b));
    return ahead + s->micro_batches * (f + b) + drain;
}

/* What stage_term() cannot fall below, with this many layers or more. */
static double busy_bound(const splitter *s, int stage, int first, int n)
{
    double busy = s->forward[first + n] - s->forward[first] + s->backward[first + n] - s->backward[first];
    return s->g->pipeline == LOOM_PIPE_1F1B ? before(s, stage, first) + s->micro_batches * busy : busy;
}

/* Best choice of stage `stage` when u layers stand before it and low .. high may stand before the next. best: the least possible largest
 * term of this stage and those after it. */
static unsigned short choose(splitter *s, int stage, int u, int low, int high, const double *next, double *best)
{
    int chosen = 0;

    *best = s->worst;
    for (int n = low > u ? low - u : 0; u + n <= high; n++) {
        if (busy_bound(s, stage, u, n) >= *best)
            break; /* more layers only make it worse */
        double value = loom_larger(stage_term(s, stage, u, n), next[u + n]);
        if (value >= *best)
            continue;
        if (!fits(s, stage, u, n))
            break; /* nor do more layers */
        *best = value;
        chosen = n;
    }
    if (*best >= s->worst)
        *best = INFINITY;
    return (unsigned short)chosen;
}

/* A pipeline of `bound` seconds or more has a term like this: every schedule is busy m times on its busiest stage. */
static double worst_term(const splitter *s)
{
    return s->g->pipeline == LOOM_PIPE_1F1B ? s->bound : s->bound / s->micro_batches;
}

/* Layers that can stand before each stage if no stage takes more than fits, or more than the bound leaves time for. */
typedef struct corridor {
    int low[LOOM_MAX_STAGES + 1], high[LOOM_MAX_STAGES + 1];
} corridor;

static int most_of_stage(splitter *s, int stage)
{
    double lightest = INFINITY;
    int in_time = s->n_layers, in_memory = -1;

    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++) {
        if (kind == LOOM_LAYER_EXPERTS ? s->experts_before[s->n_layers] == 0 : s->experts_before[s->n_layers] == s->n_layers)
            continue; /* the model has no such layers */
        lightest = loom_smaller(lightest, s->layers->forward[kind] + s->layers->backward[kind]);
        int most = most_known(s, stage, kind);
        in_memory = most > in_memory ? most : in_memory;
    }
    if (s->g->pipeline == LOOM_PIPE_1F1B)
        lightest *= s->micro_batches;
    if (s->worst < lightest * s->n_layers)
        in_time = (int)(s->worst / lightest);
    return in_time < in_memory ? in_time : in_memory;
}

static bool find_corridor(splitter *s, corridor *c)
{
    int most[LOOM_MAX_STAGES];

    c->low[0] = c->high[0] = 0;
    for (int stage = 0; stage < s->stages; stage++) {
        most[stage] = most_of_stage(s, stage);
        if (most[stage] < 0)
            return false;
        c->high[stage + 1] = c->high[stage] + most[stage] < s->n_layers ? c->high[stage] + most[stage] : s->n_layers;
    }
    if (c->high[s->stages] < s->n_layers)
        return false;
    c->low[s->stages] = s->n_layers;
    for (int stage = s->stages - 1; stage > 0; stage--) {
        int low = c->low[stage + 1] - most[stage];
        c->low[stage] = low > 0 ? low : 0;
    }
    return true;
}

/* Works from the last stage back; take[stage][u] remembers how many layers each choice gives. */
static bool solve(splitter *s, unsigned short *take, int *chunk_layers)
{
    double best[MOST_LAYERS + 1], next[MOST_LAYERS + 1];
    int width = s->n_layers + 1;
    corridor c;

    if (!find_corridor(s, &c))
        return false;
    for (int u = 0; u < width; u++)
        next[u] = u == s->n_layers ? 0 : INFINITY;
    for (int stage = s->stages - 1; stage >= 0; stage--) {
        for (int u = c.low[stage]; u <= c.high[stage]; u++)
            take[stage * width + u] = choose(s, stage, u, c.low[stage + 1], c.high[stage + 1], next, &best[u]);
        for (int u = c.low[stage]; u <= c.high[stage]; u++)
            next[u] = best[u];
    }
    if (!(next[0] < INFINITY))
        return false;
    for (int stage = 0, u = 0; stage < s->stages; u += chunk_layers[stage++])
        chunk_layers[stage] = take[stage * width + u];
    return true;
}

static bool split_stages(splitter *s, int *chunk_layers)
{
    unsigned short *take = malloc((size_t)s->stages * (size_t)(s->n_layers + 1) * sizeof *take);
    bool found = take && solve(s, take, chunk_layers);

    free(take);
    return found;
}

/* --- several chunks a stage -------------------------------------------------------------------------------------------------------- */

static double chunk_seconds(const splitter *s, int chunk, int first, int n)
{
    double seconds = s->forward[first + n] - s->forward[first] + s->backward[first + n] - s->backward[first];
    if (chunk == 0)
        seconds += s->layers->embedding_forward + s->layers->embedding_backward;
    if (chunk == s->g->pp * s->g->vpp - 1)
        seconds += s->layers->head_forward + s->layers->head_backward;
    return seconds;
}

/* earliest[c]: the first layer that chunk c may begin with so that it and all chunks after it stay within `bound` seconds. False: the
 * layers do not find room. */
static bool earliest_within(const splitter *s, double bound, int *earliest)
{
    int begin = s->n_layers;

    for (int chunk = s->g->pp * s->g->vpp - 1; chunk >= 0; chunk--) {
        int n = 0;
        if (chunk_seconds(s, chunk, begin, 0) > bound)
            return false;
        while (n < begin && chunk_seconds(s, chunk, begin - n - 1, n + 1) <= bound)
            n++;
        begin -= n;
        earliest[chunk] = begin;
    }
    return begin == 0;
}

static bool chunks_fit(const splitter *s, const int *chunk_layers)
{
    loom_stage_load loads[LOOM_MAX_STAGES];
    int first = 0, chunks = s->g->pp * s->g->vpp;

    memset(loads, 0, (size_t)s->stages * sizeof *loads);
    loads[0].first = true;
    loads[loom_degrees_stage_of_chunk(s->g, chunks - 1)].last = true;
    for (int chunk = 0; chunk < chunks; first += chunk_layers[chunk++]) {
        loom_stage_load *load = &loads[loom_degrees_stage_of_chunk(s->g, chunk)];
        int experts = s->experts_before[first + chunk_layers[chunk]] - s->experts_before[first];
        load->layers[LOOM_LAYER_EXPERTS] += experts;
        load->layers[LOOM_LAYER_DENSE] += chunk_layers[chunk] - experts;
    }
    for (int stage = 0; stage < s->stages; stage++)
        if (!load_fits(s, stage, &loads[stage]))
            return false;
    return true;
}

/* Least bound on the busiest chunk, then boundaries as near to equal shares as that bound allows. */
static bool split_chunks(const splitter *s, int *chunk_layers)
{
    int chunks = s->g->pp * s->g->vpp, earliest[LOOM_MAX_STAGES + 1], begin = 0;
    double low, high = 0, ends = s->layers->embedding_forward + s->layers->embedding_backward;

    double share =
        (ends + s->forward[s->n_layers] + s->backward[s->n_layers] + s->layers->head_forward + s->layers->head_backward) / chunks;
    for (int chunk = 0, first = 0; chunk < chunks; chunk++) { /* the even split is one */
        int n = s->n_layers / chunks + (chunk < s->n_layers % chunks);
        high = loom_larger(high, chunk_seconds(s, chunk, first, n));
        first += n;
    }
    low = share;
    for (int i = 0; i < 16; i++) {
        double middle = (low + high) / 2;
        if (earliest_within(s, middle, earliest))
            high = middle;
        else
            low = middle;
    }
    earliest_within(s, high, earliest);
    earliest[chunks] = s->n_layers;
    for (int chunk = 0; chunk < chunks; begin += chunk_layers[chunk++]) {
        int end = earliest[chunk + 1];
        double target = (chunk + 1) * share - ends;
        while (end < s->n_layers && chunk_seconds(s, chunk, begin, end + 1 - begin) <= high &&
               s->forward[end + 1] + s->backward[end + 1] - target < target - s->forward[end] - s->backward[end])
            end++;
        chunk_layers[chunk] = end - begin;
    }
    return chunks_fit(s, chunk_layers);
}

/* Interleaved stages go through the rows of chunks (the k-th of every stage) side by side, and a row takes as long as its longest chunk. */
static double rows_seconds(const splitter *s, const int *chunk_layers)
{
    double rows = 0;

    for (int row = 0, chunk = 0, first = 0; row < s->g->vpp; row++) {
        double longest = 0;
        for (int i = 0; i < s->g->pp; i++, first += chunk_layers[chunk++])
            longest = loom_larger(longest, chunk_seconds(s, chunk, first, chunk_layers[chunk]));
        rows += longest;
    }
    return rows;
}

/* The slowest chunk gives a layer away. */
static void shorten_slowest(const splitter *s, int *chunk_layers)
{
    int slowest = -1;
    double longest = 0;

    for (int chunk = 0, first = 0; chunk < s->g->pp * s->g->vpp; first += chunk_layers[chunk++]) {
        double seconds = chunk_seconds(s, chunk, first < s->n_layers ? first : s->n_layers, 0);
        for (int i = first; i < first + chunk_layers[chunk]; i++) /* layers too many stand behind the last, and cost what it costs */
            seconds += i < s->n_layers ? chunk_seconds(s, -1, i, 1) : chunk_seconds(s, -1, s->n_layers - 1, 1);
        if (chunk_layers[chunk] > 0 && seconds >= longest) {
            longest = seconds;
            slowest = chunk;
        }
    }
    chunk_layers[slowest]--;
}

/* `per_stage` layers a stage, the same in each chunk of a row, the longer rows last; what that is too many, the slowest chunks do without. */
static bool split_rows(const splitter *s, int per_stage, int *chunk_layers)
{
    int pp = s->g->pp, vpp = s->g->vpp, longer = per_stage % vpp;

    for (int chunk = 0; chunk < pp * vpp; chunk++)
        chunk_layers[chunk] = per_stage / vpp + (chunk / pp >= vpp - longer);
    for (int over = per_stage * pp - s->n_layers; over > 0; over--)
        shorten_slowest(s, chunk_layers);
    return chunks_fit(s, chunk_layers);
}

/* Of even rows, one more layer a stage to leave out at the ends, and the busiest chunk as short as can be, the one whose rows are fastest. */
static bool split_interleaved(const splitter *s, int *chunk_layers)
{
    int candidate[LOOM_MAX_STAGES], even = (s->n_layers + s->g->pp - 1) / s->g->pp;
    bool found = split_chunks(s, chunk_layers);
    double best = found ? rows_seconds(s, chunk_layers) : INFINITY;

    for (int per_stage = even; per_stage <= even + 1; per_stage++) {
        if (!split_rows(s, per_stage, candidate))
            continue;
        double seconds = rows_seconds(s, candidate);
        if (seconds < best) {
            best = seconds;
            found = true;
            memcpy(chunk_layers, candidate, (size_t)(s->g->pp * s->g->vpp) * sizeof *candidate);
        }
    }
    return found;
}

bool loom_split_fits(const loom_job *job, const loom_degrees *g, const loom_memory_table *memory, double limit, const int *chunk_layers)
{
    splitter s; /* large: only what is read gets a value */

    s.job = job;
    s.g = g;
    s.memory = memory;
    s.limit = limit;
    s.stages = g->pp;
    prepare_memory(&s);
    return chunks_fit(&s, chunk_layers);
}

bool loom_split_best(const loom_job *job, const loom_degrees *g, const loom_layer_table *layers, const loom_memory_table *memory,
                     double limit, double bound, int *chunk_layers)
{
    splitter s;

    if (job->model.layers > MOST_LAYERS)
        return false;
    s.job = job;
    s.g = g;
    s.layers = layers;
    s.memory = memory;
    s.limit = limit;
    s.bound = bound;
    s.stages = g->pp;
    prepare_memory(&s);
    prepare_time(&s);
    s.worst = worst_term(&s);
    if (g->vpp == 1)
        return split_stages(&s, chunk_layers);
    return g->pipeline == LOOM_PIPE_INTERLEAVED ? split_interleaved(&s, chunk_layers) : split_chunks(&s, chunk_layers);
}
