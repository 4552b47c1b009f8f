/* Curves as a plain SVG. Colours come from a style sheet in the file, which follows the reader's light or dark setting. */
#include <rankloom/monitor.h>

#include "core/file.h"
#include "core/text.h"
#include "core/try.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 800, HEIGHT = 450, LEFT = 70, RIGHT = 20, TOP = 48, BOTTOM = 56, CURVES = 8, TICKS = 6 };

typedef struct range {
    double low, high, step; /* of the ticks; low and high are multiples of step for the y axis */
} range;

typedef struct canvas {
    loom_text out;
    range x, y;
} canvas;

/* 1, 2 or 5 times a power of ten, for about TICKS ticks. */
static double tick_step(double span)
{
    double raw = span / TICKS, power = pow(10, floor(log10(raw))), lead = raw / power;

    return (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10) * power;
}

/* `out_to_ticks`: the range grows to whole ticks. All equal values get some room around them. */
static range range_of(const loom_plot *plot, bool y, bool out_to_ticks)
{
    range r = {INFINITY, -INFINITY, 1};

    for (int c = 0; c < plot->n_curves; c++)
        for (int i = 0; i < plot->curves[c].count; i++) {
            double value = y ? plot->curves[c].y[i] : plot->curves[c].x[i];
            if (isfinite(value)) {
                r.low = fmin(r.low, value);
                r.high = fmax(r.high, value);
            }
        }
    if (!(r.low <= r.high))
        r.low = 0, r.high = 1;
    if (r.low == r.high) {
        double around = r.low == 0 ? 1 : fabs(r.low) * 0.1;
        r.low -= around;
        r.high += around;
    }
    r.step = tick_step(r.high - r.low);
    if (out_to_ticks) {
        r.low = floor(r.low / r.step) * r.step;
        r.high = ceil(r.high / r.step) * r.step;
    }
    return r;
}

static double x_at(const canvas *c, double x)
{
    return LEFT + (x - c->x.low) / (c->x.high - c->x.low) * (WIDTH - LEFT - RIGHT);
}

static double y_at(const canvas *c, double y)
{
    return HEIGHT - BOTTOM - (y - c->y.low) / (c->y.high - c->y.low) * (HEIGHT - TOP - BOTTOM);
}

/* --- parts ----------------------------------------------------------------------------------------------------------------- */

static void add_label(loom_text *out, const char *class_, double x, double y, const char *more, const char *text)
{
    loom_text_add(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\"%s>", class_, x, y, more);
    loom_text_add_xml(out, text);
    loom_text_add(out, "</text>\n");
}

static void add_head(loom_text *out)
{
    static const char *const light[CURVES] = {"#2267b5", "#c2571a", "#1b7f6b", "#7a4fb0", "#a8336a", "#6a6f1b", "#4c5a6b", "#8a5a2b"};
    static const char *const dark[CURVES] = {"#6fb1f5", "#f5955c", "#58cdb2", "#b99af0", "#ee82b4", "#c3c95a", "#a9b7c8", "#d6a878"};

    loom_text_add(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"system-ui, sans-serif\">\n<style>\n"
                  ".ground { fill: #ffffff } text { fill: #24292f } .tick { font-size: 12px } .axis { font-size: 13px } .title { font-size: 16px; "
                  "font-weight: 600 }\n.grid { stroke: #d8dee4; stroke-width: 1 } .frame { stroke: #57606a; stroke-width: 1 } .curve { fill: none; "
                  "stroke-width: 1.8; stroke-linejoin: round }\n",
                  WIDTH, HEIGHT, WIDTH, HEIGHT);
    for (int i = 0; i < CURVES; i++)
        loom_text_add(out, ".c%d { stroke: %s } ", i, light[i]);
    loom_text_add(out, "\n@media (prefers-color-scheme: dark) {\n.ground { fill: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #30363d } "
                       ".frame { stroke: #8b949e }\n");
    for (int i = 0; i < CURVES; i++)
        loom_text_add(out, ".c%d { stroke: %s } ", i, dark[i]);
    loom_text_add(out, "\n}\n</style>\n<rect class=\"ground\" width=\"%d\" height=\"%d\"/>\n", WIDTH, HEIGHT);
}

