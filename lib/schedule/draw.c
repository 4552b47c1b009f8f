/* A schedule as a picture: a row a stage, time to the right, and below it what each stage holds in flight. */
#include "schedule/schedule.h"

#include "core/svg.h"

#include <stdio.h>

enum {
    LEFT = 74,       /* for the names of the stages */
    RIGHT = 16,
    TOP = 64,        /* title and legend */
    ROW = 26,        /* of a stage */
    BAR = 22,
    STRIP = 30,      /* of a stage's in-flight curve */
    BELOW = 40,      /* between the two parts */
    LETTERS = 17,    /* a bar has to be so wide for its number */
    TOLD = 20000,    /* more actions than that get no tooltips: the file has to open */
};

typedef struct canvas {
    loom_text out;
    const loom_schedule *schedule;
    const loom_timeline *line;
    double scale;  /* pixels a unit of time */
    int width, height, strips_top;
    bool tells;
    bool real; /* times are microseconds, not units */
} canvas;

/* A moment as people write it. */
static const char *told_time(const canvas *c, double time, char *text, size_t bytes)
{
    if (!c->real)
        snprintf(text, bytes, "%.6g", time);
    else if (c->line->makespan_us >= 1e6)
        snprintf(text, bytes, "%.4f s", time * 1e-6);
    else
        snprintf(text, bytes, "%.3f ms", time * 1e-3);
    return text;
}

static double x_at(const canvas *c, double time)
{
    return LEFT + time * c->scale;
}

/* Wide enough for the numbers where that is bearable. */
static void measure(canvas *c)
{
    const loom_schedule *s = c->schedule;
    double shortest = c->line->makespan_us;
    int actions = 0;

    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->stage[stage].count; i++) {
            double length = c->line->at[stage][i].end_us - c->line->at[stage][i].start_us;
            shortest = loom_is_compute(&s->stage[stage].at[i]) && length > 0 && length < shortest ? length : shortest;
            actions++;
        }
    double wanted = c->line->makespan_us > 0 ? LETTERS * c->line->makespan_us / shortest : 600;
    wanted = wanted < 600 ? 600 : wanted > 4000 ? 4000 : wanted;
    c->scale = c->line->makespan_us > 0 ? wanted / c->line->makespan_us : 1;
    c->width = LEFT + (int)wanted + RIGHT;
    c->strips_top = TOP + s->stages * ROW + BELOW;
    c->height = c->strips_top + s->stages * STRIP + 30;
    c->tells = actions <= TOLD;
}

static const char style[] =
    ".idle { fill: #eef1f4 } .k0 { fill: #8cb9ea } .k1 { fill: #8fd0a8 } .k2 { fill: #a9dccb } .k3 { fill: #f0b983 } .b { fill: #1b1f24; text-anchor: middle } .held { fill: #c9b6e4; stroke: #7a4fb0 }\n"
    "@media (prefers-color-scheme: dark) { .idle { fill: #1c2229 } .held { fill: #4b3a68; stroke: #b99af0 } .b { fill: #e6edf3 }\n"
    ".k0 { fill: #2f5d92 } .k1 { fill: #2a6b45 } .k2 { fill: #2b6a5e } .k3 { fill: #8a5524 } }\n";

static void add_legend(canvas *c)
{
    static const char *const words[] = {"F forward", "B backward", "I input gradient", "W weight gradient"};
    bool used[4] = {false};
    int x = 8;

    for (int stage = 0; stage < c->schedule->stages; stage++)
        for (int i = 0; i < c->schedule->stage[stage].count; i++)
            if (loom_is_compute(&c->schedule->stage[stage].at[i]))
                used[c->schedule->stage[stage].at[i].kind] = true;
    for (int k = 0; k < 4; k++)
        if (used[k]) {
            loom_text_add(&c->out, "<rect class=\"k%d\" x=\"%d\" y=\"34\" width=\"14\" height=\"14\"/><text x=\"%d\" y=\"46\">%s</text>\n", k, x, x + 19, words[k]);
            x += 140;
        }
    if (c->schedule->chunks_per_stage > 1)
        loom_text_add(&c->out, "<text x=\"%d\" y=\"46\">paler: later chunks of the stage</text>\n", x);
}

/* Later chunks of a stage are paler. */
static double opacity_of(const loom_schedule *s, int chunk)
{
    return s->chunks_per_stage == 1 ? 1 : 1 - 0.55 * (chunk / s->stages) / (s->chunks_per_stage - 1);
}

