/* A plan as one page of HTML. It is written as XML too, so that any parser can read it back; without scripts and without anything from outside, which
 * its own security policy holds it to. Wide things scroll inside their frames, which the keyboard can reach. */
#include <rankloom/draw.h>

#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "core/try.h"
#include "planner/cost.h"
#include "planner/drawing.h"

enum {
    SAMPLE = 600, /* layouts of the scatter */
    BARS = 4000,  /* of the timeline, about: the page has to open on a phone */
    RANKS = 512,  /* of the map */
};

/* --- frame ------------------------------------------------------------------------------------------------------------------- */

static const char head[] =
    "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<meta name=\"color-scheme\" content=\"light dark\"/>\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n";

static const char style[] =
    "<style>\n:root { color-scheme: light dark; --ground: #ffffff; --text: #24292f; --quiet: #57606a; --line: #d0d7de; --panel: #f6f8fa; --bar: #0969da; --full: #cf222e; --link: #0550ae }\n"
    "@media (prefers-color-scheme: dark) { :root { --ground: #0d1117; --text: #e6edf3; --quiet: #9198a1; --line: #30363d; --panel: #161b22; --bar: #4493f8; --full: #ff7b72; --link: #79b8ff } }\n"
    "* { box-sizing: border-box }\n"
    "body { margin: 0; background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }\n"
    "header, main, footer { max-width: 70rem; margin: 0 auto; padding: 0 1rem }\nh1 { font-size: 1.5rem; line-height: 1.25; margin: 1.5rem 0 0.5rem } h2 { font-size: 1.2rem; margin: 2.5rem 0 0.5rem }\n"
    "a { color: var(--link) } nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; padding: 0; list-style: none } nav a { display: inline-block; padding: 0.4rem 0 }\n"
    ".skip { position: absolute; left: -100rem } .skip:focus { left: 1rem; top: 0.5rem; background: var(--ground); padding: 0.5rem; z-index: 1 }\n"
    ".scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px } .scroll:focus-visible, a:focus-visible { outline: 3px solid var(--bar); outline-offset: 2px }\n"
    "table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.9rem } caption { text-align: left; padding: 0.5rem; color: var(--quiet) } caption span { display: inline-block; max-width: calc(100vw - 4rem) }\n"
    "th, td { padding: 0.4rem 0.6rem; border-top: 1px solid var(--line); text-align: right; white-space: nowrap } thead th { background: var(--panel) } th[scope=row], th.words { text-align: left } th.wraps { white-space: normal; min-width: 9rem } .scroll + .scroll { margin-top: 1rem }\n"
    "td.share { min-width: 9rem; text-align: left } .bar { display: inline-block; height: 0.7rem; margin-right: 0.5rem; background: var(--bar) } .bar.full { background: var(--full) }\n"
    "dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 0.75rem; margin: 1rem 0 } dl div { background: var(--panel); border: 1px solid var(--line); "
    "border-radius: 6px; padding: 0.5rem 0.75rem } dt { color: var(--quiet); font-size: 0.85rem } dd { margin: 0; font-size: 1.15rem }\n"
    "figure { margin: 0.5rem 0 } figcaption { margin-top: 0.4rem } footer { margin-top: 3rem } figcaption, footer { color: var(--quiet); font-size: 0.9rem } pre { margin: 0; padding: 0.75rem; font-size: 0.85rem; background: var(--panel) } svg { display: block }\n"
    "@media print { .scroll { overflow: visible } nav, .skip { display: none } svg { max-width: 100%; height: auto } }\n</style>\n";

typedef struct section {
    const char *id, *name;
} section;
static const section sections[] = {{"layouts", "The fastest layouts"}, {"time", "Where the time goes"},     {"memory", "Memory of each stage"}, {"timeline", "Timeline"},
                                   {"over-time", "Memory over time"},  {"ranks", "Where the ranks sit"}, {"search", "The search"},            {"file", "Layout file"}};
enum { LAYOUTS, TIME, MEMORY, TIMELINE, OVER_TIME, MAP, SEARCH, LAYOUT_FILE, SECTIONS };

static void open_section(loom_text *out, int which)
{
    loom_text_add(out, "<section aria-labelledby=\"%s\">\n<h2 id=\"%s\">%s</h2>\n", sections[which].id, sections[which].id, sections[which].name);
}

static void close_section(loom_text *out)
{
    loom_text_add(out, "</section>\n");
}

static void open_scroll(loom_text *out, int which)
{
    loom_text_add(out, "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"%s\">\n", sections[which].id);
}

