/* Calculator answers: MFU, tokens, time, memory, each with its formula. */
#include "planner/goodput.h"

#include <math.h>

double loom_flop_per_token(const loom_model *model, int64_t seq, bool causal)
{
    return loom_model_flop(model, 1, seq, causal) / (double)seq;
}

int64_t loom_calculation_seq(const loom_calculation *c)
{
    return c->seq > 0 ? c->seq : c->model->seq;
}

double loom_calculation_devices(const loom_calculation *c)
{
    return c->devices > 0 ? c->devices : 1;
}

static double goodput_of(const loom_calculation *c)
{
    return c->goodput > 0 ? c->goodput : 1;
}

static loom_status needs(const char *what, double value)
{
    return value > 0 && isfinite(value) ? LOOM_OK : loom_fail(LOOM_E_INVALID, "%s is needed, above 0", what);
}

loom_status loom_calculate_mfu(const loom_calculation *c, double *whole, double *causal, char **text)
{
    loom_text out = {0};
    loom_status status = LOOM_OK;

    if ((status = needs("tokens a second", c->tokens_per_s)) < 0 || (status = needs("the peak of a device", c->peak)) < 0)
        return status;
    double flop[2] = {loom_flop_per_token(c->model, loom_calculation_seq(c), false), loom_flop_per_token(c->model, loom_calculation_seq(c), true)}, peak = loom_calculation_devices(c) * c->peak;
    *whole = c->tokens_per_s * flop[0] / peak;
    *causal = c->tokens_per_s * flop[1] / peak;
    loom_text_add(&out, "MFU = tokens/s * flop of a token / (devices * peak), %s at %lld tokens a sequence, no recompute counted\n", c->model->name, (long long)loom_calculation_seq(c));
    loom_text_add(&out, "  attention square whole (PaLM, Narayanan 2021)     %.2f %% = %.6g * %.4g / (%g * %.4g)\n", 100 * *whole, c->tokens_per_s, flop[0], loom_calculation_devices(c), c->peak);
    loom_text_add(&out, "  attention square halved (Llama 3, Megatron-Bridge) %.2f %% = %.6g * %.4g / (%g * %.4g)\n", 100 * *causal, c->tokens_per_s, flop[1], loom_calculation_devices(c), c->peak);
    return loom_text_take(&out, text);
}

/* Useful flop of every budget that is given; the smallest counts. */
static double flop_budget(const loom_calculation *c, const char **formula)
{
    double rate = c->peak * c->mfu * goodput_of(c), best = INFINITY;
    const struct {
        double flop;
        const char *formula;
    } budgets[] = {{c->flop, "flop"},
                   {c->seconds * loom_calculation_devices(c) * rate, "seconds * devices * peak * mfu * goodput"},
                   {c->device_hours * 3600 * rate, "device-hours * 3600 * peak * mfu * goodput"},
                   {c->price > 0 ? c->money / c->price * 3600 * rate : 0, "money / price * 3600 * peak * mfu * goodput"}};

    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        if (budgets[i].flop > 0 && budgets[i].flop < best) {
            best = budgets[i].flop;
            *formula = budgets[i].formula;
        }
    return best;
}

loom_status loom_calculate_tokens(const loom_calculation *c, double *tokens, char **text)
{
    loom_text out = {0};
    const char *formula = NULL;
    loom_param_counts counts;
    loom_status status;

    if (c->flop <= 0 && ((status = needs("mfu", c->mfu)) < 0 || (status = needs("the peak of a device", c->peak)) < 0))
        return status;
    if (c->money > 0 && (status = needs("the price of a device-hour", c->price)) < 0)
        return status;
    double flop = flop_budget(c, &formula), each = loom_flop_per_token(c->model, loom_calculation_seq(c), false);
    if (!formula)
        return loom_fail(LOOM_E_INVALID, "a budget is needed: flop, device-hours, days, or money and price");
    loom_model_count(c->model, &counts);
    *tokens = flop / each;
    loom_text_add(&out, "tokens = budget / flop of a token = %.4g / %.4g = %.4g   budget = %s\n", flop, each, *tokens, formula);
    loom_text_add(&out, "  %.3g tokens a parameter of %s\n", *tokens / (double)counts.total, c->model->name);
    return loom_text_take(&out, text);
}

loom_status loom_calculate_time(const loom_calculation *c, double *seconds, char **text)
{
    loom_text out = {0};
    loom_status status = needs("a token count", c->tokens);
    double rate = c->tokens_per_s;

    if (status < 0)
        return status;
    if (rate > 0) {
        loom_text_add(&out, "tokens/s = %.6g (given)\n", rate);
    } else {
        if ((status = needs("mfu, or tokens a second,", c->mfu)) < 0 || (status = needs("the peak of a device", c->peak)) < 0)
            return status;
        double each = loom_flop_per_token(c->model, loom_calculation_seq(c), false);
        rate = loom_calculation_devices(c) * c->peak * c->mfu / each;
        loom_text_add(&out, "tokens/s = devices * peak * mfu / flop of a token = %g * %.4g * %g / %.4g = %.6g\n", loom_calculation_devices(c), c->peak, c->mfu, each, rate);
    }
    *seconds = c->tokens / (rate * goodput_of(c));
    loom_text_add(&out, "time = tokens / (tokens/s * goodput) = %.4g / (%.6g * %g) = %.4g days\n", c->tokens, rate, goodput_of(c), *seconds / 86400);
    loom_text_add(&out, "device-hours = devices * time = %.6g\n", loom_calculation_devices(c) * *seconds / 3600);
    if (c->price > 0)
        loom_text_add(&out, "cost = device-hours * price = %.6g\n", loom_calculation_devices(c) * *seconds / 3600 * c->price);
    return loom_text_take(&out, text);
}

loom_status loom_calculate_memory(const loom_calculation *c, double bytes[4], char **text)
{
    static const char *const formulas[] = {"18", "6 + 12/n", "2 + 16/n", "18/n"};
    loom_text out = {0};
    loom_param_counts counts;

    loom_model_count(c->model, &counts);
    double n = loom_calculation_devices(c), q = (double)counts.total, each[] = {18, 6 + 12 / n, 2 + 16 / n, 18 / n};
    loom_text_add(&out, "%s: %lld parameters, %.4g GiB in 16 bit; state of training, without activations:\n", c->model->name, (long long)counts.total, 2 * q / 0x1p30);
    for (int stage = 0; stage < 4; stage++) {
        bytes[stage] = q * each[stage];
        loom_text_add(&out, "  ZeRO-%d over n = %g   %.4g GiB a device = %.4g B a parameter (%s)\n", stage, n, bytes[stage] / 0x1p30, each[stage], formulas[stage]);
    }
    loom_text_add(&out, "16-bit weights 2, fp32 gradients 4, master 4, two moments 8 bytes. tp and pp divide it once more; rankloom predict has activations\n");
    return loom_text_take(&out, text);
}
