/* A picture of a topology: racks hold nodes, nodes hold devices, one colour a fast domain. */
#include "topology/tell.h"

#include <rankloom/text.h>

#include <string.h>

enum {
    BOX = 26, /* a device */
    GAP = 6,
    PER_ROW = 8,    /* devices side by side */
    NODES_WIDE = 4, /* nodes side by side */
    HEAD = 22,      /* a node's title */
    MAX_NODES = 64, /* drawn; the rest is told in words */
};

static const char *colour_of(int domain)
{
    static const char *const colours[] = {"#9ecae1", "#fdd0a2", "#a1d99b", "#dadaeb", "#fcbba1", "#d9d9d9", "#c7e9c0", "#fee391"};
    return colours[domain % (int)(sizeof colours / sizeof *colours)];
}

static int rows_of(const loom_topo_node *node)
{
    return (node->devices + PER_ROW - 1) / PER_ROW;
}

static int width_of_node(const loom_topology *t)
{
    int most = 1;
    for (int n = 0; n < t->n_nodes; n++)
        most = t->nodes[n].devices > most ? t->nodes[n].devices : most;
    most = most < PER_ROW ? most : PER_ROW;
    int width = most * (BOX + GAP) + GAP;
    return width < 110 ? 110 : width;
}

static void draw_node(loom_text *text, const loom_topology *t, int index, int x, int y, int width)
{
    const loom_topo_node *node = &t->nodes[index];

    loom_text_add(text, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"#ffffff\" stroke=\"#444\"/>\n", x, y, width,
                  HEAD + rows_of(node) * (BOX + GAP) + GAP);
    loom_text_add(text, "<text x=\"%d\" y=\"%d\">node %d</text>\n", x + GAP, y + 15, index);
    for (int i = 0; i < node->devices; i++) {
        int rank = node->first_device + i;
        const loom_topo_device *device = &t->devices[t->rank_device[rank]];
        int at_x = x + GAP + i % PER_ROW * (BOX + GAP), at_y = y + HEAD + i / PER_ROW * (BOX + GAP);
        loom_text_add(text, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" fill=\"%s\" stroke=\"#666\"><title>", at_x, at_y,
                      BOX, BOX, colour_of(device->domain));
        loom_text_add(text, "rank %d, device %d of node %d, fast domain %d</title></rect>\n", rank, device->local, index, device->domain);
        loom_text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", at_x + BOX / 2, at_y + 17, rank);
    }
}

/* Names from files end up in the picture: only letters that XML lets stand. */
static void add_plain(loom_text *text, const char *name)
{
    for (; *name; name++)
        if (*name == '<' || *name == '>' || *name == '&' || *name == '"' || (unsigned char)*name < 0x20)
            loom_text_add(text, "?");
        else
            loom_text_add_bytes(text, name, 1);
}

static void draw_legend(loom_text *text, const loom_topology *t, int y)
{
    static const char *const meaning[LOOM_LEVELS] = {"", "same colour", "inside a host", "inside a rack", "between racks"};
    bool told[LOOM_LEVELS] = {false};

    for (int rank = 1; rank < t->n_devices; rank++) {
        loom_link link = loom_topology_link(t, 0, rank);
        if (told[link.level])
            continue;
        told[link.level] = true;
        loom_text_add(text, "<text x=\"%d\" y=\"%d\">%s: ", GAP, y, meaning[link.level]);
        loom_tell_rate_of(text, link.bandwidth);
        loom_text_add(text, ", ");
        loom_tell_latency_of(text, link.latency_s);
        loom_text_add(text, "</text>\n");
        y += 16;
    }
}

/* Racks from top to bottom, a frame around each; returns the height that was used. */
static int draw_racks(loom_text *text, const loom_topology *t, int shown, int y, int width)
{
    for (int first = 0, end; first < shown; first = end) {
        int top = y, tallest = 0, column = 0;
        for (end = first; end < shown && t->nodes[end].rack == t->nodes[first].rack; end++)
            ;
        y += HEAD;
        loom_text_add(text, "<text x=\"%d\" y=\"%d\">rack %d</text>\n", 2 * GAP, top + 15, t->nodes[first].rack);
        for (int n = first; n < end; n++) {
            int height = HEAD + rows_of(&t->nodes[n]) * (BOX + GAP) + GAP;
            tallest = height > tallest ? height : tallest;
            draw_node(text, t, n, 2 * GAP + column * (width + GAP), y, width);
            if (++column == NODES_WIDE || n + 1 == end) {
                y += tallest + GAP;
                tallest = column = 0;
            }
        }
        loom_text_add(
            text, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" fill=\"none\" stroke=\"#aaa\" stroke-dasharray=\"4 3\"/>\n",
            GAP, top, NODES_WIDE * (width + GAP) + GAP, y - top);
        y += GAP;
    }
    return y;
}

loom_status loom_topology_svg(const loom_topology *t, char **out)
{
    loom_text body = {0}, text = {0};
    int shown = t->n_nodes < MAX_NODES ? t->n_nodes : MAX_NODES, width = width_of_node(t);
    int y = draw_racks(&body, t, shown, 30, width) + 16;
    loom_status status;
    char *drawn;

    if (shown < t->n_nodes) {
        loom_text_add(&body, "<text x=\"%d\" y=\"%d\">and %d more nodes</text>\n", GAP, y, t->n_nodes - shown);
        y += 16;
    }
    draw_legend(&body, t, y);
    loom_text_add(&text,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n",
                  NODES_WIDE * (width + GAP) + 4 * GAP, y + 4 * 16);
    loom_text_add(&text, "<rect width=\"100%%\" height=\"100%%\" fill=\"#fafafa\"/>\n<text x=\"%d\" y=\"20\" font-weight=\"bold\">", GAP);
    add_plain(&text, t->name[0] ? t->name : t->source);
    loom_text_add(&text, ": %d devices in %d nodes</text>\n", t->n_devices, t->n_nodes);
    if ((status = loom_text_take(&body, &drawn)) < 0) {
        loom_text_drop(&text);
        return status;
    }
    loom_text_add_bytes(&text, drawn, strlen(drawn));
    loom_text_free(drawn);
    loom_text_add(&text, "</svg>\n");
    return loom_text_take(&text, out);
}
