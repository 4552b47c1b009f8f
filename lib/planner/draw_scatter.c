/* The search as a picture: each layout a dot, step time over the fullest stage, both in decades. */
#include <rankloom/draw.h>

#include <math.h>
#include <stdio.h>

#include "core/svg.h"
#include "planner/cost.h"

enum {
    LEFT = 64,
    TOP = 74,
    WIDE = 760,
    HIGH = 440,
    RIGHT = 30,
    BOTTOM = 48,
    COLOURS = 6, /* tp 1, 2, 4, 8, 16, more */
};

typedef struct range {
    double low, high; /* decimal logarithms */
} range;

typedef struct scatter {
    loom_text out;
    range bytes, seconds;
} scatter;

static void widen(range *r, double value)
{
    if (value > 0) {
        r->low = fmin(r->low, log10(value));
        r->high = fmax(r->high, log10(value));
    }
}

static double x_at(const scatter *s, double value_gib)
{
    return LEFT + WIDE * (log10(value_gib) - s->bytes.low) / (s->bytes.high - s->bytes.low);
}

static double y_at(const scatter *s, double seconds)
{
    return TOP + HIGH * (1 - (log10(seconds) - s->seconds.low) / (s->seconds.high - s->seconds.low));
}

static int colour_of(int tp)
{
    int c = 0;

    while (c < COLOURS - 1 && (1 << c) < tp)
        c++;
    return c;
}

/* Lines at 1, 2 and 5 of every decade, with their values. */
static void add_grid(scatter *s)
{
    static const int steps[] = {1, 2, 5};

    for (int decade = -6; decade <= 9; decade++)
        for (int i = 0; i < 3; i++) {
            double value = steps[i] * pow(10, decade), log = log10(value);
            if (log > s->bytes.low && log < s->bytes.high)
                loom_text_add(&s->out, "<line class=\"faint\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/><text class=\"middle\" x=\"%.1f\" y=\"%d\">%g</text>\n", x_at(s, value),
                              x_at(s, value), TOP, TOP + HIGH, x_at(s, value), TOP + HIGH + 16, value);
            if (log > s->seconds.low && log < s->seconds.high)
                loom_text_add(&s->out, "<line class=\"faint\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text class=\"end\" x=\"%d\" y=\"%.1f\">%g</text>\n", LEFT, LEFT + WIDE,
                              y_at(s, value), y_at(s, value), LEFT - 6, y_at(s, value) + 4, value);
        }
    loom_text_add(&s->out, "<text class=\"end\" x=\"%d\" y=\"%d\">GiB on the fullest stage</text><text x=\"8\" y=\"%d\">seconds a step</text>\n", LEFT + WIDE, TOP + HIGH + 36, TOP - 8);
}

static void add_limit(scatter *s, double limit)
{
    double x = x_at(s, loom_gib(limit));

    loom_text_add(&s->out, "<line class=\"limit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"><title>limit: %.1f GiB</title></line><text class=\"end\" x=\"%.1f\" y=\"%d\">limit %.1f GiB</text>\n", x, x,
                  TOP, TOP + HIGH, loom_gib(limit), x - 4, TOP + 14, loom_gib(limit));
}

static void add_point(scatter *s, const loom_plan_point *p)
{
    loom_text_add(&s->out, "<circle class=\"t%d%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>tp%d cp%d pp%d dp%d", colour_of(p->tp), p->fits ? "" : " out", x_at(s, loom_gib(p->bytes)),
                  y_at(s, p->step_s), p->tp, p->cp, p->pp, p->dp);
    if (p->vpp > 1)
        loom_text_add(&s->out, " vpp%d", p->vpp);
    if (p->ep * p->etp > 1)
        loom_text_add(&s->out, " ep%d etp%d", p->ep, p->etp);
    loom_text_add(&s->out, " zero%d mb%lld recompute %s: %.4g s, %.1f GiB</title></circle>\n", p->zero, (long long)p->micro_batch, loom_recompute_name(p->recompute), p->step_s,
                  loom_gib(p->bytes));
}

static void add_best(scatter *s, const loom_prediction *p, int number)
{
    char line[256];
    double x = x_at(s, loom_gib(p->memory[p->fullest].total)), y = y_at(s, p->step_s);

    loom_text_add(&s->out, "<circle class=\"best\" cx=\"%.1f\" cy=\"%.1f\" r=\"8\"><title>%d: %s: %.4g s, %.1f GiB</title></circle><text class=\"n\" x=\"%.1f\" y=\"%.1f\">%d</text>\n", x, y, number,
                  loom_layout_describe(&p->layout, line, sizeof line), p->step_s, loom_gib(p->memory[p->fullest].total), x, y + 4, number);
}