static void add_page_head(loom_text *out, const loom_plan_request *request, const char *machines)
{
    loom_text_add(out, "%s<title>Plan: ", head);
    loom_text_add_xml(out, request->model->name);
    loom_text_add(out, "</title>\n%s</head>\n<body>\n<a class=\"skip\" href=\"#main\">To the content</a>\n<header>\n<h1>Plan for ", style);
    loom_text_add_xml(out, request->model->name);
    loom_text_add(out, "</h1>\n<p>");
    loom_text_add_xml(out, machines);
    loom_text_add(out, "</p>\n");
}

static void add_navigation(loom_text *out)
{
    loom_text_add(out, "<nav aria-label=\"Sections\"><ul>\n");
    for (int i = 0; i < SECTIONS; i++)
        loom_text_add(out, "<li><a href=\"#%s\">%s</a></li>\n", sections[i].id, sections[i].name);
    loom_text_add(out, "</ul></nav>\n");
}

/* --- figures ------------------------------------------------------------------------------------------------------------------ */

static void add_figure(loom_text *out, const char *name, const char *format, double value)
{
    loom_text_add(out, "<div><dt>%s</dt><dd>", name);
    loom_text_add(out, format, value);
    loom_text_add(out, "</dd></div>\n");
}

static void add_summary(loom_text *out, const loom_plan *plan)
{
    const loom_prediction *p = &plan->best[0];
    char line[256];

    loom_text_add(out, "<p>Best: <strong>%s</strong> on %d devices.</p>\n<dl>\n", loom_layout_describe(&p->layout, line, sizeof line), loom_layout_world(&p->layout));
    add_figure(out, "Step", "%.4g s", p->step_s);
    add_figure(out, "Tokens per second", "%.0f", p->tokens_per_s);
    add_figure(out, "MFU, half the attention square", "%.1f %%", 100 * p->mfu_causal);
    add_figure(out, "Fullest stage", "%.1f GiB", loom_gib(p->memory[p->fullest].total));
    loom_text_add(out, "</dl>\n<ul>\n<li>Limit: ");
    loom_text_add_xml(out, plan->binding);
    loom_text_add(out, ".</li>\n");
    if (plan->runner_up[0]) {
        loom_text_add(out, "<li>Second: ");
        loom_text_add_xml(out, plan->runner_up);
        loom_text_add(out, ".</li>\n");
    }
    for (int i = 0; i < plan->n_changes; i++) {
        loom_text_add(out, "<li>%.1f %% would be gained by: ", 100 * plan->changes[i].gain);
        loom_text_add_xml(out, plan->changes[i].text);
        loom_text_add(out, ".</li>\n");
    }
    loom_text_add(out, "</ul>\n");
}

static void add_layout_rows(loom_text *out, const loom_prediction *list, int n)
{
    char line[256];

    for (int i = 0; i < n; i++) {
        const loom_prediction *p = &list[i];
        loom_text_add(out, "<tr><th scope=\"row\">%d</th><th scope=\"row\" class=\"wraps\">%s</th><td>%d</td><td>%.4g</td><td>%.3g to %.3g</td><td>%.0f</td><td>%.1f</td><td>%.1f</td><td>%.1f</td></tr>\n",
                      i + 1, loom_layout_describe(&p->layout, line, sizeof line), loom_layout_world(&p->layout), p->step_s, p->low_s, p->high_s, p->tokens_per_s_per_gpu,
                      100 * p->mfu_causal, 100 * p->bubble, loom_gib(p->memory[p->fullest].total));
    }
}

static void add_layout_table(loom_text *out, const char *caption, const loom_prediction *list, int n)
{
    open_scroll(out, LAYOUTS);
    loom_text_add(out, "<table>\n<caption><span>%s</span></caption>\n<thead><tr><th scope=\"col\" class=\"words\">#</th><th scope=\"col\" class=\"words\">Layout</th><th scope=\"col\">Devices</th><th scope=\"col\">Step, s</th>"
                       "<th scope=\"col\">80 %% interval, s</th><th scope=\"col\">Tokens/s a device</th><th scope=\"col\">MFU, %%</th><th scope=\"col\">Bubble, %%</th>"
                       "<th scope=\"col\">Fullest stage, GiB</th></tr></thead>\n<tbody>\n", caption);
    add_layout_rows(out, list, n);
    loom_text_add(out, "</tbody>\n</table>\n</div>\n");
}

