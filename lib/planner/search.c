/* Branch and bound. Work of a layer depends on few fields (tp, cp, sp, recompute, cp kind, micro-batch: a "class"); a table of classes,
 * sorted by a bound on the step, is walked until the bound passes the incumbent. Below a class come pp, experts, rank order, schedule and
 * ZeRO stage, each with a bound of its own. */
#include "planner/search.h"

#include "planner/calibrate.h"

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
    double layers_of[LOOM_LAYER_KINDS];
    loom_group *close;         /* [ranks] of groups of so many ranks, once asked for */
    struct pass_table *tables; /* of the class at work */
    int n_tables;
    loom_layer_table spare;
} walk;

/* Passes through layers of a class under some split of the experts: the same for all pp and dp. First with every group close together, then
 * as rank orders place them. */
typedef struct pass_table {
    int ep, etp;
    loom_places places;
    loom_layer_table layers;
    struct pass_table *next; /* the same split, placed otherwise */
} pass_table;
enum { MOST_TABLES = 1024 };

/* --- the incumbents ---------------------------------------------------------------------------------------------------------- */

static bool same_key(const loom_degrees *a, const loom_degrees *b)
{
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->ep == b->ep && a->etp == b->etp;
}

/* Seconds that a layout has to beat. */
static double bound_of(const walk *w)
{
    const loom_search *s = w->search;
    return s->n_found < s->keep ? s->below : s->found[s->n_found - 1].seconds;
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
        most = loom_larger(most, loom_stage_memory_of(job, g, chunk_layers, stage).total);
    return most;
}

static bool evaluate(const loom_job *job, const loom_degrees *g, const loom_layer_table *layers, const loom_memory_table *memory,
                     double limit, double bound, loom_found *found)
{
    loom_step_cost cost;

    if (!loom_split_best(job, g, layers, memory, limit, bound, found->chunk_layers))
        return false;
    loom_step_cost_of(job, g, layers, memory, found->chunk_layers, &cost);
    found->seconds = cost.seconds * loom_calibration_factor(&job->calibration, g);
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

static bool cheaper(const loom_machine *m, loom_group a, loom_group b)
{
    for (double bytes = 1e-9; bytes < 1e13; bytes *= 1e21)
        if (loom_reduce_seconds(m, a, bytes) > loom_reduce_seconds(m, b, bytes) ||
            loom_gather_seconds(m, a, bytes) > loom_gather_seconds(m, b, bytes) ||
            loom_exchange_seconds(m, a, bytes, 0) > loom_exchange_seconds(m, b, bytes, 0))
            return false;
    return true;
}

/* A group as no rank order can place it cheaper: close together, or spread where the links of a host are slower than its network; where
 * neither is cheaper in everything, nothing at all. */
static loom_group find_close(const loom_machine *machine, int n)
{
    int in = n < machine->domain ? n : machine->domain;
    loom_group near = {n, in, (n + in - 1) / in}, spread = {n, 1, n};

    if (n == 1 || cheaper(machine, near, spread))
        return near;
    return cheaper(machine, spread, near) ? spread : (loom_group){1, 1, 1};
}

static loom_group close(walk *w, int n)
{
    if (w->close[n].n == 0)
        w->close[n] = find_close(&w->job->machine, n);
    return w->close[n];
}

/* Every group as near together as any rank order can put it. */
static void place_close(walk *w, loom_degrees *g)
{
    g->places.tp = close(w, g->tp);
    g->places.cp = close(w, g->cp);
    g->places.ep = close(w, g->ep);
    g->places.etp = close(w, g->etp);
}

/* Seconds of all layers and both ends, one micro-batch. */
static double whole_model(const walk *w, const loom_layer_table *t)
{
    double layers = 0;

    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++)
        layers += w->layers_of[kind] * (t->forward[kind] + t->backward[kind]);
    return layers + t->embedding_forward + t->embedding_backward + t->head_forward + t->head_backward;
}

