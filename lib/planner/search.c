/* Branch and bound. Work of a layer depends on few fields (tp, cp, sp, recompute, cp kind, micro-batch: a "class"); a table of classes, sorted by
 * a bound on the step, is walked until the bound passes the incumbent. Below a class come pp, experts, rank order, schedule and ZeRO stage,
 * each with a bound of its own. */
#include "planner/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct layer_class {
    int tp, cp, micro_batch;
    bool sequence_parallel;
    loom_recompute recompute;
    loom_cp_kind cp_kind;
    double per_sample; /* seconds that the whole model takes for one sequence on tp x cp ranks, at least */
} layer_class;

typedef struct walk {
    loom_search *search;
    const loom_job *job;
    double overhead; /* what multiplies every step, at least */
    layer_class *classes;
    int n_classes, capacity;
    loom_found *scratch;
    int fastest[LOOM_MAX_STAGES]; /* layers of chunks when memory is no limit */
    bool has_kind[LOOM_LAYER_KINDS]; /* the model has such layers */
    bool only_experts;
} walk;

/* --- the incumbents ---------------------------------------------------------------------------------------------------------- */

static bool same_key(const loom_degrees *a, const loom_degrees *b)
{
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->ep == b->ep && a->etp == b->etp;
}

/* Seconds that a layout has to beat. */
static double bound_of(const walk *w)
{
    const loom_search *s = w->search;
    return s->n_found < s->keep ? INFINITY : s->found[s->n_found - 1].seconds;
}

static void keep_found(walk *w, const loom_found *candidate)
{
    loom_search *s = w->search;
    int at = 0, end;

    for (end = 0; end < s->n_found && !same_key(&s->found[end].degrees, &candidate->degrees); end++)
        ;
    if (end < s->n_found && s->found[end].seconds <= candidate->seconds)
        return;
    if (end == s->n_found && s->n_found < s->keep)
        s->n_found++;
    else if (end == s->n_found)
        end--; /* the slowest makes room */
    while (at < end && s->found[at].seconds <= candidate->seconds)
        at++;
    memmove(&s->found[at + 1], &s->found[at], (size_t)(end - at) * sizeof *s->found);
    s->found[at] = *candidate;
}

/* --- one layout ----------------------------------------------------------------------------------------------------------------- */

static double fullest_stage(const loom_job *job, const loom_degrees *g, const int *chunk_layers)
{
    double most = 0;

    for (int stage = 0; stage < g->pp; stage++)
        most = fmax(most, loom_stage_memory_of(job, g, chunk_layers, stage).total);
    return most;
}

static bool evaluate(const loom_job *job, const loom_degrees *g, const loom_layer_table *layers, const loom_memory_table *memory, double limit, double bound, loom_found *found)
{
    loom_step_cost cost;

    if (!loom_split_best(job, g, layers, memory, limit, bound, found->chunk_layers))
        return false;
    loom_step_cost_of(job, g, layers, memory, found->chunk_layers, &cost);
    found->seconds = cost.seconds;
    found->degrees = *g;
    return true;
}

bool loom_search_evaluate(const loom_job *job, loom_degrees *g, double limit, loom_found *found)
{
    loom_layer_table layers;

    loom_degrees_place(g, &job->machine);
    loom_memory_table memory = loom_memory_table_of(job, g);
    loom_layer_table_make(job, g, &layers);
    if (!evaluate(job, g, &layers, &memory, limit, INFINITY, found))
        return false;
    found->fullest = fullest_stage(job, g, found->chunk_layers);
    return true;
}

/* --- bounds ---------------------------------------------------------------------------------------------------------------------- */

static loom_group close(const loom_machine *machine, int n)
{
    int in = n < machine->domain ? n : machine->domain;
    return (loom_group){n, in, (n + in - 1) / in};
}

/* Every group as near together as any rank order can put it. */
static void place_close(loom_degrees *g, const loom_machine *machine)
{
    g->places.tp = close(machine, g->tp);
    g->places.cp = close(machine, g->cp);
    g->places.ep = close(machine, g->ep);
    g->places.etp = close(machine, g->etp);
}