static void add_bar(canvas *c, int stage, int index)
{
    const loom_action *a = &c->schedule->stage[stage].at[index];
    const loom_action_time *time = &c->line->at[stage][index];
    double x = x_at(c, time->start_us), width = (time->end_us - time->start_us) * c->scale;
    char text[64], start[32], end[32];

    loom_text_add(&c->out, "<rect class=\"k%d\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\"", a->kind, x, TOP + stage * ROW,
                  width > 1.5 ? width - 0.75 : width, BAR);
    if (c->schedule->chunks_per_stage > 1)
        loom_text_add(&c->out, " fill-opacity=\"%.2f\"", opacity_of(c->schedule, a->chunk));
    if (c->tells)
        loom_text_add(&c->out, "><title>%s, %s to %s</title></rect>\n", loom_action_describe(a, text, sizeof text), told_time(c, time->start_us, start, sizeof start),
                      told_time(c, time->end_us, end, sizeof end));
    else
        loom_text_add(&c->out, "/>\n");
    if (width >= LETTERS - 1)
        loom_text_add(&c->out, "<text class=\"b\" x=\"%.2f\" y=\"%d\">%d</text>\n", x + width / 2, TOP + stage * ROW + 15, a->micro_batch);
}

static void add_row(canvas *c, int stage)
{
    const loom_timeline *line = c->line;

    loom_text_add(&c->out, "<text x=\"8\" y=\"%d\">stage %d</text>\n<rect class=\"idle\" x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>stage %d idle "
                           "%.3g %% of the step</title></rect>\n",
                  TOP + stage * ROW + 15, stage, LEFT, TOP + stage * ROW, line->makespan_us * c->scale, BAR, stage,
                  line->makespan_us > 0 ? 100 * (1 - line->busy_us[stage] / line->makespan_us) : 0);
    for (int i = 0; i < c->schedule->stage[stage].count; i++)
        if (loom_is_compute(&c->schedule->stage[stage].at[i]))
            add_bar(c, stage, i);
}

/* +1 when a forward begins, -1 when its last gradient is done. */
static int change_of(const loom_action *a)
{
    return a->kind == LOOM_FORWARD ? 1 : a->kind == LOOM_BACKWARD || a->kind == LOOM_BACKWARD_WEIGHT ? -1 : 0;
}

static int peak_of(const loom_schedule *s, int stage)
{
    int now = 0, peak = 0;

    for (int i = 0; i < s->stage[stage].count; i++) {
        now += change_of(&s->stage[stage].at[i]);
        peak = now > peak ? now : peak;
    }
    return peak;
}

static void add_strip(canvas *c, int stage, int most)
{
    const loom_stage_actions *list = &c->schedule->stage[stage];
    int base = c->strips_top + (stage + 1) * STRIP - 6, now = 0;
    double unit = most > 0 ? (STRIP - 8) / (double)most : 0;

    loom_text_add(&c->out, "<text x=\"8\" y=\"%d\">holds %d</text>\n<path class=\"held\" d=\"M%d %d", base, peak_of(c->schedule, stage), LEFT, base);
    for (int i = 0; i < list->count; i++) {
        int change = change_of(&list->at[i]);
        if (change == 0)
            continue;
        now += change;
        loom_text_add(&c->out, "H%.2fV%.2f", x_at(c, change > 0 ? c->line->at[stage][i].start_us : c->line->at[stage][i].end_us), base - now * unit);
    }
    loom_text_add(&c->out, "V%dZ\"><title>micro-batches in flight on stage %d, at most %d</title></path>\n", base, stage, peak_of(c->schedule, stage));
}

loom_status loom_schedule_svg(const loom_schedule *schedule, const loom_timeline *timeline, const char *title, bool real, char **text)
{
    canvas c = {.schedule = schedule, .line = timeline, .real = real};
    char end[32];
    int most = 0;

    measure(&c);
    loom_svg_open(&c.out, c.width, c.height, title, style);
    add_legend(&c);
    for (int stage = 0; stage < schedule->stages; stage++) {
        add_row(&c, stage);
        most = peak_of(schedule, stage) > most ? peak_of(schedule, stage) : most;
    }
    loom_text_add(&c.out, "<text x=\"8\" y=\"%d\">micro-batches (times chunks) in flight</text>\n", c.strips_top - 8);
    for (int stage = 0; stage < schedule->stages; stage++)
        add_strip(&c, stage, most);
    loom_text_add(&c.out, "<line class=\"axis\" x1=\"%d\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\"/><text x=\"%d\" y=\"%d\">0</text>"
                          "<text x=\"%.2f\" y=\"%d\" text-anchor=\"end\">%s</text>\n",
                  LEFT, x_at(&c, timeline->makespan_us), c.height - 26, c.height - 26, LEFT, c.height - 10, x_at(&c, timeline->makespan_us), c.height - 10,
                  told_time(&c, timeline->makespan_us, end, sizeof end));
    loom_svg_close(&c.out);
    return loom_text_take(&c.out, text);
}
