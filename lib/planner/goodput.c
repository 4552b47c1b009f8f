/* Failures, checkpoints, restarts: how much of a long run counts, and what it costs. */
#include "planner/goodput.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- records ------------------------------------------------------------------------------------------------------------------ */

static const loom_failure_record records[] = {
    {"llama3", "Llama 3 405B, 16,384 H100, 54 days: 419 unexpected interruptions", "arXiv 2407.21783, table 5", 16384, 54 * 24, 419},
    {"rsc1", "Meta's RSC-1, A100: 6.5 failures in 1,000 days of a node of 8", "arXiv 2410.21680", 8, 1000 * 24, 6.5},
    {"bloom", "BLOOM-176B, 384 A100: about one GPU failure a week", "chronicles of tr11-176B", 384, 7 * 24, 1},
};

bool loom_failure_record_at(int index, loom_failure_record *record)
{
    if (index < 0 || (size_t)index >= sizeof records / sizeof *records)
        return false;
    *record = records[index];
    return true;
}

loom_status loom_failure_record_find(const char *name, loom_failure_record *record)
{
    for (int i = 0; loom_failure_record_at(i, record); i++)
        if (strcmp(record->name, name) == 0)
            return LOOM_OK;
    return loom_fail(LOOM_E_INVALID, "no record of failures is called %s; llama3, rsc1 and bloom are", name);
}

double loom_failure_device_hours(const loom_failure_record *record)
{
    return record->devices * record->hours / record->failures;
}

/* --- intervals ---------------------------------------------------------------------------------------------------------------- */

double loom_interval_young(double mtbf_s, double checkpoint_s)
{
    return sqrt(2 * checkpoint_s * mtbf_s);
}

double loom_interval_daly(double mtbf_s, double checkpoint_s)
{
    double half = checkpoint_s / (2 * mtbf_s);

    if (half >= 1)
        return mtbf_s;
    return loom_interval_young(mtbf_s, checkpoint_s) * (1 + sqrt(half) / 3 + half / 9) - checkpoint_s;
}

/* (1 - x) e^x falls from 1 to 0 on 0..1, so halving finds where it is e^(-d/M). Written with expm1: for small d/M both sides are near 1. */
double loom_interval_exact(double mtbf_s, double checkpoint_s)
{
    double low = 0, high = 1, target = expm1(-checkpoint_s / mtbf_s);

    for (int i = 0; i < 100; i++) {
        double x = (low + high) / 2;
        if (expm1(x) - x * exp(x) > target)
            low = x;
        else
            high = x;
    }
    return high * mtbf_s;
}

/* Seconds that a piece of work and its checkpoint take, failures included. */
static double piece_seconds(double mtbf_s, double interval_s, double checkpoint_s, double restart_s)
{
    return mtbf_s * exp(restart_s / mtbf_s) * expm1((interval_s + checkpoint_s) / mtbf_s);
}

double loom_goodput_share(double mtbf_s, double interval_s, double checkpoint_s, double restart_s)
{
    return interval_s / piece_seconds(mtbf_s, interval_s, checkpoint_s, restart_s);
}

int loom_spares(double mean, double risk)
{
    double below = 0;
    int k = 0;

    for (;; k++) {
        below += exp(k * log(mean) - mean - lgamma(k + 1.0));
        if (!(mean > 0) || 1 - below <= risk || k > 10 * mean + 100)
            return k;
    }
}

/* --- a run ---------------------------------------------------------------------------------------------------------------------- */

/* A failure while the last checkpoint is still being written costs that much work more: redone like a longer restart. */
loom_goodput_split loom_goodput_split_of(const loom_goodput_request *r, double mtbf_s)
{
    loom_goodput_split s = {.mtbf_s = mtbf_s};
    double d = r->checkpoint_s, down = r->detect_s + r->restart_s, pause = down + r->write_s;

    s.young_s = loom_interval_young(mtbf_s, d);
    s.daly_s = loom_interval_daly(mtbf_s, d);
    s.exact_s = loom_interval_exact(mtbf_s, d);
    s.interval_s = r->interval_s > 0 ? r->interval_s : s.exact_s;
    double whole = piece_seconds(mtbf_s, s.interval_s, d, pause), failures = expm1((s.interval_s + d) / mtbf_s);
    double pauses = failures * mtbf_s * expm1(pause / mtbf_s) / whole;
    s.useful = s.interval_s / whole;
    s.checkpoint = d / whole;
    s.restart = pause > 0 ? pauses * down / pause : 0;
    s.rework = fmax(0, 1 - s.useful - s.checkpoint - s.restart);
    return s;
}

/* Taken away with enough notice, devices cost a checkpoint and a pause, and no work; without, they are failures like others. */
static loom_goodput_split spot_of(const loom_goodput_request *r, double failures_per_s, bool graceful)
{
    double reclaims_per_s = r->devices * r->reclaims_per_hour / 3600, pause = r->checkpoint_s + r->restart_s + r->replace_s;
    loom_goodput_request other = *r;

    if (!graceful) {
        other.restart_s += r->replace_s * reclaims_per_s / (reclaims_per_s + failures_per_s);
        return loom_goodput_split_of(&other, 1 / (failures_per_s + reclaims_per_s));
    }
    loom_goodput_split s = loom_goodput_split_of(r, 1 / failures_per_s);
    /* a pause can itself be cut short by the next reclaim */
    double paused = reclaims_per_s > 0 ? expm1(reclaims_per_s * pause) : 0, running = 1 / (1 + paused);
    s.useful *= running;
    s.checkpoint *= running;
    s.rework *= running;
    s.restart = s.restart * running + (1 - running);
    return s;
}

