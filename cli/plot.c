/* rankloom plot: curves of metrics files, as one SVG. */
#include "options.h"

#include <rankloom/config.h>
#include <rankloom/monitor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CURVES = 8 };

typedef struct arguments {
    const char *out, *title, *key;
} arguments;

typedef struct series {
    double *x, *y;
    int count, capacity;
    char label[128];
} series;

static loom_status append(series *s, double x, double y)
{
    if (s->count == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 256;
        double *longer_x = realloc(s->x, (size_t)capacity * sizeof *longer_x);
        double *longer_y = longer_x ? realloc(s->y, (size_t)capacity * sizeof *longer_y) : NULL;

        s->x = longer_x ? longer_x : s->x;
        if (!longer_y)
            return loom_fail(LOOM_E_MEMORY, "no memory for a curve of %d points", capacity);
        s->y = longer_y;
        s->capacity = capacity;
    }
    s->x[s->count] = x;
    s->y[s->count++] = y;
    return LOOM_OK;
}

/* One line of a metrics file: a JSON object with "step" and the key. */
static loom_status read_line(const char *path, const char *line, size_t bytes, const char *key, series *s)
{
    loom_config *config;
    double step, value;
    loom_status status = loom_config_parse(path, line, bytes, &config);

    if (status < 0)
        return status;
    if (!loom_node_as_f64(loom_node_get(loom_config_root(config), "step"), &step) ||
        !loom_node_as_f64(loom_node_get(loom_config_root(config), key), &value))
        status = loom_fail(LOOM_E_INVALID, "%s: a line without the numbers \"step\" and \"%s\"", path, key);
    else
        status = append(s, step, value);
    loom_config_free(config);
    return status;
}

static loom_status read_series(const char *path, const char *key, series *s)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    loom_status status = LOOM_OK;

    if (!file)
        return loom_fail(LOOM_E_INVALID, "%s: cannot be read", path);
    while (status == LOOM_OK && (bytes = getline(&line, &capacity, file)) > 0)
        if (bytes > 1)
            status = read_line(path, line, (size_t)bytes, key, s);
    free(line);
    fclose(file);
    return status;
}

/* "LABEL=FILE", or a file that is its own label. */
static loom_status read_operand(const char *operand, const char *key, series *s)
{
    const char *equals = strchr(operand, '=');

    snprintf(s->label, sizeof s->label, "%.*s", equals ? (int)(equals - operand) : (int)strlen(operand), operand);
    return read_series(equals ? equals + 1 : operand, key, s);
}

static int run(const loom_command *self, int argc, char **argv)
{
    arguments a = {.out = "loss.svg", .title = "", .key = "loss"};
    series all[CURVES] = {0};
    loom_curve curves[CURVES];
    loom_operands operands;
    loom_status status = LOOM_OK;
    int exit_status;

    if (!loom_options_parse(self, argc, argv, &a, &operands, &exit_status))
        return exit_status;
    for (int i = 0; i < operands.count && status == LOOM_OK; i++) {
        status = read_operand(operands.at[i], a.key, &all[i]);
        curves[i] = (loom_curve){all[i].label, all[i].x, all[i].y, all[i].count};
    }
    if (status == LOOM_OK)
        status = loom_plot_save(&(loom_plot){a.title, "step", a.key, curves, operands.count}, a.out);
    for (int i = 0; i < operands.count; i++) {
        free(all[i].x);
        free(all[i].y);
    }
    return status < 0 ? loom_command_fail(self, status) : 0;
}

static const loom_option options[] = {
    {"out", 'o', LOOM_OPTION_TEXT, offsetof(arguments, out), .takes = "FILE", .help = "the SVG to write; loss.svg"},
    {"title", 0, LOOM_OPTION_TEXT, offsetof(arguments, title), .takes = "TEXT", .help = "above the plot; none"},
    {"key", 0, LOOM_OPTION_TEXT, offsetof(arguments, key), .takes = "NAME", .help = "what to plot: loss, grad_norm, step_time_s …; loss"},
    {0},
};

const loom_command loom_command_plot = {
    .name = "plot",
    .summary = "curves of metrics files as one SVG",
    .operands = "[LABEL=]METRICS.jsonl …",
    .least = 1,
    .most = CURVES,
    .options = options,
    .run = run,
};
