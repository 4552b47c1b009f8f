/* Goodput in words. */
#include "planner/goodput.h"

#include <math.h>

void loom_add_duration(loom_text *out, double seconds)
{
    if (seconds >= 4 * 86400)
        loom_text_add(out, "%.4g d", seconds / 86400);
    else if (seconds >= 2 * 3600)
        loom_text_add(out, "%.4g h", seconds / 3600);
    else if (seconds >= 120)
        loom_text_add(out, "%.4g min", seconds / 60);
    else
        loom_text_add(out, "%.4g s", seconds);
}

static void add_row(loom_text *out, const char *name, double seconds, const char *formula)
{
    loom_text_add(out, "  %-22s ", name);
    loom_add_duration(out, seconds);
    loom_text_add(out, "%s%s\n", *formula ? "   " : "", formula);
}

static void add_records(loom_text *out, double device_hours)
{
    loom_failure_record r;

    loom_text_add(out, "beside what was published, at this rate:\n");
    for (int i = 0; loom_failure_record_at(i, &r); i++)
        loom_text_add(out, "  %-6s %s; this rate gives %.4g (their own: one in %.0f device-hours; %s)\n", r.name, r.what, r.devices * r.hours / device_hours,
                      loom_failure_device_hours(&r), r.source);
}

static void add_split(loom_text *out, const loom_goodput_split *s)
{
    loom_text_add(out, "  goodput                %.2f %% = T / (M e^(R/M) (e^((T+d)/M) - 1)); checkpoints %.2f %%, work done twice %.2f %%, restarts %.2f %%\n",
                  100 * s->useful, 100 * s->checkpoint, 100 * s->rework, 100 * s->restart);
}

static void add_money(loom_text *out, const char *name, double days, double cost, double useful_price)
{
    if (isfinite(days))
        loom_text_add(out, "  %-22s %.4g days = tokens / (tokens/s * goodput)\n", name, days);
    if (isfinite(cost))
        loom_text_add(out, "  cost                   %.6g = devices * hours * price\n", cost);
    if (isfinite(useful_price))
        loom_text_add(out, "  a useful device-hour   %.4g = price / goodput\n", useful_price);
}

static void add_spot(loom_text *out, const loom_goodput_request *r, const loom_goodput *g)
{
    loom_text_add(out, "spot: %.4g reclaims an hour of all devices; %s\n", r->devices * r->reclaims_per_hour,
                  g->spot_graceful ? "the notice is long enough for a checkpoint, so no work is lost"
                                   : "the notice is too short for a checkpoint, so a reclaim is a failure");
    loom_text_add(out, "  goodput                %.2f %%\n", 100 * g->spot.useful);
    add_money(out, "days", g->spot_days, g->spot_cost, g->spot_useful_price);
    if (isfinite(g->spot_break_even))
        loom_text_add(out, "  worth it below         %.4g a device-hour%s\n", g->spot_break_even,
                      r->spot_price <= 0 ? "" : r->spot_price < g->spot_break_even ? ": spot is cheaper" : ": reserved is cheaper");
}

loom_status loom_goodput_describe(const loom_goodput_request *r, const loom_goodput *g, char **text)
{
    loom_text out = {0};
    const loom_goodput_request full = loom_goodput_defaults(r);

    loom_text_add(&out, "%d devices, one failure in %.0f device-hours (%s)\n", r->devices, g->device_hours, g->origin);
    add_row(&out, "between failures M", g->run.mtbf_s, "= device-hours / devices");
    loom_text_add(&out, "checkpoint interval T, for a checkpoint of d = %g s and a restart of R = %g s%s\n", full.checkpoint_s, full.detect_s + full.restart_s,
                  r->checkpoint_s > 0 && r->restart_s > 0 ? "" : " (defaults: BLOOM's 40 s, MegaScale's 10 min)");
    add_row(&out, "Young", g->run.young_s, "= sqrt(2 d M)");
    add_row(&out, "Daly", g->run.daly_s, "= sqrt(2 d M) (1 + sqrt(d/2M)/3 + d/18M) - d");
    add_row(&out, "exact", g->run.exact_s, "= x M with (1 - x) e^x = e^(-d/M)");
    add_row(&out, "used", g->run.interval_s, r->interval_s > 0 ? "(given)" : "(exact)");
    add_split(&out, &g->run);
    loom_text_add(&out, "  to first order         %.2f %% = 1 - d/T - T/2M - R/M\n", 100 * g->first_order);
    loom_text_add(&out, "  spares                 %d nodes of %d; %.3g are away on average (Poisson, risk %g)\n", g->spares, full.node_devices, g->nodes_down,
                  full.spare_risk);
    add_money(&out, "days", g->days, g->cost, g->useful_price);
    if (g->has_spot)
        add_spot(&out, r, g);
    add_records(&out, g->device_hours);
    return loom_text_take(&out, text);
}

/* --- JSON ------------------------------------------------------------------------------------------------------------------- */

static void add_split_json(loom_text *out, const char *name, const loom_goodput_split *s)
{
    loom_text_add(out, "\"%s\":{", name);
    loom_text_add_field(out, "mtbf_s", s->mtbf_s, ",");
    loom_text_add_field(out, "young_s", s->young_s, ",");
    loom_text_add_field(out, "daly_s", s->daly_s, ",");
    loom_text_add_field(out, "exact_s", s->exact_s, ",");
    loom_text_add_field(out, "interval_s", s->interval_s, ",");
    loom_text_add_field(out, "useful", s->useful, ",");
    loom_text_add_field(out, "checkpoint", s->checkpoint, ",");
    loom_text_add_field(out, "rework", s->rework, ",");
    loom_text_add_field(out, "restart", s->restart, "}");
}

loom_status loom_goodput_json(const loom_goodput_request *r, const loom_goodput *g, char **text)
{
    loom_text out = {0};

    loom_text_add(&out, "{\"schema\":1,\"devices\":%d,\"origin\":", r->devices);
    loom_text_add_json(&out, g->origin);
    loom_text_add(&out, ",");
    loom_text_add_field(&out, "device_hours", g->device_hours, ",");
    add_split_json(&out, "run", &g->run);
    loom_text_add(&out, ",");
    loom_text_add_field(&out, "first_order", g->first_order, ",");
    loom_text_add_field(&out, "nodes_down", g->nodes_down, ",");
    loom_text_add(&out, "\"spares\":%d,", g->spares);
    loom_text_add_field(&out, "days", g->days, ",");
    loom_text_add_field(&out, "cost", g->cost, ",");
    loom_text_add_field(&out, "useful_price", g->useful_price, "");
    if (g->has_spot) {
        loom_text_add(&out, ",\"spot_graceful\":%s,", g->spot_graceful ? "true" : "false");
        add_split_json(&out, "spot", &g->spot);
        loom_text_add(&out, ",");
        loom_text_add_field(&out, "spot_days", g->spot_days, ",");
        loom_text_add_field(&out, "spot_cost", g->spot_cost, ",");
        loom_text_add_field(&out, "spot_useful_price", g->spot_useful_price, ",");
        loom_text_add_field(&out, "spot_break_even", g->spot_break_even, "");
    }
    loom_text_add(&out, "}\n");
    return loom_text_take(&out, text);
}