/* No pipeline is faster than all its work shared evenly over its stages. */
static double step_bound(const walk *w, double model_seconds, const loom_degrees *g)
{
    double m = (double)loom_micro_batches_of(w->job, g);
    return m * model_seconds / g->pp * w->overhead;
}

/* At least what the first, the middle and the last stage hold (or, of one stage, all of it). Exact but for layers of two kinds, where the
 * lighter one counts. */
typedef struct stage_lines {
    loom_memory_line first, middle, last;
} stage_lines;

static loom_memory_line line_of(const walk *w, const loom_degrees *g, const loom_memory_table *table, bool first, bool last)
{
    loom_memory_line least = {INFINITY, INFINITY, INFINITY, INFINITY};

    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++) {
        if (w->layers_of[kind] == 0)
            continue;
        loom_memory_line line = loom_memory_line_of(w->job, g, table, kind, first, last);
        least.whole = loom_smaller(least.whole, line.whole);
        least.layer = loom_smaller(least.layer, line.layer);
        least.kept = loom_smaller(least.kept, line.kept);
        least.ends = loom_smaller(least.ends, line.ends);
    }
    return least;
}

static double bytes_on(const loom_memory_line *line, double layers, double in_flight)
{
    return line->whole + layers * line->layer + in_flight * (layers * line->kept + line->ends);
}

static double most_layers(const loom_memory_line *line, double in_flight, double limit)
{
    double room = limit - line->whole - in_flight * line->ends;
    return loom_larger(0, floor(room / (line->layer + in_flight * line->kept) + 1e-9));
}

/* Whether all layers find room, `most` at the most on any stage. */
static bool room_for_all(const walk *w, const loom_degrees *g, const stage_lines *lines, double most)
{
    double room = 0, layers = (double)w->job->model.layers;
    int64_t m = loom_micro_batches_of(w->job, g);
    int last = loom_degrees_stage_of_chunk(g, g->pp * g->vpp - 1);

    for (int stage = 0; stage < g->pp && room < layers; stage++) {
        const loom_memory_line *line = stage == 0 ? &lines->first : stage == last ? &lines->last : &lines->middle;
        room += loom_smaller(most, most_layers(line, loom_in_flight(g, stage, m), w->search->limit));
    }
    return room >= layers;
}

/* Some stage holds the mean number of layers or more; with one micro-batch in flight and any ZeRO stage it needs at least this much. */
static bool too_large_anyhow(const walk *w, loom_degrees *g, const loom_memory_table *table)
{
    double layers = (double)((w->job->model.layers + g->pp - 1) / g->pp);
    int zero = g->zero;
    bool too_large = true;

    for (g->zero = g->dp * g->cp > 1 ? 3 : 0; too_large && g->zero >= 0;
         g->zero--) { /* gathered layers can cost more than sharding saves */
        loom_memory_line line = line_of(w, g, table, g->pp == 1, g->pp == 1);
        too_large = bytes_on(&line, layers, 1) > w->search->limit;
    }
    g->zero = zero;
    return too_large;
}

/* --- the walk ------------------------------------------------------------------------------------------------------------------------ */

static void visit_layout(walk *w, const loom_degrees *g, const loom_layer_table *layers, const loom_memory_table *memory)
{
    w->search->evaluated++;
    if (evaluate(w->job, g, layers, memory, w->search->limit, bound_of(w) / w->overhead, w->scratch) && w->scratch->seconds < bound_of(w))
        keep_found(w, w->scratch);
}

static double lightest_layer(const walk *w, const loom_layer_table *layers)
{
    double least = INFINITY;

    for (int kind = 0; kind < LOOM_LAYER_KINDS; kind++)
        if (w->layers_of[kind] > 0)
            least = loom_smaller(least, layers->forward[kind] + layers->backward[kind]);
    return least;
}

/* What holds of one ZeRO stage whatever the rank order: memory, and the schedules that leave room for all layers. */
typedef struct roomy {
    loom_memory_table memory;
    stage_lines lines;
    loom_schedules schedules;
} roomy;