/* Seconds of all layers and both ends, one micro-batch. */
static double whole_model(const loom_job *job, const loom_layer_table *t)
{
    int64_t experts = 0;

    for (int64_t i = 0; i < job->model.layers; i++)
        experts += loom_layer_kind_of(&job->model, i) == LOOM_LAYER_EXPERTS;
    double dense = (double)(job->model.layers - experts) * (t->forward[LOOM_LAYER_DENSE] + t->backward[LOOM_LAYER_DENSE]);
    return dense + (double)experts * (t->forward[LOOM_LAYER_EXPERTS] + t->backward[LOOM_LAYER_EXPERTS]) + t->embedding_forward + t->embedding_backward + t->head_forward + t->head_backward;
}

/* No pipeline is faster than all its work shared evenly over its stages. */
static double step_bound(const walk *w, double model_seconds, const loom_degrees *g)
{
    double m = (double)(w->job->global_batch / ((int64_t)g->micro_batch * g->dp));
    return m * model_seconds / g->pp * w->overhead;
}

/* Bytes of a stage with n layers and f micro-batches in flight, at least: whole + n layer + f (n kept + ends). Exact but for layers of
 * two kinds, where the lighter one counts. */
typedef struct stage_line {
    double whole, layer, kept, ends;
} stage_line;

/* One line for the first, the middle and the last stage (or, of one stage, for all of it). */
typedef struct stage_lines {
    stage_line first, middle, last;
} stage_lines;

static double least_bytes(const walk *w, const loom_degrees *g, const loom_memory_table *table, bool first, bool last, int layers, double in_flight)
{
    double least = INFINITY;

    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++) {
        loom_stage_load load = {{0}, first, last};
        load.layers[kind] = layers;
        if (kind == LOOM_LAYER_EXPERTS ? w->job->model.moe.experts > 0 : !w->only_experts)
            least = fmin(least, loom_memory_total(w->job, g, table, &load, in_flight));
    }
    return least;
}

static stage_line line_of(const walk *w, const loom_degrees *g, const loom_memory_table *table, bool first, bool last)
{
    double one = least_bytes(w, g, table, first, last, 1, 0), two = least_bytes(w, g, table, first, last, 2, 0);
    double one_flies = least_bytes(w, g, table, first, last, 1, 1), two_fly = least_bytes(w, g, table, first, last, 2, 1);
    stage_line line;

    line.layer = two - one;
    line.whole = one - line.layer;
    line.kept = two_fly - two - (one_flies - one);
    line.ends = one_flies - one - line.kept;
    return line;
}

static stage_lines lines_of(const walk *w, const loom_degrees *g, const loom_memory_table *table)
{
    return (stage_lines){line_of(w, g, table, true, g->pp == 1), line_of(w, g, table, false, false), line_of(w, g, table, false, true)};
}

static double most_layers(const stage_line *line, double in_flight, double limit)
{
    return fmax(0, floor((limit - line->whole - in_flight * line->ends) / (line->layer + in_flight * line->kept) + 1e-9));
}

/* Whether all layers find room, `most` at the most on any stage. */
static bool room_for_all(const walk *w, const loom_degrees *g, const stage_lines *lines, double most)
{
    double room = 0, layers = (double)w->job->model.layers;
    int64_t m = w->job->global_batch / ((int64_t)g->micro_batch * g->dp);
    int last = loom_degrees_stage_of_chunk(g, g->pp * g->vpp - 1);

    for (int stage = 0; stage < g->pp && room < layers; stage++) {
        const stage_line *line = stage == 0 ? &lines->first : stage == last ? &lines->last : &lines->middle;
        room += fmin(most, most_layers(line, loom_in_flight(g, stage, m), w->search->limit));
    }
    return room >= layers;
}

