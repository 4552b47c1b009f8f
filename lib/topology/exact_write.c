/* Writing a topology in its exact form. Equal nodes are written once, as a kind, and counted. */
#include "topology/exact.h"

#include "core/file.h"
#include "topology/tell.h"

#include <rankloom/text.h>

#include <stdlib.h>
#include <string.h>

static void write_figure(loom_text *text, loom_figure figure)
{
    if (!loom_known(figure)) {
        loom_text_add(text, "unknown");
        return;
    }
    loom_text_add(text, "[");
    loom_text_add_number(text, figure.value);
    loom_text_add(text, ", %s]", loom_origin_name(figure.origin));
}

/* "{share: [0.8, assumed], …}": all figures of a struct. */
static void write_figures(loom_text *text, const void *of, const loom_figure_field *fields, int count)
{
    loom_text_add(text, "{");
    for (int i = 0; i < count; i++) {
        loom_text_add(text, "%s%s: ", i ? ", " : "", fields[i].name);
        write_figure(text, loom_figure_in(of, &fields[i]));
    }
    loom_text_add(text, "}");
}

static void write_text(loom_text *text, const char *indent, const char *key, const char *value)
{
    loom_text_add(text, "%s%s: ", indent, key);
    loom_text_add_json(text, value);
    loom_text_add(text, "\n");
}

/* --- chips ------------------------------------------------------------------------------------------------------------------- */

static bool has_law(const loom_gemm_law *law)
{
    for (int i = 0; i < LOOM_GEMM_FIGURES; i++)
        if (loom_known(loom_figure_in(law, &loom_gemm_figures[i])))
            return true;
    return false;
}

static void write_chip(loom_text *text, const loom_chip *chip)
{
    write_text(text, "  - ", "name", chip->name);
    write_text(text, "    ", "label", chip->label);
    write_text(text, "    ", "link", chip->link);
    write_text(text, "    ", "origin", chip->origin);
    loom_text_add(text, "    kind: %s\n    link_domain: %d\n", loom_chip_class_names[chip->kind], chip->link_domain);
    for (int i = 0; i < LOOM_CHIP_FIGURES; i++) {
        loom_text_add(text, "    %s: ", loom_chip_figures[i].name);
        write_figure(text, loom_figure_in(chip, &loom_chip_figures[i]));
        loom_text_add(text, "\n");
    }
    loom_text_add(text, "    peak:\n");
    for (int math = 0; math < LOOM_MATHS; math++) {
        loom_text_add(text, "      %s: ", loom_math_name((loom_math)math));
        write_figure(text, chip->peak[math]);
        loom_text_add(text, "\n");
    }
    for (int math = 0, any = 0; math < LOOM_MATHS; math++) {
        if (!has_law(&chip->gemm[math]))
            continue;
        loom_text_add(text, "%s      %s: ", any++ ? "" : "    gemm:\n", loom_math_name((loom_math)math));
        write_figures(text, &chip->gemm[math], loom_gemm_figures, LOOM_GEMM_FIGURES);
        loom_text_add(text, "\n");
    }
}

/* --- kinds of node -------------------------------------------------------------------------------------------------------------- */

/* One list of integers about the devices of a node. */
typedef int device_fact(const loom_topology *t, const loom_topo_node *node, int local);

static int fact_chip(const loom_topology *t, const loom_topo_node *node, int local)
{
    return t->devices[node->first_device + local].chip;
}

static int fact_group(const loom_topology *t, const loom_topo_node *node, int local)
{
    return t->devices[node->first_device + local].domain - t->devices[node->first_device].domain;
}

static int fact_numa(const loom_topology *t, const loom_topo_node *node, int local)
{
    int numa = t->devices[node->first_device + local].numa;
    return numa < 0 ? -1 : numa - node->first_numa;
}

static int fact_nic(const loom_topology *t, const loom_topo_node *node, int local)
{
    int nic = t->devices[node->first_device + local].nic;
    return nic < 0 ? -1 : nic - node->first_nic;
}