/* Whether all layers find room if every stage were as roomy as one in the middle, under the schedule with the fewest micro-batches in
 * flight on every stage, which is 1F1B. */
static bool room_under_any(const walk *w, const loom_degrees *g, const loom_memory_line *middle)
{
    const stage_lines lines = {*middle, *middle, *middle};
    loom_degrees plain = *g;

    plain.pipeline = LOOM_PIPE_1F1B;
    plain.vpp = 1;
    return room_for_all(w, &plain, &lines, INFINITY);
}

static void find_roomy(walk *w, loom_degrees *g, roomy *r)
{
    loom_schedules all;

    r->schedules.count = 0;
    r->lines.middle = line_of(w, g, &r->memory, false, false);
    if (!room_under_any(w, g, &r->lines.middle)) {
        w->search->too_large++;
        return;
    }
    r->lines.first = line_of(w, g, &r->memory, true, g->pp == 1);
    r->lines.last = line_of(w, g, &r->memory, false, true);
    loom_space_schedules(&w->search->space, g->pp, loom_micro_batches_of(w->job, g), &all);
    for (int i = 0; i < all.count; i++) {
        g->pipeline = all.pipeline[i];
        g->vpp = all.vpp[i];
        if (room_for_all(w, g, &r->lines, INFINITY)) {
            r->schedules.pipeline[r->schedules.count] = g->pipeline;
            r->schedules.vpp[r->schedules.count++] = g->vpp;
        } else {
            w->search->too_large++;
        }
    }
}

static void visit_schedules(walk *w, loom_degrees *g, const loom_layer_table *layers, const roomy *r)
{
    int64_t m = loom_micro_batches_of(w->job, g);
    double lightest = lightest_layer(w, layers);

    for (int i = 0; i < r->schedules.count; i++) {
        g->pipeline = r->schedules.pipeline[i];
        g->vpp = r->schedules.vpp[i];
        if (room_for_all(w, g, &r->lines, floor(bound_of(w) / w->overhead / (m * lightest))))
            visit_layout(w, g, layers, &r->memory);
    }
}

/* What the place of pipeline and gradient groups costs, apart from the layers: a hop's bandwidth and latency, and those of each group that
 * reduces or gathers. */
typedef struct tail_price {
    double at[18];
} tail_price;

static tail_price price_of(const walk *w, const loom_degrees *g)
{
    const loom_machine *m = &w->job->machine;
    const loom_group groups[4] = {g->places.gradient, g->places.gradient_outer, g->places.expert_gradient, g->places.ends};
    tail_price p;
    int n = 0;

    p.at[n++] = loom_hop_seconds(m, g->places.pp, 1e-9);
    p.at[n++] = loom_hop_seconds(m, g->places.pp, 1e12);
    for (int i = 0; i < 4; i++) {
        p.at[n++] = loom_reduce_seconds(m, groups[i], 1e-9);
        p.at[n++] = loom_reduce_seconds(m, groups[i], 1e12);
        p.at[n++] = loom_gather_seconds(m, groups[i], 1e-9);
        p.at[n++] = loom_gather_seconds(m, groups[i], 1e12);
    }
    return p;
}

static bool no_cheaper(const tail_price *a, const tail_price *b)
{
    for (int i = 0; i < 18; i++)
        if (a->at[i] < b->at[i])
            return false;
    return true;
}

/* Places on which the passes through layers depend. ZeRO-2 and 3 move weights and gradients beside every layer. */
static bool same_layers(const loom_places *a, const loom_places *b, int zero)
{
    bool same = memcmp(&a->tp, &b->tp, sizeof a->tp) == 0 && memcmp(&a->cp, &b->cp, sizeof a->cp) == 0 &&
                memcmp(&a->ep, &b->ep, sizeof a->ep) == 0 && memcmp(&a->etp, &b->etp, sizeof a->etp) == 0;
    return same && (zero < 2 || (memcmp(&a->gradient, &b->gradient, sizeof a->gradient) == 0 &&
                                 memcmp(&a->expert_gradient, &b->expert_gradient, sizeof a->expert_gradient) == 0));
}