/* Some stage holds the mean number of layers or more; with the leanest ZeRO stage and one micro-batch in flight it needs this much. */
static bool too_large_anyhow(const walk *w, loom_degrees *g, const loom_memory_table *table)
{
    int layers = (int)((w->job->model.layers + g->pp - 1) / g->pp);
    double least = INFINITY;
    int zero = g->zero;

    g->zero = g->dp * g->cp > 1 ? 3 : 0;
    for (int leanest = g->zero; leanest >= 0; leanest--) { /* gathered layers can cost more than sharding saves */
        g->zero = leanest;
        least = fmin(least, least_bytes(w, g, table, g->pp == 1, g->pp == 1, layers, 1));
    }
    g->zero = zero;
    return least > w->search->limit;
}

/* --- the walk ------------------------------------------------------------------------------------------------------------------------ */

static bool fits(const walk *w, const loom_degrees *g, const int *chunk_layers, const loom_memory_table *memory)
{
    return loom_split_fits(w->job, g, memory, w->search->limit, chunk_layers);
}

static void visit_layout(walk *w, const loom_degrees *g, const loom_layer_table *layers, const loom_memory_table *memory)
{
    loom_found *found = w->scratch;
    loom_step_cost cost;

    w->search->evaluated++;
    memcpy(found->chunk_layers, w->fastest, (size_t)(g->pp * g->vpp) * sizeof *w->fastest);
    if (!fits(w, g, w->fastest, memory) && !loom_split_best(w->job, g, layers, memory, w->search->limit, bound_of(w) / w->overhead, found->chunk_layers))
        return;
    loom_step_cost_of(w->job, g, layers, memory, found->chunk_layers, &cost);
    found->seconds = cost.seconds;
    found->degrees = *g;
    if (found->seconds < bound_of(w))
        keep_found(w, found);
}

/* The same schedule under all ZeRO stages: only memory and the tail differ, so the split that is fastest without a memory limit serves all stages
 * under which it fits. */
static void visit_zero(walk *w, loom_degrees *g, const loom_layer_table *layers, const loom_memory_table *memory, const loom_choices *zero, const stage_lines *lines)
{
    double lightest = fmin(w->has_kind[0] ? layers->forward[0] + layers->backward[0] : INFINITY, w->has_kind[1] ? layers->forward[1] + layers->backward[1] : INFINITY);
    double bound = bound_of(w) / w->overhead;
    int64_t m = w->job->global_batch / ((int64_t)g->micro_batch * g->dp);
    bool tried = false, fastest_known = false;

    for (int j = 0; j < zero->count; j++) {
        g->zero = zero->at[j];
        if (!room_for_all(w, g, &lines[j], INFINITY)) {
            w->search->too_large++;
            continue;
        }
        if (!room_for_all(w, g, &lines[j], floor(bound / (m * lightest))))
            continue;
        if (!tried)
            fastest_known = loom_split_best(w->job, g, layers, memory, INFINITY, bound, w->fastest);
        tried = true;
        if (!fastest_known)
            return; /* not even without a limit */
        visit_layout(w, g, layers, memory);
    }
}

static void visit_schedules(walk *w, loom_degrees *g, const loom_layer_table *layers, const loom_memory_table *memory)
{
    loom_schedules schedules;
    loom_choices zero;
    stage_lines lines[4];

    loom_space_schedules(&w->search->space, g->pp, w->job->global_batch / ((int64_t)g->micro_batch * g->dp), &schedules);
    loom_space_zero(&w->search->space, g->dp * g->cp, &zero);
    for (int j = 0; j < zero.count; j++) {
        g->zero = zero.at[j];
        lines[j] = lines_of(w, g, memory);
    }
    for (int i = 0; i < schedules.count; i++) {
        g->pipeline = schedules.pipeline[i];
        g->vpp = schedules.vpp[i];
        visit_zero(w, g, layers, memory, &zero, lines);
    }
}