static void write_fact(loom_text *text, const char *name, device_fact *fact, const loom_topology *t, const loom_topo_node *node)
{
    loom_text_add(text, "    %s: [", name);
    for (int i = 0; i < node->devices; i++)
        loom_text_add(text, "%s%d", i ? ", " : "", fact(t, node, i));
    loom_text_add(text, "]\n");
}

static void write_wires(loom_text *text, const loom_topology *t, const loom_topo_node *node)
{
    loom_text_add(text, "    wires:\n");
    for (int i = 0; i < node->devices; i++) {
        loom_text_add(text, "    - \"");
        for (int j = 0; j < node->devices; j++) {
            loom_wire wire = t->wires[node->first_wire + i * node->devices + j];
            loom_text_add(text, "%s%s", j ? " " : "", loom_path_names[wire.path]);
            if (wire.path == LOOM_PATH_NVLINK)
                loom_text_add(text, "%d", wire.links);
        }
        loom_text_add(text, "\"\n");
    }
}

static void write_kind(loom_text *text, const loom_topology *t, const loom_topo_node *node)
{
    loom_text_add(text, "  - cores: %d\n    threads: %d\n    memory_bytes: ", node->cores, node->threads);
    write_figure(text, node->memory_bytes);
    loom_text_add(text, "\n");
    if (node->numas)
        loom_text_add(text, "    numas:\n");
    for (int i = 0; i < node->numas; i++) {
        const loom_numa *numa = &t->numas[node->first_numa + i];
        loom_text_add(text, "    - {os_index: %d, cores: %d, threads: %d, memory_bytes: ", numa->os_index, numa->cores, numa->threads);
        write_figure(text, numa->memory_bytes);
        loom_text_add(text, "}\n");
    }
    if (node->nics)
        loom_text_add(text, "    nics:\n");
    for (int i = 0; i < node->nics; i++) {
        const loom_nic *nic = &t->nics[node->first_nic + i];
        loom_text_add(text, "    - {numa: %d, bandwidth: ", nic->numa < 0 ? -1 : nic->numa - node->first_numa);
        write_figure(text, nic->bandwidth);
        loom_text_add(text, "}\n");
    }
    write_fact(text, "chip", fact_chip, t, node);
    write_fact(text, "group", fact_group, t, node);
    write_fact(text, "numa", fact_numa, t, node);
    write_fact(text, "nic", fact_nic, t, node);
    if (t->wires)
        write_wires(text, t, node);
}

/* Whether the first domain of node `n` began on the node before. */
static bool joins(const loom_topology *t, int n)
{
    int first = t->nodes[n].first_device;
    return n > 0 && t->devices[first].domain == t->devices[t->rank_device[first - 1]].domain;
}

static void write_node_runs(loom_text *text, const loom_topology *t, const int *kind)
{
    loom_text_add(text, "  nodes:\n");
    for (int first = 0, count; first < t->n_nodes; first += count) {
        const loom_topo_node *node = &t->nodes[first];
        count = 1;
        while (!node->name[0] && first + count < t->n_nodes && kind[first + count] == kind[first] && !t->nodes[first + count].name[0] &&
               t->nodes[first + count].rack == node->rack && joins(t, first + count) == joins(t, first))
            count++;
        loom_text_add(text, "  - {kind: %d, count: %d, rack: %d, joins: %s", kind[first], count, node->rack,
                      joins(t, first) ? "true" : "false");
        if (node->name[0]) {
            loom_text_add(text, ", name: ");
            loom_text_add_json(text, node->name);
        }
        loom_text_add(text, "}\n");
    }
}

/* Kinds are numbered in the order in which they appear; a kind is told by its first node. */
static loom_status write_nodes(loom_text *text, const loom_topology *t)
{
    int *kind = malloc((size_t)t->n_nodes * 2 * sizeof *kind), *teller, kinds = 0;

    if (!kind)
        return loom_fail(LOOM_E_MEMORY, "no memory for the kinds of %d nodes", t->n_nodes);
    teller = kind + t->n_nodes;
    loom_text_add(text, "  kinds:\n");
    for (int n = 0; n < t->n_nodes; n++) {
        int k = 0;
        while (k < kinds && !loom_nodes_alike(t, teller[k], n))
            k++;
        if (k == kinds) {
            teller[kinds++] = n;
            write_kind(text, t, &t->nodes[n]);
        }
        kind[n] = k;
    }
    write_node_runs(text, t, kind);
    free(kind);
    return LOOM_OK;
}