/* Rank orders, the places that each gives and what those cost: the same for all ZeRO stages. */
typedef struct placings {
    loom_orders orders;
    loom_places places[LOOM_MOST_ORDERS];
    tail_price price[LOOM_MOST_ORDERS];
} placings;

static void find_placings(const walk *w, loom_degrees *g, placings *p)
{
    loom_space_orders(g->tp, g->cp, g->dp, g->pp, &p->orders);
    for (int i = 0; i < p->orders.count; i++) {
        memcpy(g->order, p->orders.at[i], sizeof g->order);
        loom_degrees_place(g, &w->job->machine);
        p->places[i] = g->places;
        p->price[i] = price_of(w, g);
    }
}

/* Whether an earlier order gives the layers the same places and makes nothing after them dearer. */
static bool dominated(const placings *p, int order, int zero)
{
    for (int j = 0; j < order; j++)
        if (same_layers(&p->places[order], &p->places[j], zero) && no_cheaper(&p->price[order], &p->price[j]))
            return true;
    return false;
}

/* Passes through layers with groups where `g` has them; nothing of ZeRO in them. */
static const loom_layer_table *passes_of(walk *w, const loom_degrees *g, pass_table *close_by)
{
    pass_table *t = close_by;

    while (!same_layers(&g->places, &t->places, 0) && t->next)
        t = t->next;
    if (same_layers(&g->places, &t->places, 0))
        return &t->layers;
    if (w->n_tables == MOST_TABLES) { /* they are only kept for speed */
        loom_layer_table_passes(w->job, g, &w->spare);
        return &w->spare;
    }
    t->next = &w->tables[w->n_tables++];
    *t->next = (pass_table){g->ep, g->etp, g->places, {.head_weight = 0}, NULL};
    loom_layer_table_passes(w->job, g, &t->next->layers);
    return &t->next->layers;
}

static void visit_orders(walk *w, loom_degrees *g, pass_table *close_by, const placings *p, const roomy *r)
{
    loom_layer_table sharded;

    for (int i = 0; i < p->orders.count; i++) {
        if (dominated(p, i, g->zero))
            continue;
        memcpy(g->order, p->orders.at[i], sizeof g->order);
        g->places = p->places[i];
        const loom_layer_table *layers = passes_of(w, g, close_by);
        if (step_bound(w, whole_model(w, layers), g) >= bound_of(w))
            continue;
        if (g->zero >= 2) {
            loom_layer_table_shard(w->job, g, &r->memory, layers, &sharded);
            layers = &sharded;
        }
        if (step_bound(w, whole_model(w, layers), g) < bound_of(w))
            visit_schedules(w, g, layers, r);
    }
}

static void visit_zero(walk *w, loom_degrees *g, pass_table *close_by)
{
    loom_choices zero;
    placings p;
    roomy r = {.memory = loom_memory_table_of(w->job, g)};

    if (too_large_anyhow(w, g, &r.memory)) {
        w->search->too_large++;
        return;
    }
    p.orders.count = 0;
    loom_space_zero(&w->search->space, g->dp * g->cp, &zero);
    for (int i = 0; i < zero.count; i++) {
        g->zero = zero.at[i];
        find_roomy(w, g, &r);
        if (r.schedules.count == 0)
            continue;
        if (p.orders.count == 0)
            find_placings(w, g, &p);
        visit_orders(w, g, close_by, &p, &r);
    }
    g->zero = 0;
}

/* The head of the list of tables of this split of the experts. */
static pass_table *table_of(walk *w, const loom_degrees *degrees)
{
    loom_degrees g = *degrees;

    for (int i = 0; i < w->n_tables; i++)
        if (w->tables[i].ep == g.ep && w->tables[i].etp == g.etp)
            return &w->tables[i];
    if (w->n_tables == MOST_TABLES)
        w->n_tables = 0; /* start over rather than fail */
    pass_table *t = &w->tables[w->n_tables++];
    place_close(w, &g);
    *t = (pass_table){g.ep, g.etp, g.places, {.head_weight = 0}, NULL};
    if (t == w->tables)
        loom_layer_table_passes(w->job, &g, &t->layers);
    else
        loom_layer_table_change_experts(w->job, &g, &w->tables[0].layers, &t->layers);
    return t;
}