loom_status loom_goodput_check(const loom_goodput_request *r)
{
    const struct {
        const char *name;
        double value;
    } fields[] = {{"device_hours", r->device_hours}, {"checkpoint", r->checkpoint_s},   {"write", r->write_s},         {"detect", r->detect_s},           {"restart", r->restart_s},
                  {"interval", r->interval_s},       {"repair", r->repair_s},           {"tokens", r->tokens},         {"tokens_per_s", r->tokens_per_s},
                  {"reserved", r->reserved_s},       {"price", r->price},               {"spot price", r->spot_price}, {"reclaims_per_hour", r->reclaims_per_hour},
                  {"notice", r->notice_s},           {"replace", r->replace_s}};

    if (r->devices < 1 || r->node_devices < 0)
        return loom_fail(LOOM_E_INVALID, "%d devices in nodes of %d: both have to be positive", r->devices, r->node_devices);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!(fields[i].value >= 0) || isinf(fields[i].value))
            return loom_fail(LOOM_E_INVALID, "%s = %g: has to be a number that is not negative", fields[i].name, fields[i].value);
    if (!(r->spare_risk >= 0 && r->spare_risk < 1))
        return loom_fail(LOOM_E_INVALID, "a risk of %g: has to be from 0 to below 1", r->spare_risk);
    if (r->tokens > 0 && !(r->tokens_per_s > 0))
        return loom_fail(LOOM_E_INVALID, "tokens are given without tokens a second: nothing says how long they take");
    return LOOM_OK;
}

loom_goodput_request loom_goodput_defaults(const loom_goodput_request *request)
{
    loom_goodput_request r = *request;

    r.node_devices = r.node_devices > 0 ? r.node_devices : 8;
    r.device_hours = r.device_hours > 0 ? r.device_hours : loom_failure_device_hours(&records[0]);
    r.checkpoint_s = r.checkpoint_s > 0 ? r.checkpoint_s : 40;
    r.restart_s = r.restart_s > 0 ? r.restart_s : 600;
    r.repair_s = r.repair_s > 0 ? r.repair_s : 24 * 3600;
    r.spare_risk = r.spare_risk > 0 ? r.spare_risk : 0.01;
    return r;
}

static double days_of(const loom_goodput_request *r, double useful)
{
    return r->tokens > 0 ? r->tokens / (r->tokens_per_s * useful) / 86400 : NAN;
}

/* The fewest devices, whole nodes, each as fast as now, that are done in time; 0: no number up to 64 times as many. */
static int devices_in_time(const loom_goodput_request *r)
{
    int nodes = (r->devices + r->node_devices - 1) / r->node_devices, most = nodes > (1 << 24) / 64 ? nodes : 64 * nodes;

    for (int n = nodes; n <= most; n += 1 + n / 512) {
        loom_goodput_request other = *r;
        other.devices = n * r->node_devices;
        other.tokens_per_s = r->tokens_per_s / r->devices * other.devices;
        double useful = loom_goodput_split_of(&other, r->device_hours * 3600 / other.devices).useful;
        if (days_of(&other, useful) * 86400 <= r->reserved_s)
            return other.devices;
    }
    return 0;
}

static loom_status check_reservation(const loom_goodput_request *r, const loom_goodput *g)
{
    double fit = r->tokens_per_s * g->run.useful * r->reserved_s;
    char more[96] = "no number of devices would do";
    int devices;

    if (!(r->reserved_s > 0) || !(r->tokens > 0) || g->days * 86400 <= r->reserved_s)
        return LOOM_OK;
    if ((devices = devices_in_time(r)) > 0)
        snprintf(more, sizeof more, "%d devices as fast each would do", devices);
    return loom_fail(LOOM_E_INVALID, "%.4g tokens take %.1f days at %.1f %% goodput, and the reservation ends after %.1f; %.4g tokens fit, or %s", r->tokens,
                     g->days, 100 * g->run.useful, r->reserved_s / 86400, fit, more);
}

loom_status loom_goodput_of(const loom_goodput_request *request, loom_goodput *goodput)
{
    loom_status status = loom_goodput_check(request);

    if (status < 0)
        return status;
    const loom_goodput_request r = loom_goodput_defaults(request);
    double mtbf_s = r.device_hours * 3600 / r.devices, hours;
    loom_goodput g = {.device_hours = r.device_hours, .origin = request->device_hours > 0 ? "given" : records[0].what, .run = loom_goodput_split_of(&r, mtbf_s)};
    g.first_order = 1 - r.checkpoint_s / g.run.interval_s - g.run.interval_s / (2 * mtbf_s) - (r.detect_s + r.restart_s + r.write_s) / mtbf_s;
    g.nodes_down = r.devices / r.device_hours * r.repair_s / 3600;
    g.spares = loom_spares(g.nodes_down, r.spare_risk);
    g.days = days_of(&r, g.run.useful);
    hours = g.days * 24;
    g.cost = r.price > 0 ? hours * r.devices * r.price : NAN;
    g.useful_price = r.price > 0 ? r.price / g.run.useful : NAN;
    g.has_spot = r.spot_price > 0 || r.reclaims_per_hour > 0;
    if (g.has_spot) {
        g.spot_graceful = r.notice_s >= r.checkpoint_s + r.write_s;
        g.spot = spot_of(&r, 1 / mtbf_s, g.spot_graceful);
        g.spot_days = days_of(&r, g.spot.useful);
        g.spot_cost = r.spot_price > 0 ? g.spot_days * 24 * r.devices * r.spot_price : NAN;
        g.spot_useful_price = r.spot_price > 0 ? r.spot_price / g.spot.useful : NAN;
        g.spot_break_even = r.price > 0 ? r.price * g.spot.useful / g.run.useful : NAN;
    }
    if ((status = check_reservation(&r, &g)) < 0)
        return status;
    *goodput = g;
    return LOOM_OK;
}
