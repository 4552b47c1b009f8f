/* A picture of where the ranks of a layout sit: boxes are nodes (or stages, without a topology), cells are ranks. */
#include <rankloom/draw.h>

#include <stdio.h>
#include <string.h>

#include "core/svg.h"

enum {
    CELL_WIDE = 60,
    CELL_HIGH = 34,
    GAP = 5,
    PER_ROW = 8,     /* cells side by side */
    HEAD = 22,       /* a box's name */
    TOP = 44,
    PAGE_WIDE = 1070, /* two nodes of eight; the report shows 1088 */
    COLOURS = 8,
};

typedef struct page {
    loom_text out;
    const loom_layout *layout;
    const loom_topology *topology;
    int drawn;      /* ranks */
    int box_wide;
    int x, y, row_high; /* where the next box goes, and the highest of its row */
} page;

static int box_of(const page *p, int rank)
{
    return p->topology ? loom_topology_node_of(p->topology, rank) : loom_layout_coords(p->layout, rank).at[LOOM_AXIS_PP];
}

static void add_place(page *p, const loom_coords *at, bool all)
{
    for (int axis = 0; axis < (all ? LOOM_AXES : LOOM_AXIS_PP); axis++)
        if (all || loom_layout_degree(p->layout, (loom_axis)axis) > 1)
            loom_text_add(&p->out, all ? " %s%d" : "%.1s%d ", loom_axis_name((loom_axis)axis), at->at[axis]);
}

static void add_cell(page *p, int rank, int x, int y)
{
    loom_coords at = loom_layout_coords(p->layout, rank);

    loom_text_add(&p->out, "<g><rect class=\"c%d\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\"><title>rank %d:", at.at[LOOM_AXIS_PP] % COLOURS, x,
                  y, CELL_WIDE, CELL_HIGH, rank);
    add_place(p, &at, true);
    loom_text_add(&p->out, "</title></rect><text class=\"n\" x=\"%d\" y=\"%d\">%d</text><text class=\"n small\" x=\"%d\" y=\"%d\">", x + CELL_WIDE / 2, y + 14, rank,
                  x + CELL_WIDE / 2, y + 28);
    add_place(p, &at, false);
    if (p->layout->pp > 1)
        loom_text_add(&p->out, "p%d", at.at[LOOM_AXIS_PP]);
    loom_text_add(&p->out, "</text></g>\n");
}

static int ranks_in(const page *p, int box)
{
    int count = 0;

    for (int rank = 0; rank < p->drawn; rank++)
        count += box_of(p, rank) == box;
    return count;
}

static void add_box(page *p, int box, const char *what)
{
    int count = ranks_in(p, box), high;

    if (count == 0)
        return;
    high = HEAD + (count + PER_ROW - 1) / PER_ROW * (CELL_HIGH + GAP) + GAP;
    if (p->x > GAP && p->x + p->box_wide > PAGE_WIDE) {
        p->x = GAP;
        p->y += p->row_high + GAP;
        p->row_high = 0;
    }
    p->row_high = high > p->row_high ? high : p->row_high;
    loom_text_add(&p->out, "<rect class=\"box\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\"/><text x=\"%d\" y=\"%d\">%s %d</text>\n", p->x, p->y,
                  p->box_wide, high, p->x + GAP, p->y + 15, what, box);
    for (int rank = 0, i = 0; rank < p->drawn; rank++)
        if (box_of(p, rank) == box) {
            add_cell(p, rank, p->x + GAP + i % PER_ROW * (CELL_WIDE + GAP), p->y + HEAD + i / PER_ROW * (CELL_HIGH + GAP));
            i++;
        }
    p->x += p->box_wide + GAP;
}

static void add_boxes(page *p)
{
    int most = 1, boxes = 0;

    for (int rank = 0; rank < p->drawn; rank++)
        boxes = box_of(p, rank) >= boxes ? box_of(p, rank) + 1 : boxes;
    for (int box = 0; box < boxes; box++) {
        int count = ranks_in(p, box);
        most = count > most ? count : most;
    }
    p->box_wide = GAP + (most < PER_ROW ? most : PER_ROW) * (CELL_WIDE + GAP);
    for (int box = 0; box < boxes; box++)
        add_box(p, box, p->topology ? "node" : "stage");
}

static const char style[] =
    ".box { fill: none; stroke: #57606a } .small { font-size: 9px }\n"
    ".c0 { fill: #9ecae1 } .c1 { fill: #fdd0a2 } .c2 { fill: #a1d99b } .c3 { fill: #dadaeb } .c4 { fill: #fcbba1 } .c5 { fill: #d9d9d9 } "
    ".c6 { fill: #c7e9c0 } .c7 { fill: #fee391 }\n"
    "@media (prefers-color-scheme: dark) { .box { stroke: #8b949e } }\n";

loom_status loom_map_svg(const loom_layout *layout, const loom_topology *topology, int most, char **text)
{
    int world = loom_layout_world(layout), height;
    page p = {.layout = layout, .topology = topology, .drawn = world < most ? world : most, .x = GAP, .y = TOP};
    char line[256], title[512];
    char *boxes;
    loom_status status;

    if (topology && loom_topology_ranks(topology) < world)
        return loom_fail(LOOM_E_INVALID, "the layout has %d ranks, the topology %d devices", world, loom_topology_ranks(topology));
    add_boxes(&p);
    height = p.y + p.row_high + 30;
    if ((status = loom_text_take(&p.out, &boxes)) < 0)
        return status;
    snprintf(title, sizeof title, "%s: %d ranks, one colour a stage; order, fastest first: %s %s %s %s", loom_layout_describe(layout, line, sizeof line), world,
             loom_axis_name(layout->order[0]), loom_axis_name(layout->order[1]), loom_axis_name(layout->order[2]), loom_axis_name(layout->order[3]));
    loom_svg_open(&p.out, PAGE_WIDE, height, title, style);
    loom_text_add_bytes(&p.out, boxes, strlen(boxes));
    if (p.drawn < world)
        loom_text_add(&p.out, "<text x=\"8\" y=\"%d\">and %d ranks more, placed in the same way</text>\n", height - 10, world - p.drawn);
    loom_svg_close(&p.out);
    loom_text_free(boxes);
    return loom_text_take(&p.out, text);
}