static bool same_places(const loom_places *a, const loom_places *b)
{
    return memcmp(&a->tp, &b->tp, sizeof a->tp) == 0 && memcmp(&a->cp, &b->cp, sizeof a->cp) == 0 && memcmp(&a->ep, &b->ep, sizeof a->ep) == 0 && memcmp(&a->etp, &b->etp, sizeof a->etp) == 0;
}

static void visit_orders(walk *w, loom_degrees *g, const loom_memory_table *memory)
{
    loom_orders orders;
    loom_layer_table layers;
    loom_places of_table = {0};
    loom_places seen[24];

    loom_space_orders(g->tp, g->cp, g->dp, g->pp, &orders);
    for (int i = 0; i < orders.count; i++) {
        bool again = false;
        memcpy(g->order, orders.at[i], sizeof g->order);
        loom_degrees_place(g, &w->job->machine);
        seen[i] = g->places;
        for (int j = 0; j < i && !again; j++) /* an order that puts every group where another did costs the same */
            again = memcmp(&seen[i], &seen[j], sizeof seen[i]) == 0;
        if (again)
            continue;
        if (!same_places(&of_table, &g->places)) {
            loom_layer_table_make(w->job, g, &layers);
            of_table = g->places;
        }
        if (step_bound(w, whole_model(w->job, &layers), g) < bound_of(w))
            visit_schedules(w, g, &layers, memory);
    }
}

static void visit_experts(walk *w, loom_degrees *g)
{
    loom_choices etp, ep;
    int stage_ranks = g->tp * g->cp * g->dp;
    loom_layer_table layers;

    loom_space_etp(&w->search->space, g->tp, stage_ranks, &etp);
    for (int i = 0; i < etp.count; i++) {
        loom_space_ep(&w->search->space, etp.at[i], stage_ranks, &ep);
        for (int j = 0; j < ep.count; j++) {
            g->etp = etp.at[i];
            g->ep = ep.at[j];
            place_close(g, &w->job->machine);
            loom_layer_table_make(w->job, g, &layers);
            if (step_bound(w, whole_model(w->job, &layers), g) >= bound_of(w))
                continue;
            for (int axis = 0; axis < 4; axis++)
                g->order[axis] = axis;
            loom_degrees_place(g, &w->job->machine);
            loom_memory_table memory = loom_memory_table_of(w->job, g);
            if (too_large_anyhow(w, g, &memory))
                w->search->too_large++;
            else
                visit_orders(w, g, &memory);
        }
    }
}

static void visit_class(walk *w, const layer_class *c)
{
    loom_choices pp;

    loom_space_pp(&w->search->space, c->tp, c->cp, &pp);
    for (int i = 0; i < pp.count; i++) {
        loom_degrees g = {.tp = c->tp, .cp = c->cp, .pp = pp.at[i], .vpp = 1, .micro_batch = c->micro_batch, .sequence_parallel = c->sequence_parallel, .recompute = c->recompute, .cp_kind = c->cp_kind};
        g.dp = w->search->space.world / (c->tp * c->cp * g.pp);
        if (w->job->global_batch % ((int64_t)g.dp * g.micro_batch) == 0)
            visit_experts(w, &g);
    }
}

/* --- the table of classes ----------------------------------------------------------------------------------------------------------------- */

/* Work of the class with experts spread as thin as they go and no exchange between them: less than any choice of ep and etp. */
static double class_bound(const walk *w, const layer_class *c)
{
    loom_degrees g = {.tp = c->tp, .cp = c->cp, .dp = 1, .pp = 1, .vpp = 1, .ep = 1, .etp = 1, .micro_batch = c->micro_batch, .sequence_parallel = c->sequence_parallel, .recompute = c->recompute, .cp_kind = c->cp_kind};
    loom_layer_table layers;

    place_close(&g, &w->job->machine);
    loom_layer_table_make_bound(w->job, &g, &layers);
    return whole_model(w->job, &layers) / c->micro_batch;
}

