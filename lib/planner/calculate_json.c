/* Calculator answers as JSON: the figures, and the lines with their formulas. */
#include "planner/goodput.h"

#include <math.h>
#include <string.h>

static void begin(loom_text *out, const char *answer, const loom_calculation *c)
{
    loom_text_add(out, "{\"schema\":1,\"answer\":\"%s\",\"model\":", answer);
    loom_text_add_json(out, c->model->name);
    loom_text_add(out, ",\"seq\":%lld,\"devices\":%d", (long long)loom_calculation_seq(c), (int)loom_calculation_devices(c));
}

static void add_figure(loom_text *out, const char *name, double value)
{
    loom_text_add(out, ",");
    loom_text_add_field(out, name, value, "");
}

/* The lines of `told` as an array; frees it. */
static loom_status finish(loom_text *out, char *told, char **text)
{
    loom_text_add(out, ",\"lines\":[");
    for (char *line = told, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        loom_text_add(out, line == told ? "" : ",");
        loom_text_add_json(out, line + strspn(line, " "));
    }
    loom_text_add(out, "]}\n");
    loom_text_free(told);
    return loom_text_take(out, text);
}

loom_status loom_calculate_mfu_json(const loom_calculation *c, char **text)
{
    loom_text out = {0};
    double whole, causal;
    char *told;
    loom_status status = loom_calculate_mfu(c, &whole, &causal, &told);

    if (status < 0)
        return status;
    begin(&out, "mfu", c);
    add_figure(&out, "mfu_full_attention", whole);
    add_figure(&out, "mfu", causal);
    return finish(&out, told, text);
}

loom_status loom_calculate_tokens_json(const loom_calculation *c, char **text)
{
    loom_text out = {0};
    loom_param_counts counts;
    double tokens;
    char *told;
    loom_status status = loom_calculate_tokens(c, &tokens, &told);

    if (status < 0)
        return status;
    loom_model_count(c->model, &counts);
    begin(&out, "tokens", c);
    add_figure(&out, "tokens", tokens);
    add_figure(&out, "tokens_per_parameter", tokens / (double)counts.total);
    return finish(&out, told, text);
}

loom_status loom_calculate_time_json(const loom_calculation *c, char **text)
{
    loom_text out = {0};
    double seconds, device_hours;
    char *told;
    loom_status status = loom_calculate_time(c, &seconds, &told);

    if (status < 0)
        return status;
    device_hours = loom_calculation_devices(c) * seconds / 3600;
    begin(&out, "time", c);
    add_figure(&out, "seconds", seconds);
    add_figure(&out, "days", seconds / 86400);
    add_figure(&out, "device_hours", device_hours);
    add_figure(&out, "cost", c->price > 0 ? device_hours * c->price : NAN);
    return finish(&out, told, text);
}

loom_status loom_calculate_memory_json(const loom_calculation *c, char **text)
{
    loom_text out = {0};
    loom_param_counts counts;
    double bytes[4];
    char *told;
    loom_status status = loom_calculate_memory(c, bytes, &told);

    if (status < 0)
        return status;
    loom_model_count(c->model, &counts);
    begin(&out, "memory", c);
    loom_text_add(&out, ",\"parameters\":%lld,\"state_bytes_by_zero\":[", (long long)counts.total);
    for (int zero = 0; zero < 4; zero++) {
        loom_text_add(&out, zero ? "," : "");
        loom_text_add_number(&out, bytes[zero]);
    }
    loom_text_add(&out, "]");
    return finish(&out, told, text);
}