static void add_layouts(loom_text *out, const loom_plan *plan)
{
    open_section(out, LAYOUTS);
    add_layout_table(out, "Fastest first; they differ in tp, cp, pp, ep or etp. The bubble is idle over busy time.", plan->best, plan->n_best);
    if (plan->n_front > 0)
        add_layout_table(out, "The front: none of these is beaten in seconds, GiB and devices together.", plan->front, plan->n_front);
    close_section(out);
}

static void add_share(loom_text *out, double share)
{
    double width = share < 0 ? 0 : share > 1 ? 1 : share;

    loom_text_add(out, "<td class=\"share\"><span class=\"bar%s\" style=\"width:%.2frem\" aria-hidden=\"true\"></span>%.1f %%</td>", share > 1 ? " full" : "", 5 * width, 100 * share);
}

static void add_time(loom_text *out, const loom_prediction *p)
{
    open_section(out, TIME);
    open_scroll(out, TIME);
    loom_text_add(out, "<table>\n<caption><span>One step of the best layout on its busiest stage, %d; axes are communication as far as it is exposed.</span></caption>\n"
                       "<thead><tr><th scope=\"col\" class=\"words\">Part</th><th scope=\"col\">Seconds</th><th scope=\"col\" class=\"words\">Share of the step</th></tr></thead>\n<tbody>\n", p->busiest);
    for (int i = 0; i < LOOM_TIME_PARTS; i++) {
        if (!(p->part_s[i] > 0))
            continue;
        loom_text_add(out, "<tr><th scope=\"row\">%s</th><td>%.4f</td>", loom_time_part_name(i), p->part_s[i]);
        add_share(out, p->part_s[i] / p->step_s);
        loom_text_add(out, "</tr>\n");
    }
    loom_text_add(out, "</tbody>\n</table>\n</div>\n<p>%.0f %% of the time rests on constants that nobody measured here.</p>\n", 100 * p->default_share);
    close_section(out);
}

static void add_memory_row(loom_text *out, const loom_prediction *p, int stage)
{
    static const loom_memory_part shown[] = {LOOM_MEMORY_WEIGHTS, LOOM_MEMORY_GRADIENTS, LOOM_MEMORY_OPTIMIZER, LOOM_MEMORY_ACTIVATIONS};
    const loom_stage_memory *m = &p->memory[stage];
    double rest = m->total;

    loom_text_add(out, "<tr><th scope=\"row\">%d</th><td>%d</td><td>%d</td>", stage, m->layers, m->in_flight);
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        loom_text_add(out, "<td>%.2f</td>", loom_gib(m->part[shown[i]]));
        rest -= m->part[shown[i]];
    }
    loom_text_add(out, "<td>%.2f</td><td>%.2f</td>", loom_gib(rest), loom_gib(m->total));
    add_share(out, m->total / p->memory_limit);
    loom_text_add(out, "</tr>\n");
}

static void add_memory(loom_text *out, const loom_prediction *p)
{
    open_section(out, MEMORY);
    open_scroll(out, MEMORY);
    loom_text_add(out, "<table>\n<caption><span>GiB of one rank of each stage of the best layout; the limit is %.1f GiB.</span></caption>\n<thead><tr><th scope=\"col\" class=\"words\">Stage</th><th scope=\"col\">Layers</th>"
                       "<th scope=\"col\">Chunks in flight</th><th scope=\"col\">Weights</th><th scope=\"col\">Gradients</th><th scope=\"col\">Optimizer</th><th scope=\"col\">Activations</th>"
                       "<th scope=\"col\">Logits, buffers, workspace</th><th scope=\"col\">Total</th><th scope=\"col\" class=\"words\">Of the limit</th></tr></thead>\n<tbody>\n", loom_gib(p->memory_limit));
    for (int stage = 0; stage < p->stages; stage++)
        add_memory_row(out, p, stage);
    loom_text_add(out, "</tbody>\n</table>\n</div>\n");
    close_section(out);
}

/* --- pictures ----------------------------------------------------------------------------------------------------------------------- */

static void add_picture(loom_text *out, int which, char *svg, const char *caption)
{
    open_section(out, which);
    loom_text_add(out, "<figure>\n");
    open_scroll(out, which);
    loom_text_add(out, "%s</div>\n<figcaption>%s</figcaption>\n</figure>\n", svg, caption);
    close_section(out);
    loom_text_free(svg);
}

/* Enough micro-batches for the pattern to show, few enough for the page. */
static int drawn_micro_batches(const loom_layout *l)
{
    int most = BARS / (2 * l->pp * l->vpp);

    return most > 2 * l->pp ? most : most > l->pp ? 2 * l->pp : l->pp;
}

