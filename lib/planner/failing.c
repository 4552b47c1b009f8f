/* A run in virtual time, failure by failure. Between failures it only moves along its own clock, which counts what a run without any would
 * take: pieces of steps, each with its checkpoint. A failure sets that clock back to the last safe checkpoint; what happened in between is
 * lost. */
#include "planner/goodput.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

enum { MOST_FAILURES = 1000000 };

/* Nodes that are being repaired. A repair takes equally long for all, so they come back in the order they left. */
typedef struct repairs {
    double *back_s;
    int64_t first, count, capacity;
} repairs;

typedef struct playing {
    const loom_run_request *request;
    loom_goodput_request costs; /* with defaults */
    loom_run_failure *wished;   /* [n_failures], in time */
    int next_wished;
    loom_run_failure drawn; /* the next */
    uint64_t draws;
    double piece_s;   /* interval_steps steps and a checkpoint */
    double end_clock; /* infinite when the period ends the run */
    double now_s, clock_s;
    int64_t safe_pieces;
    repairs away;
    loom_run run;
} playing;

/* --- which failure comes next ------------------------------------------------------------------------------------------------------ */

static void draw(playing *p)
{
    const uint32_t counter[4] = {(uint32_t)p->draws, (uint32_t)(p->draws >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)p->request->seed, (uint32_t)(p->request->seed >> 32)};
    uint32_t word[4];

    if (!p->request->drawn) {
        p->drawn.at_s = INFINITY;
        return;
    }
    loom_philox4x32_10(counter, key, word);
    p->draws++;
    p->drawn.at_s -=
        p->run.mtbf_s * log((((uint64_t)word[0] << 21 | word[1] >> 11) + 0.5) * 0x1p-53); /* exponential: equally likely at any moment */
    p->drawn.rank = (int)((uint64_t)word[2] * (uint64_t)p->costs.devices >> 32);
}

static const loom_run_failure *next_failure(const playing *p)
{
    const loom_run_failure *wished = p->next_wished < p->request->n_failures ? &p->wished[p->next_wished] : NULL;

    return wished && wished->at_s <= p->drawn.at_s ? wished : &p->drawn;
}

static int node_of(const playing *p, int rank)
{
    return p->request->topology ? loom_topology_node_of(p->request->topology, rank) : rank / p->costs.node_devices;
}

/* --- the run's own clock ----------------------------------------------------------------------------------------------------------- */

/* Steps of the piece that the clock is in: the last one may be shorter. */
static int64_t steps_of_piece(const playing *p, int64_t piece)
{
    int64_t left = p->request->steps - piece * p->run.interval_steps;

    return p->request->steps > 0 && left < p->run.interval_steps ? left : p->run.interval_steps;
}

static int64_t steps_at(const playing *p, double clock_s, loom_run_doing *doing)
{
    int64_t piece = (int64_t)(clock_s / p->piece_s), here = steps_of_piece(p, piece);
    int64_t done = (int64_t)((clock_s - (double)piece * p->piece_s) / p->request->step_s);

    *doing = done < here ? LOOM_RUN_STEP : LOOM_RUN_CHECKPOINT;
    return piece * p->run.interval_steps + (done < here ? done : here);
}

static double clock_of_steps(const playing *p, int64_t steps)
{
    int64_t pieces = (steps + p->run.interval_steps - 1) / p->run.interval_steps;

    return (double)steps * p->request->step_s + (double)pieces * p->costs.checkpoint_s;
}

/* What the clock has passed, by kind. */
static void account_clock(playing *p)
{
    double pieces = floor(p->clock_s / p->piece_s), in_piece = p->clock_s - pieces * p->piece_s;
    double work_s = (double)steps_of_piece(p, (int64_t)pieces) * p->request->step_s;
    loom_run_doing doing;

    p->run.useful_s = pieces * (double)p->run.interval_steps * p->request->step_s + fmin(in_piece, work_s);
    p->run.checkpoint_s = p->clock_s - p->run.useful_s;
    p->run.steps = steps_at(p, p->clock_s, &doing);
}

/* --- nodes -------------------------------------------------------------------------------------------------------------------------- */