/* No stage holds less than with the most expert ranks: activations are the same, and weights of experts fewer. */
static bool too_large_spread_thin(walk *w, loom_degrees *g, int most_ep)
{
    g->ep = most_ep;
    loom_memory_table table = loom_memory_table_of(w->job, g);
    if (!too_large_anyhow(w, g, &table))
        return false;
    w->search->too_large++;
    return true;
}

static void visit_experts(walk *w, loom_degrees *g)
{
    loom_choices etp, ep;
    int stage_ranks = g->tp * g->cp * g->dp;

    loom_space_etp(&w->search->space, stage_ranks, &etp);
    for (int i = 0; i < etp.count; i++) {
        loom_space_ep(&w->search->space, etp.at[i], stage_ranks, &ep);
        g->etp = etp.at[i];
        if (ep.count > 1 && too_large_spread_thin(w, g, ep.at[ep.count - 1]))
            continue;
        for (int j = 0; j < ep.count; j++) {
            g->ep = ep.at[j];
            pass_table *close_by = table_of(w, g);
            if (step_bound(w, whole_model(w, &close_by->layers), g) < bound_of(w))
                visit_zero(w, g, close_by);
        }
    }
}

static void visit_class(walk *w, const layer_class *c)
{
    loom_choices pp;

    w->n_tables = 0;
    loom_space_pp(&w->search->space, c->tp, c->cp, &pp);
    for (int i = 0; i < pp.count; i++) {
        loom_degrees g = {.tp = c->tp,
                          .cp = c->cp,
                          .pp = pp.at[i],
                          .vpp = 1,
                          .micro_batch = c->micro_batch,
                          .sequence_parallel = c->sequence_parallel,
                          .recompute = c->recompute,
                          .cp_kind = c->cp_kind};
        g.dp = w->search->space.world / (c->tp * c->cp * g.pp);
        if (w->job->global_batch % ((int64_t)g.dp * g.micro_batch) == 0)
            visit_experts(w, &g);
    }
}

/* Plain 1F1B with ZeRO-1 and as many expert ranks as a domain holds, if the user's conditions and the rules allow it. */
static void seed_one(walk *w, int tp, int pp, loom_recompute recompute)
{
    const loom_space *space = &w->search->space;
    loom_degrees g = {.tp = tp,
                      .cp = 1,
                      .pp = pp,
                      .vpp = 1,
                      .ep = 1,
                      .etp = 1,
                      .micro_batch = 1,
                      .recompute = recompute,
                      .order = {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}};
    loom_choices ep;
    loom_layer_table layers;

    g.dp = space->world / (tp * pp);
    g.zero = g.dp > 1;
    g.sequence_parallel = tp > 1 && w->job->seq % tp == 0;
    loom_space_ep(space, 1, tp * g.dp, &ep);
    for (int i = 0; i < ep.count; i++)
        if (ep.at[i] <= w->job->machine.domain)
            g.ep = ep.at[i];
    if (!loom_limits_allow(space->limits, LOOM_FIELD_CP, 1) || !loom_limits_allow(space->limits, LOOM_FIELD_MICRO_BATCH, 1) ||
        !loom_limits_allow(space->limits, LOOM_FIELD_RECOMPUTE, recompute) || !loom_limits_allow(space->limits, LOOM_FIELD_VPP, 1) ||
        !loom_limits_allow(space->limits, LOOM_FIELD_SCHEDULE, LOOM_SCHEDULE_1F1B) ||
        !loom_limits_allow(space->limits, LOOM_FIELD_ETP, 1) || !loom_limits_allow(space->limits, LOOM_FIELD_EP, g.ep) ||
        !loom_limits_allow(space->limits, LOOM_FIELD_ZERO, g.zero) ||
        !loom_limits_allow(space->limits, LOOM_FIELD_SEQUENCE_PARALLEL, g.sequence_parallel))
        return;
    g.pipeline = LOOM_PIPE_1F1B;
    loom_degrees_place(&g, &w->job->machine);
    loom_memory_table memory = loom_memory_table_of(w->job, &g);
    loom_layer_table_make(w->job, &g, &layers);
    visit_layout(w, &g, &layers, &memory);
}