/* --- what was measured ------------------------------------------------------------------------------------------------------------ */

static void write_measured(loom_text *text, const loom_topology *t)
{
    loom_text_add(text, "%s", t->n_gemms ? "  gemms: # chip, type, m, n, k, seconds\n" : "");
    for (int i = 0; i < t->n_gemms; i++) {
        const loom_gemm_point *g = &t->gemms[i];
        loom_text_add(text, "  - [%d, %s, %lld, %lld, %lld, ", g->chip, loom_math_name(g->math), (long long)g->m, (long long)g->n,
                      (long long)g->k);
        loom_text_add_number(text, g->seconds);
        loom_text_add(text, "]\n");
    }
    loom_text_add(text, "%s", t->n_points ? "  points: # collective, slowest level, ranks, of them in one domain, bytes, seconds\n" : "");
    for (int i = 0; i < t->n_points; i++) {
        const loom_pattern_point *p = &t->points[i];
        loom_text_add(text, "  - [%s, %s, %d, %d, ", loom_pattern_name(p->pattern), loom_level_name(p->level), p->ranks, p->in_domain);
        loom_text_add_number(text, p->bytes);
        loom_text_add(text, ", ");
        loom_text_add_number(text, p->seconds);
        loom_text_add(text, "]\n");
    }
    loom_text_add(text, "%s", t->n_laws ? "  laws: # seconds = fixed_s + step_s (ranks - 1) + bytes handed on / bandwidth\n" : "");
    for (int i = 0; i < t->n_laws; i++) {
        const loom_pattern_law *law = &t->laws[i];
        loom_text_add(text, "  - {pattern: %s, level: %s, ranks: %d, in_domain: %d, fixed_s: ", loom_pattern_name(law->pattern),
                      loom_level_name(law->level), law->ranks, law->in_domain);
        write_figure(text, law->fixed_s);
        loom_text_add(text, ", step_s: ");
        write_figure(text, law->step_s);
        loom_text_add(text, ", bandwidth: ");
        write_figure(text, law->bandwidth);
        loom_text_add(text, "}\n");
    }
}

/* --- the whole ----------------------------------------------------------------------------------------------------------------------- */

static void write_head(loom_text *text, const loom_topology *t)
{
    loom_text_add(
        text, "# A topology in its exact form (docs/topology-files.md). Bandwidths are B/s in one direction, times seconds.\ntopology:\n");
    write_text(text, "  ", "name", t->name);
    if (t->measured[0])
        write_text(text, "  ", "measured", t->measured);
    loom_text_add(text, "  rails: %s\n  peer_access: %s\n  levels:\n", t->rails ? "true" : "false", t->peer_access ? "true" : "false");
    for (int level = LOOM_LEVEL_DOMAIN; level < LOOM_LEVELS; level++) {
        loom_text_add(text, "    %s: ", loom_level_name((loom_level)level));
        write_figures(text, &t->levels[level], loom_level_figure_names, LOOM_LEVEL_FIGURES);
        loom_text_add(text, "\n");
    }
    loom_text_add(text, "  chips:\n");
    for (int i = 0; i < t->n_chips; i++)
        write_chip(text, &t->chips[i]);
}

loom_status loom_topology_write(const loom_topology *t, char **out)
{
    loom_text text = {0};

    write_head(&text, t);
    loom_status status = write_nodes(&text, t);
    if (status < 0) {
        loom_text_drop(&text);
        return status;
    }
    write_measured(&text, t);
    for (int i = 0; i < t->n_notices; i++) {
        loom_text_add(&text, "%s  - ", i ? "" : "  notices:\n");
        loom_text_add_json(&text, t->notices[i]);
        loom_text_add(&text, "\n");
    }
    return loom_text_take(&text, out);
}

loom_status loom_topology_save(const loom_topology *t, const char *path)
{
    char *text = NULL;
    loom_status status = loom_topology_write(t, &text);

    if (status == LOOM_OK)
        status = loom_file_replace(path, text, strlen(text));
    loom_text_free(text);
    return status;
}