static loom_status send_to_repair(playing *p, double at_s)
{
    repairs *a = &p->away;

    while (a->first < a->count && a->back_s[a->first] <= at_s)
        a->first++;
    if (a->count == a->capacity) {
        a->capacity = a->capacity ? 2 * a->capacity : 64;
        double *more = realloc(a->back_s, (size_t)a->capacity * sizeof *more);
        if (!more)
            return loom_fail(LOOM_E_MEMORY, "no memory for %lld nodes in repair", (long long)a->capacity);
        a->back_s = more;
    }
    a->back_s[a->count++] = at_s + p->costs.repair_s;
    if (a->count - a->first > p->run.most_away)
        p->run.most_away = (int)(a->count - a->first);
    return LOOM_OK;
}

/* When no more nodes are away than there are spares. */
static double nodes_ready_s(const playing *p, double at_s)
{
    const repairs *a = &p->away;
    int64_t needed = a->count - p->request->spares; /* that have to be back */

    return p->request->spares < 0 || needed <= 0 ? at_s : fmax(at_s, a->back_s[needed - 1]);
}

/* --- a failure ----------------------------------------------------------------------------------------------------------------------- */

/* Takes the next failure: notes it, sets the clock back, and chooses the one after it. */
static loom_status fail_now(playing *p, bool training)
{
    const loom_run_failure *f = next_failure(p);
    loom_run_event event = {
        .rank = f->rank, .node = node_of(p, f->rank), .drawn = f == &p->drawn, .at_s = f->at_s, .doing = LOOM_RUN_RESTART};
    const loom_run_event *last = p->run.n_events > 0 ? &p->run.event[p->run.n_events - 1] : NULL;
    loom_status status = LOOM_OK;

    if (p->run.failures == MOST_FAILURES)
        return loom_fail(
            LOOM_E_INVALID,
            "after %d failures %lld steps are safe: with one in %.4g s, pieces of %.4g s and restarts of %.4g s hardly ever get done",
            MOST_FAILURES, (long long)(p->safe_pieces * p->run.interval_steps), p->run.mtbf_s, p->piece_s,
            p->costs.detect_s + p->costs.restart_s);
    if (training) {
        event.step = steps_at(p, p->clock_s, &event.doing) + (event.doing == LOOM_RUN_STEP);
        p->safe_pieces = (int64_t)fmax((double)p->safe_pieces, floor((p->clock_s - p->costs.write_s) / p->piece_s));
        event.lost_s = p->clock_s - (double)p->safe_pieces * p->piece_s;
        p->clock_s -= event.lost_s;
    } else {
        event.step = p->safe_pieces * p->run.interval_steps + 1;
    }
    event.safe_step = p->safe_pieces * p->run.interval_steps;
    p->run.lost_s += event.lost_s;
    if (!last || last->at_s < event.at_s || last->node != event.node) /* ranks of one node that fail together take one node away */
        status = send_to_repair(p, event.at_s);
    event.spare_s = nodes_ready_s(p, event.at_s + p->costs.detect_s) - event.at_s - p->costs.detect_s;
    if (p->run.n_events < LOOM_RUN_EVENTS)
        p->run.event[p->run.n_events++] = event;
    p->run.failures++;
    if (event.drawn)
        draw(p);
    else
        p->next_wished++;
    return status;
}

static double between(double at, double from, double to)
{
    return fmin(fmax(at, from), to) - from;
}

/* From a failure until training goes on, or the run is over. */
static loom_status recover(playing *p, double over_s)
{
    for (;;) {
        double begin = p->now_s, noticed = begin + p->costs.detect_s, ready = nodes_ready_s(p, noticed), up = ready + p->costs.restart_s;
        double next = next_failure(p)->at_s, stop = fmin(fmin(up, next), over_s);

        p->run.detect_s += between(stop, begin, noticed);
        p->run.spare_s += between(stop, noticed, ready);
        p->run.restart_s += between(stop, ready, up);
        p->now_s = stop;
        if (stop < next || stop >= over_s)
            return LOOM_OK;
        loom_status status = fail_now(p, false);
        if (status < 0)
            return status;
    }
}

/* --- the run -------------------------------------------------------------------------------------------------------------------------- */