static void add_front(scatter *s, const loom_plan *plan)
{
    for (int i = 0; i < plan->n_front; i++) {
        const loom_prediction *p = &plan->front[i];
        char line[256];
        loom_text_add(&s->out, "<circle class=\"front\" cx=\"%.1f\" cy=\"%.1f\" r=\"6\"><title>front: %s on %d devices: %.4g s, %.1f GiB</title></circle>\n",
                      x_at(s, loom_gib(p->memory[p->fullest].total)), y_at(s, p->step_s), loom_layout_describe(&p->layout, line, sizeof line), loom_layout_world(&p->layout), p->step_s,
                      loom_gib(p->memory[p->fullest].total));
    }
}

static void add_legend(scatter *s, bool front)
{
    static const char *const words[COLOURS] = {"tp 1", "tp 2", "tp 4", "tp 8", "tp 16", "more"};
    int x = 8;

    for (int c = 0; c < COLOURS; c++, x += 62)
        loom_text_add(&s->out, "<circle class=\"t%d\" cx=\"%d\" cy=\"40\" r=\"5\"/><text x=\"%d\" y=\"44\">%s</text>\n", c, x + 6, x + 15, words[c]);
    loom_text_add(&s->out, "<circle class=\"t5 out\" cx=\"%d\" cy=\"40\" r=\"5\"/><text x=\"%d\" y=\"44\">does not fit</text>\n", x + 6, x + 15);
    loom_text_add(&s->out, "<circle class=\"best\" cx=\"%d\" cy=\"40\" r=\"7\"/><text x=\"%d\" y=\"44\">numbered: of the table</text>\n", x + 112, x + 124);
    if (front)
        loom_text_add(&s->out, "<circle class=\"front\" cx=\"%d\" cy=\"40\" r=\"6\"/><text x=\"%d\" y=\"44\">on the front</text>\n", x + 270, x + 281);
}

static const char style[] =
    ".t0 { fill: #0969da; stroke: #0969da } .t1 { fill: #1a7f37; stroke: #1a7f37 } .t2 { fill: #bc4c00; stroke: #bc4c00 } .t3 { fill: #8250df; stroke: #8250df }\n"
    ".t4 { fill: #bf3989; stroke: #bf3989 } .t5 { fill: #6e7781; stroke: #6e7781 } .t0, .t1, .t2, .t3, .t4, .t5 { fill-opacity: 0.6; stroke-width: 0.8 }\n"
    ".out { fill-opacity: 0; stroke-opacity: 0.45 } .best { fill: #ffd33d; stroke: #24292f } .front { fill: none; stroke: #cf222e; stroke-width: 2 }\n"
    ".limit { stroke: #cf222e; stroke-dasharray: 5 3 }\n"
    "@media (prefers-color-scheme: dark) { .t0 { fill: #58a6ff; stroke: #58a6ff } .t1 { fill: #3fb950; stroke: #3fb950 } .t2 { fill: #f0883e; stroke: #f0883e } "
    ".t3 { fill: #bc8cff; stroke: #bc8cff } .t4 { fill: #f778ba; stroke: #f778ba } .t5 { fill: #8b949e; stroke: #8b949e } .limit, .front { stroke: #ff7b72 } }\n";

/* All values, with a margin of a thirtieth on either side. */
static void measure(scatter *s, const loom_plan *plan, const loom_plan_point *points, int count)
{
    range *const all[] = {&s->bytes, &s->seconds};

    s->bytes = s->seconds = (range){INFINITY, -INFINITY};
    for (int i = 0; i < count; i++)
        widen(&s->bytes, loom_gib(points[i].bytes)), widen(&s->seconds, points[i].step_s);
    for (int i = 0; i < plan->n_best + plan->n_front; i++) {
        const loom_prediction *p = i < plan->n_best ? &plan->best[i] : &plan->front[i - plan->n_best];
        widen(&s->bytes, loom_gib(p->memory[p->fullest].total)), widen(&s->bytes, loom_gib(p->memory_limit)), widen(&s->seconds, p->step_s);
    }
    for (int i = 0; i < 2; i++) {
        double margin = fmax(0.05, (all[i]->high - all[i]->low) / 30);
        all[i]->low -= margin;
        all[i]->high += margin;
    }
}

loom_status loom_scatter_svg(const loom_plan *plan, const loom_plan_point *points, int count, char **text)
{
    scatter s = {0};
    char title[160];

    if (plan->n_best == 0)
        return loom_fail(LOOM_E_INVALID, "there is no layout to draw: %s", plan->hopeless);
    measure(&s, plan, points, count);
    snprintf(title, sizeof title, "Step time and memory of %d layouts drawn at random, and of the best", count);
    loom_svg_open(&s.out, LEFT + WIDE + RIGHT, TOP + HIGH + BOTTOM, title, style);
    add_legend(&s, plan->n_front > 0);
    add_grid(&s);
    for (int i = 0; i < count; i++)
        add_point(&s, &points[i]);
    add_limit(&s, plan->best[0].memory_limit);
    add_front(&s, plan);
    for (int i = plan->n_best - 1; i >= 0; i--)
        add_best(&s, &plan->best[i], i + 1);
    loom_svg_close(&s.out);
    return loom_text_take(&s.out, text);
}