static bool add_class(walk *w, layer_class c)
{
    if (w->n_classes == w->capacity) {
        int capacity = w->capacity ? 2 * w->capacity : 4096;
        layer_class *more = realloc(w->classes, (size_t)capacity * sizeof *more);
        if (!more)
            return false;
        w->classes = more;
        w->capacity = capacity;
    }
    c.per_sample = class_bound(w, &c);
    w->classes[w->n_classes++] = c;
    return true;
}

/* Micro-batches that some dp of this tp and cp allows. */
static void micro_batches_of(const walk *w, int tp, int cp, loom_choices *all)
{
    loom_choices pp, of_dp;

    all->count = 0;
    loom_space_pp(&w->search->space, tp, cp, &pp);
    for (int i = 0; i < pp.count; i++) {
        loom_space_micro_batch(&w->search->space, w->search->space.world / (tp * cp * pp.at[i]), &of_dp);
        for (int j = 0; j < of_dp.count; j++) {
            bool known = false;
            for (int k = 0; k < all->count && !known; k++)
                known = all->at[k] == of_dp.at[j];
            if (!known && all->count < LOOM_MOST_CHOICES)
                all->at[all->count++] = of_dp.at[j];
        }
    }
}

static bool add_classes(walk *w, int tp, int cp)
{
    loom_choices sp, kind, recompute, micro_batch;

    loom_space_sequence_parallel(&w->search->space, tp, cp, &sp);
    loom_space_cp_kind(&w->search->space, tp, cp, &kind);
    loom_space_recompute(&w->search->space, &recompute);
    micro_batches_of(w, tp, cp, &micro_batch);
    for (int i = 0; i < micro_batch.count; i++)
        for (int j = 0; j < sp.count; j++)
            for (int k = 0; k < kind.count; k++)
                for (int l = 0; l < recompute.count; l++)
                    if (!add_class(w, (layer_class){tp, cp, micro_batch.at[i], sp.at[j], recompute.at[l], kind.at[k], 0}))
                        return false;
    return true;
}

static int by_bound(const void *a, const void *b)
{
    const layer_class *x = a, *y = b;
    double left = x->per_sample * x->tp * x->cp, right = y->per_sample * y->tp * y->cp;
    return (left > right) - (left < right);
}

static bool make_classes(walk *w)
{
    loom_choices tp, cp;

    loom_space_tp(&w->search->space, &tp);
    for (int i = 0; i < tp.count; i++) {
        loom_space_cp(&w->search->space, tp.at[i], &cp);
        for (int j = 0; j < cp.count; j++)
            if (!add_classes(w, tp.at[i], cp.at[j]))
                return false;
    }
    qsort(w->classes, (size_t)w->n_classes, sizeof *w->classes, by_bound);
    return true;
}

loom_status loom_search_run(loom_search *s)
{
    walk w = {.search = s, .job = s->space.job};
    int world = s->space.world;

    s->n_found = 0;
    s->evaluated = s->too_large = 0;
    for (int64_t i = 0; i < w.job->model.layers; i++)
        w.has_kind[loom_layer_kind_of(&w.job->model, i)] = true;
    w.only_experts = !w.has_kind[LOOM_LAYER_DENSE];
    w.overhead = (1 + loom_soft(w.job, LOOM_SOFT_JITTER) * log2(world)) * w.job->factor;
    w.scratch = malloc(sizeof *w.scratch);
    if (!w.scratch || !make_classes(&w)) {
        free(w.classes);
        free(w.scratch);
        return loom_fail(LOOM_E_MEMORY, "no memory to search layouts of %d ranks", world);
    }
    for (int i = 0; i < w.n_classes; i++) {
        const layer_class *c = &w.classes[i];
        if ((double)w.job->global_batch / world * c->tp * c->cp * c->per_sample * w.overhead >= bound_of(&w))
            break; /* and so are all behind it */
        visit_class(&w, c);
    }
    for (int i = 0; i < s->n_found; i++)
        s->found[i].fullest = fullest_stage(w.job, &s->found[i].degrees, s->found[i].chunk_layers);
    free(w.classes);
    free(w.scratch);
    return LOOM_OK;
}