static loom_status play(playing *p)
{
    const loom_run_request *q = p->request;
    double over_s = q->steps > 0 ? INFINITY : q->period_s;
    loom_status status = LOOM_OK;

    while (status == LOOM_OK) {
        double next = next_failure(p)->at_s, finish = fmin(p->now_s + (p->end_clock - p->clock_s), over_s);
        double stop = fmin(next, finish);
        p->clock_s = stop < finish || finish == over_s ? p->clock_s + (stop - p->now_s) : p->end_clock;
        p->now_s = stop;
        if (stop == finish)
            return LOOM_OK;
        status = fail_now(p, true);
        if (status == LOOM_OK)
            status = recover(p, over_s);
    }
    return status;
}

static loom_status check(const loom_run_request *q)
{
    loom_status status = loom_goodput_check(&q->costs);

    if (status < 0)
        return status;
    if (!(q->step_s > 0 && isfinite(q->step_s)))
        return loom_fail(LOOM_E_INVALID, "steps of %g s: have to take some time", q->step_s);
    if (q->steps < 0 || (q->steps > 0) == (q->period_s > 0) || !isfinite(q->period_s))
        return loom_fail(LOOM_E_INVALID, "a run of %lld steps and %g s: one of them ends it, the other is 0", (long long)q->steps,
                         q->period_s);
    for (int i = 0; i < q->n_failures; i++) {
        const loom_run_failure *f = &q->failures[i];
        if (f->rank < 0 || f->rank >= q->costs.devices)
            return loom_fail(LOOM_E_INVALID, "rank %d cannot fail: ranks are 0 to %d", f->rank, q->costs.devices - 1);
        if (!(f->at_s >= 0 && isfinite(f->at_s)))
            return loom_fail(LOOM_E_INVALID, "rank %d fails at %g s: has to be a time from the start of the run", f->rank, f->at_s);
    }
    return LOOM_OK;
}

static int by_time(const void *a, const void *b)
{
    const loom_run_failure *x = a, *y = b;

    return (x->at_s > y->at_s) - (x->at_s < y->at_s);
}

static loom_status open_run(const loom_run_request *q, playing *p)
{
    *p = (playing){.request = q, .costs = loom_goodput_defaults(&q->costs), .end_clock = INFINITY};
    loom_run *run = &p->run;

    run->mtbf_s = p->costs.device_hours * 3600 / p->costs.devices;
    loom_goodput_split split = loom_goodput_split_of(&p->costs, run->mtbf_s);
    run->interval_steps = (int64_t)fmax(1, round(split.interval_s / q->step_s));
    p->costs.interval_s = (double)run->interval_steps * q->step_s;
    run->expected = q->drawn ? loom_goodput_split_of(&p->costs, run->mtbf_s).useful : NAN;
    p->piece_s = p->costs.interval_s + p->costs.checkpoint_s;
    if (q->steps > 0)
        p->end_clock = clock_of_steps(p, q->steps);
    run->event = calloc(LOOM_RUN_EVENTS, sizeof *run->event);
    p->wished = malloc(((size_t)q->n_failures + 1) * sizeof *p->wished);
    if (!run->event || !p->wished)
        return loom_fail(LOOM_E_MEMORY, "no memory for the failures of a run");
    if (q->n_failures > 0)
        memcpy(p->wished, q->failures, (size_t)q->n_failures * sizeof *p->wished);
    qsort(p->wished, (size_t)q->n_failures, sizeof *p->wished, by_time);
    draw(p);
    return LOOM_OK;
}

static loom_status finish_run(playing *p)
{
    if (p->next_wished < p->request->n_failures)
        return loom_fail(LOOM_E_INVALID, "rank %d fails at %g s, when the run is over: it ends after %.6g s",
                         p->wished[p->next_wished].rank, p->wished[p->next_wished].at_s, p->now_s);
    account_clock(p);
    p->run.seconds = p->now_s;
    p->run.goodput = p->run.useful_s / p->now_s;
    return LOOM_OK;
}

loom_status loom_run_play(const loom_run_request *request, loom_run *run)
{
    playing p;
    loom_status status = check(request);

    if (status < 0)
        return status;
    status = open_run(request, &p);
    if (status == LOOM_OK)
        status = play(&p);
    if (status == LOOM_OK)
        status = finish_run(&p);
    free(p.wished);
    free(p.away.back_s);
    if (status == LOOM_OK)
        *run = p.run;
    else
        loom_run_free(&p.run);
    return status;
}

void loom_run_free(loom_run *run)
{
    free(run->event);
    memset(run, 0, sizeof *run);
}