/* A first incumbent, so that bounds cut from the start: ordinary layouts, a few of each shape. */
static void seed(walk *w)
{
    loom_choices tp, pp;

    loom_space_tp(&w->search->space, &tp);
    for (int i = 0; i < tp.count && tp.at[i] <= w->job->machine.domain; i++) {
        loom_space_pp(&w->search->space, tp.at[i], 1, &pp);
        for (int j = 0; j < pp.count; j++)
            for (int recompute = LOOM_RECOMPUTE_NONE; recompute <= LOOM_RECOMPUTE_FULL; recompute++)
                seed_one(w, tp.at[i], pp.at[j], recompute);
    }
}

/* --- the table of classes ----------------------------------------------------------------------------------------------------- */

/* Work of the class with experts spread as thin as they go and no exchange between them: less than any choice of ep and etp. */
static double class_bound(walk *w, const layer_class *c)
{
    loom_degrees g = {.tp = c->tp,
                      .cp = c->cp,
                      .dp = 1,
                      .pp = 1,
                      .vpp = 1,
                      .ep = 1,
                      .etp = 1,
                      .micro_batch = c->micro_batch,
                      .sequence_parallel = c->sequence_parallel,
                      .recompute = c->recompute,
                      .cp_kind = c->cp_kind};
    loom_layer_table layers;

    place_close(w, &g);
    loom_layer_table_make_bound(w->job, &g, &layers);
    return whole_model(w, &layers) / c->micro_batch;
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
        loom_choices_add_new(all, &of_dp);
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
    if (w->n_classes > 1) /* conditions can leave none */
        qsort(w->classes, (size_t)w->n_classes, sizeof *w->classes, by_bound);
    return true;
}

static void release(walk *w)
{
    free(w->classes);
    free(w->close);
    free(w->tables);
    free(w->scratch);
}

loom_status loom_search_run(loom_search *s)
{
    walk w = {.search = s, .job = s->space.job};
    int world = s->space.world;

    s->n_found = 0;
    s->evaluated = s->too_large = 0;
    for (int64_t i = 0; i < w.job->model.layers; i++)
        w.layers_of[loom_layer_kind_of(&w.job->model, i)]++;
    w.overhead = (1 + loom_soft(w.job, LOOM_SOFT_JITTER) * log2(world)) * loom_calibration_least(&w.job->calibration);
    w.scratch = malloc(sizeof *w.scratch);
    w.tables = malloc(MOST_TABLES * sizeof *w.tables);
    w.close = calloc((size_t)world + 1, sizeof *w.close);
    if (!w.scratch || !w.tables || !w.close || !make_classes(&w)) {
        release(&w);
        return loom_fail(LOOM_E_MEMORY, "no memory to search layouts of %d ranks", world);
    }
    seed(&w);
    for (int i = 0; i < w.n_classes; i++) {
        const layer_class *c = &w.classes[i];
        if ((double)w.job->global_batch / world * c->tp * c->cp * c->per_sample * w.overhead >= bound_of(&w))
            break; /* and so are all behind it */
        visit_class(&w, c);
    }
    for (int i = 0; i < s->n_found; i++)
        s->found[i].fullest = fullest_stage(w.job, &s->found[i].degrees, s->found[i].chunk_layers);
    s->peak_bytes =
        (size_t)w.capacity * sizeof *w.classes + ((size_t)world + 1) * sizeof *w.close + MOST_TABLES * sizeof *w.tables + sizeof *w.scratch;
    release(&w);
    return LOOM_OK;
}