/* Ticks are counted, not added up, so that 0.3 is not 0.30000000000000004 and the last one is not missed. */
static void add_ticks(canvas *c)
{
    char text[32];

    for (int64_t i = (int64_t)ceil(c->x.low / c->x.step - 1e-9); (double)i * c->x.step <= c->x.high * (1 + 1e-12) + 1e-300; i++) {
        double at = x_at(c, (double)i * c->x.step);
        snprintf(text, sizeof text, "%.6g", (double)i * c->x.step);
        loom_text_add(&c->out, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", at, at, TOP, HEIGHT - BOTTOM);
        add_label(&c->out, "tick", at, HEIGHT - BOTTOM + 18, " text-anchor=\"middle\"", text);
    }
    for (int64_t i = llround(c->y.low / c->y.step); i <= llround(c->y.high / c->y.step); i++) {
        double at = y_at(c, (double)i * c->y.step);
        snprintf(text, sizeof text, "%.6g", (double)i * c->y.step);
        loom_text_add(&c->out, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, WIDTH - RIGHT, at, at);
        add_label(&c->out, "tick", LEFT - 8, at + 4, " text-anchor=\"end\"", text);
    }
}

static void add_frame(canvas *c, const loom_plot *plot)
{
    char turned[64];

    loom_text_add(&c->out, "<path class=\"frame\" fill=\"none\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT);
    add_label(&c->out, "title", LEFT, 28, "", plot->title);
    add_label(&c->out, "axis", (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14, " text-anchor=\"middle\"", plot->x_label);
    snprintf(turned, sizeof turned, " text-anchor=\"middle\" transform=\"rotate(-90 18 %d)\"", (TOP + HEIGHT - BOTTOM) / 2);
    add_label(&c->out, "axis", 18, (TOP + HEIGHT - BOTTOM) / 2.0, turned, plot->y_label);
}

/* The label of a curve stands beside a piece of its line, at the upper right, where a loss curve leaves room. */
static void add_legend(canvas *c, const loom_plot *plot)
{
    for (int i = 0; i < plot->n_curves && plot->n_curves > 1; i++) {
        int y = TOP + 18 + 20 * i;
        loom_text_add(&c->out, "<line class=\"curve c%d\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>\n", i, WIDTH - RIGHT - 200, WIDTH - RIGHT - 176, y - 4,
                      y - 4);
        add_label(&c->out, "tick", WIDTH - RIGHT - 168, y, "", plot->curves[i].label);
    }
}

static void add_curve(canvas *c, const loom_curve *curve, int index)
{
    bool pen_down = false;

    loom_text_add(&c->out, "<path class=\"curve c%d\" d=\"", index);
    for (int i = 0; i < curve->count; i++) {
        bool seen = isfinite(curve->y[i]) && isfinite(curve->x[i]);
        if (seen)
            loom_text_add(&c->out, "%s%.1f %.1f", pen_down ? "L" : "M", x_at(c, curve->x[i]), y_at(c, curve->y[i]));
        pen_down = seen;
    }
    loom_text_add(&c->out, "\"/>\n");
}

loom_status loom_plot_save(const loom_plot *plot, const char *path)
{
    canvas c = {0};
    loom_status status;

    if (plot->n_curves < 0 || plot->n_curves > CURVES)
        return loom_fail(LOOM_E_INVALID, "%s: a plot of %d curves; it takes 0 to %d", path, plot->n_curves, CURVES);
    c.x = range_of(plot, false, false);
    c.y = range_of(plot, true, true);
    add_head(&c.out);
    add_ticks(&c);
    add_frame(&c, plot);
    for (int i = 0; i < plot->n_curves; i++)
        add_curve(&c, &plot->curves[i], i);
    add_legend(&c, plot);
    loom_text_add(&c.out, "</svg>\n");
    status = c.out.failed ? loom_fail(LOOM_E_MEMORY, "%s: no memory for the plot", path) : loom_file_replace(path, c.out.at, c.out.length);
    loom_text_drop(&c.out);
    return status;
}
