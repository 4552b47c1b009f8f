/* Memory by stage over time: a strip a stage, what is always there below, activations in flight on top. */
#include "planner/drawing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/svg.h"

enum {
    LEFT = 74,
    RIGHT = 150, /* figures */
    TOP = 64,
    WIDE = 820,
    HIGH = 52,   /* of a strip, with few stages */
    LOW = 20,    /* with many */
    MANY = 16,
    GAP = 8,
};

typedef struct strips {
    loom_text out;
    const loom_drawing *drawing;
    const loom_prediction *prediction;
    double most; /* bytes at the top of a strip */
    int high;
} strips;

/* +1 when a forward begins, -1 when its last gradient is done. */
static int change_of(const loom_action *a)
{
    return a->kind == LOOM_FORWARD ? 1 : a->kind == LOOM_BACKWARD || a->kind == LOOM_BACKWARD_WEIGHT ? -1 : 0;
}

static int peak_of(const loom_stage_actions *list)
{
    int now = 0, peak = 0;

    for (int i = 0; i < list->count; i++) {
        now += change_of(&list->at[i]);
        peak = now > peak ? now : peak;
    }
    return peak;
}

static double x_at(const strips *s, double time_us)
{
    const loom_timeline *line = &s->drawing->line;

    return LEFT + (line->makespan_us > 0 ? time_us / line->makespan_us * WIDE : 0);
}

static double y_at(const strips *s, int stage, double bytes)
{
    return TOP + stage * (s->high + GAP) + s->high * (1 - bytes / s->most);
}

static void add_curve(strips *s, int stage)
{
    const loom_stage_actions *list = &s->drawing->rehearsing.schedule->stage[stage];
    const loom_stage_memory *m = &s->prediction->memory[stage];
    double kept = m->part[LOOM_MEMORY_ACTIVATIONS], always = m->total - kept;
    int now = 0, peak = peak_of(list);

    loom_text_add(&s->out, "<path class=\"kept\" d=\"M%d %.1f", LEFT, y_at(s, stage, always));
    for (int i = 0; i < list->count; i++) {
        int change = change_of(&list->at[i]);
        const loom_action_time *t = &s->drawing->line.at[stage][i];
        if (change == 0)
            continue;
        now += change;
        loom_text_add(&s->out, "H%.1fV%.1f", x_at(s, change > 0 ? t->start_us : t->end_us), y_at(s, stage, always + kept * now / peak));
    }
    loom_text_add(&s->out, "H%dV%.1fZ\"><title>stage %d: %.1f GiB of activations at most, %d chunk%s in flight</title></path>\n", LEFT + WIDE, y_at(s, stage, always), stage, loom_gib(kept),
                  peak, peak == 1 ? "" : "s");
    loom_text_add(&s->out, "<rect class=\"always\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"><title>stage %d: %.1f GiB of weights, gradients, optimizer, buffers and "
                           "workspace</title></rect>\n", LEFT, y_at(s, stage, always), WIDE, y_at(s, stage, 0) - y_at(s, stage, always), stage, loom_gib(always));
}

static void add_strip(strips *s, int stage)
{
    double limit = s->prediction->memory_limit, total = s->prediction->memory[stage].total;
    int base = (int)lround(y_at(s, stage, 0)), text_at = s->high >= HIGH ? base - s->high / 2 + 4 : base - 4;

    loom_text_add(&s->out, "<text x=\"8\" y=\"%d\">stage %d</text>\n", text_at, stage);
    add_curve(s, stage);
    loom_text_add(&s->out, "<line class=\"limit\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, LEFT + WIDE, y_at(s, stage, limit), y_at(s, stage, limit));
    loom_text_add(&s->out, "<text x=\"%d\" y=\"%d\">%.1f of %.1f GiB</text>\n", LEFT + WIDE + 8, text_at, loom_gib(total), loom_gib(limit));
}

static const char style[] =
    ".always { fill: #8cb9ea } .kept { fill: #c9b6e4; stroke: #7a4fb0; stroke-width: 0.7 } .limit { stroke: #cf222e; stroke-dasharray: 5 3 }\n"
    "@media (prefers-color-scheme: dark) { .always { fill: #2f5d92 } .kept { fill: #4b3a68; stroke: #b99af0 } .limit { stroke: #ff7b72 } }\n";

static void add_legend(strips *s)
{
    loom_text_add(&s->out, "<rect class=\"always\" x=\"8\" y=\"34\" width=\"14\" height=\"14\"/><text x=\"27\" y=\"46\">weights, gradients, optimizer, buffers, workspace</text>\n"
                           "<rect class=\"kept\" x=\"330\" y=\"34\" width=\"14\" height=\"14\"/><text x=\"349\" y=\"46\">activations in flight</text>\n"
                           "<line class=\"limit\" x1=\"500\" x2=\"525\" y1=\"41\" y2=\"41\"/><text x=\"532\" y=\"46\">limit, margin taken off</text>\n");
}

loom_status loom_drawing_memory(const loom_drawing *d, const loom_prediction *p, char **text)
{
    strips s = {.drawing = d, .prediction = p, .most = p->memory_limit, .high = p->stages <= MANY ? HIGH : LOW};
    char layout[256], extent[64], title[512];
    int bottom = TOP + p->stages * (s.high + GAP);

    for (int stage = 0; stage < p->stages; stage++)
        s.most = fmax(s.most, p->memory[stage].total);
    snprintf(title, sizeof title, "Memory of each stage over %s of %s", loom_drawing_extent(d, extent, sizeof extent), loom_layout_describe(&d->layout, layout, sizeof layout));
    loom_svg_open(&s.out, LEFT + WIDE + RIGHT, bottom + 26, title, style);
    add_legend(&s);
    for (int stage = 0; stage < p->stages; stage++)
        add_strip(&s, stage);
    loom_text_add(&s.out, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/><text x=\"%d\" y=\"%d\">0</text><text class=\"end\" x=\"%d\" y=\"%d\">%.4g s</text>\n", LEFT,
                  LEFT + WIDE, bottom, bottom, LEFT, bottom + 16, LEFT + WIDE, bottom + 16, d->line.makespan_us * 1e-6);
    loom_svg_close(&s.out);
    return loom_text_take(&s.out, text);
}

loom_status loom_memory_svg(const loom_plan_request *request, const loom_layout *layout, int micro_batches, char **text)
{
    loom_drawing *d = malloc(sizeof *d);
    loom_prediction *p = malloc(sizeof *p);
    loom_status status = d && p ? loom_plan_predict(request, layout, p) : loom_fail(LOOM_E_MEMORY, "no memory for a picture of memory");

    if (status == LOOM_OK && (status = loom_drawing_open(request, layout, micro_batches, d)) == LOOM_OK) {
        status = loom_drawing_memory(d, p, text);
        loom_drawing_close(d);
    }
    free(p);
    free(d);
    return status;
}