/* Both from one rehearsal. */
static loom_status add_schedule(loom_text *out, const loom_drawing *d, const loom_prediction *p)
{
    char *svg;
    loom_status status;

    LOOM_TRY(loom_drawing_timeline(d, &svg));
    add_picture(out, TIMELINE, svg, "A row a stage, a bar a pass with the number of its micro-batch; below, what each stage holds in flight.");
    LOOM_TRY(loom_drawing_memory(d, p, &svg));
    add_picture(out, OVER_TIME, svg, "At its highest each curve is the total of the table above.");

fail:
    return status;
}

static loom_status add_pictures(loom_text *out, const loom_plan_request *request, const loom_prediction *p)
{
    const loom_layout *l = &p->layout;
    loom_drawing *d = malloc(sizeof *d);
    char *svg;
    loom_status status = d ? loom_drawing_open(request, l, drawn_micro_batches(l), d) : loom_fail(LOOM_E_MEMORY, "no memory for pictures of a schedule");

    if (status == LOOM_OK) {
        status = add_schedule(out, d, p);
        loom_drawing_close(d);
    }
    free(d);
    if (status == LOOM_OK && (status = loom_map_svg(l, request->topology, RANKS, &svg)) == LOOM_OK)
        add_picture(out, MAP, svg, "A box is a node, a cell a rank with its place on the axes that are divided.");
    return status;
}

static loom_status add_search(loom_text *out, const loom_plan_request *request, const loom_plan *plan)
{
    loom_plan_point *points = calloc(SAMPLE, sizeof *points);
    char *svg;
    int found;
    loom_status status = points ? loom_plan_sample(request, SAMPLE, points, &found) : loom_fail(LOOM_E_MEMORY, "no memory for %d layouts", SAMPLE);

    if (status == LOOM_OK && (status = loom_scatter_svg(plan, points, found, &svg)) == LOOM_OK) {
        add_picture(out, SEARCH, svg, "Both scales are logarithmic. The sample shows the space; the best come from the search.");
        loom_text_add(out, plan->legal < 10000000 ? "<p>%.0f legal layouts; %llu were worked out, bounds decide on the others.</p>\n"
                                                 : "<p>%.3g legal layouts; %llu were worked out, bounds decide on the others.</p>\n", (double)plan->legal, (unsigned long long)plan->evaluated);
    }
    free(points);
    return status;
}

static loom_status add_layout_file(loom_text *out, const loom_layout *l)
{
    char *yaml;
    loom_status status = loom_layout_yaml(l, &yaml);

    if (status < 0)
        return status;
    open_section(out, LAYOUT_FILE);
    open_scroll(out, LAYOUT_FILE);
    loom_text_add(out, "<pre>");
    for (char *line = yaml, *end; (end = strchr(line, '\n')); line = end + 1) { /* loom_text_add_xml() takes no line breaks */
        *end = '\0';
        loom_text_add_xml(out, line);
        loom_text_add(out, "\n");
    }
    loom_text_add(out, "</pre>\n</div>\n");
    close_section(out);
    loom_text_free(yaml);
    return LOOM_OK;
}

/* --- the page ------------------------------------------------------------------------------------------------------------------------- */

static loom_status add_content(loom_text *out, const loom_plan_request *request, const loom_plan *plan)
{
    loom_status status = LOOM_OK;

    if (plan->n_best == 0) {
        loom_text_add(out, "</header>\n<main id=\"main\">\n<p>");
        loom_text_add_xml(out, plan->hopeless);
        loom_text_add(out, "</p>\n");
        return LOOM_OK;
    }
    add_navigation(out);
    loom_text_add(out, "</header>\n<main id=\"main\">\n");
    add_summary(out, plan);
    add_layouts(out, plan);
    add_time(out, &plan->best[0]);
    add_memory(out, &plan->best[0]);
    LOOM_TRY(add_pictures(out, request, &plan->best[0]));
    LOOM_TRY(add_search(out, request, plan));
    LOOM_TRY(add_layout_file(out, &plan->best[0].layout));

fail:
    return status;
}

loom_status loom_plan_html(const loom_plan_request *request, const loom_plan *plan, char **text)
{
    loom_text out = {0};
    char *machines;
    loom_status status = loom_topology_line(request->topology, &machines);

    if (status < 0)
        return status;
    add_page_head(&out, request, machines);
    loom_text_free(machines);
    if ((status = add_content(&out, request, plan)) < 0) {
        loom_text_drop(&out);
        return status;
    }
    loom_text_add(&out, "</main>\n<footer><p>Predicted by Rankloom; docs/planner.md says how and how well.</p></footer>\n</body>\n</html>\n");
    return loom_text_take(&out, text);
}
