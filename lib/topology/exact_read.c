/* Reading a topology in its exact form. */
#include "topology/exact.h"

#include "topology/catalogue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KINDS = 4096 };

typedef struct exact_reader {
    loom_reader *reader;
    loom_builder *builder;
    int *chip_index; /* of each chip of the file: equal ones become one */
    int n_chips;
} exact_reader;

/* --- figures ------------------------------------------------------------------------------------------------------------------- */

static const char *const origin_names[] = {"unknown", "assumed", "read", "given", "measured", NULL};

static bool origin_of(const char *text, loom_origin *origin)
{
    for (int i = 0; text && i < LOOM_ORIGINS; i++)
        if (strcmp(text, origin_names[i]) == 0) {
            *origin = (loom_origin)i;
            return true;
        }
    return false;
}

/* `unknown`, a bare number (given), or [number, origin]. An absent key leaves *figure. */
static void read_figure(exact_reader *r, const loom_node *map, const char *key, loom_figure *figure)
{
    const loom_node *node = loom_node_get(map, key);
    const char *word = loom_node_text(node);
    loom_origin origin;
    double value;

    if (loom_node_get_kind(node) == LOOM_NODE_LIST) {
        loom_read_list(r->reader, map, key);
        if (loom_node_count(node) == 2 && loom_node_as_f64(loom_node_at(node, 0), &value) && value >= 0 && value <= 1e30 &&
            origin_of(loom_node_text(loom_node_at(node, 1)), &origin) && origin != LOOM_ORIGIN_UNKNOWN)
            *figure = (loom_figure){value, origin};
        else
            loom_reader_problem(r->reader, node,
                                "%s: expected unknown, a number, or [number, origin] with assumed, read, given or measured", key);
    } else if (word && strcmp(word, "unknown") == 0) {
        loom_read_text(r->reader, map, key, &word);
        *figure = loom_unknown();
    } else if (loom_read_f64(r->reader, map, key, 0, 1e30, &value)) {
        *figure = loom_given(value);
    }
}

static void read_figures(exact_reader *r, const loom_node *map, void *of, const loom_figure_field *fields, int count)
{
    for (int i = 0; i < count; i++)
        read_figure(r, map, fields[i].name, loom_figure_at(of, &fields[i]));
}

static void read_string(exact_reader *r, const loom_node *map, const char *key, char *to, size_t bytes)
{
    const char *text = "";

    if (loom_read_text(r->reader, map, key, &text) && (size_t)snprintf(to, bytes, "%s", text) >= bytes)
        loom_reader_problem(r->reader, loom_node_get(map, key), "%s: longer than %zu bytes", key, bytes - 1);
}

/* --- chips ----------------------------------------------------------------------------------------------------------------------- */

static loom_status read_chip(exact_reader *r, const loom_node *map, int *index)
{
    loom_chip chip;
    int kind = LOOM_CHIP_GPU;

    loom_chip_blank("", LOOM_CHIP_GPU, &chip);
    loom_require(r->reader, map, "name");
    read_string(r, map, "name", chip.name, sizeof chip.name);
    read_string(r, map, "label", chip.label, sizeof chip.label);
    read_string(r, map, "link", chip.link, sizeof chip.link);
    read_string(r, map, "origin", chip.origin, sizeof chip.origin);
    loom_read_choice(r->reader, map, "kind", loom_chip_class_names, &kind);
    chip.kind = (loom_chip_class)kind;
    loom_read_int(r->reader, map, "link_domain", 1, LOOM_MAX_DEVICES, &chip.link_domain);
    read_figures(r, map, &chip, loom_chip_figures, LOOM_CHIP_FIGURES);
    const loom_node *peak = loom_read_map(r->reader, map, "peak"), *gemm = loom_read_map(r->reader, map, "gemm");
    for (int math = 0; math < LOOM_MATHS; math++) {
        read_figure(r, peak, loom_math_name((loom_math)math), &chip.peak[math]);
        read_figures(r, loom_read_map(r->reader, gemm, loom_math_name((loom_math)math)), &chip.gemm[math], loom_gemm_figures,
                     LOOM_GEMM_FIGURES);
    }
    return loom_build_chip(r->builder, &chip, index);
}

static loom_status read_chips(exact_reader *r, const loom_node *topology)
{
    loom_require(r->reader, topology, "chips");
    const loom_node *chips = loom_read_list(r->reader, topology, "chips");
    size_t count = loom_node_count(chips);

    if (count > LOOM_MAX_CHIPS) {
        loom_reader_problem(r->reader, chips, "%zu kinds of device, at most %d", count, LOOM_MAX_CHIPS);
        count = 0;
    }
    r->chip_index = calloc(count + 1, sizeof *r->chip_index);
    if (!r->chip_index)
        return loom_fail(LOOM_E_MEMORY, "no memory for %zu chips", count);
    for (size_t i = 0; i < count; i++) {
        loom_status status = read_chip(r, loom_map_in_list(r->reader, chips, i), &r->chip_index[r->n_chips++]);
        if (status < 0)
            return status;
    }
    return LOOM_OK;
}

/* --- kinds of node ------------------------------------------------------------------------------------------------------------------ */

/* A list of one integer a device; false when absent or wrong. */
static bool read_fact(exact_reader *r, const loom_node *kind, const char *key, int64_t low, int64_t high, int devices, int *facts)
{
    int64_t values[LOOM_MAX_NODE_DEVICES];
    size_t count = 0;

    if (!loom_read_i64_list(r->reader, kind, key, low, high, LOOM_MAX_NODE_DEVICES, values, &count))
        return false;
    if ((int)count != devices) {
        loom_reader_problem(r->reader, loom_node_get(kind, key), "%s has %zu entries for %d devices", key, count, devices);
        return false;
    }
    for (int i = 0; i < devices; i++)
        facts[i] = (int)values[i];
    return true;
}

static void read_numas(exact_reader *r, const loom_node *kind, loom_host_shape *shape)
{
    const loom_node *list = loom_read_list(r->reader, kind, "numas");

    for (size_t i = 0; i < loom_node_count(list); i++) {
        if (i == LOOM_MAX_NODE_DEVICES) {
            loom_reader_problem(r->reader, list, "more than %d NUMA nodes in a host", LOOM_MAX_NODE_DEVICES);
            return;
        }
        loom_numa *numa = &shape->numa[shape->numas++];
        const loom_node *map = loom_map_in_list(r->reader, list, i);
        loom_require(r->reader, map, "os_index");
        loom_read_int(r->reader, map, "os_index", 0, 65535, &numa->os_index);
        loom_read_int(r->reader, map, "cores", 0, 1 << 20, &numa->cores);
        loom_read_int(r->reader, map, "threads", 0, 1 << 20, &numa->threads);
        read_figure(r, map, "memory_bytes", &numa->memory_bytes);
    }
}

static void read_nics(exact_reader *r, const loom_node *kind, loom_host_shape *shape)
{
    const loom_node *list = loom_read_list(r->reader, kind, "nics");

    for (size_t i = 0; i < loom_node_count(list); i++) {
        if (i == LOOM_MAX_NODE_DEVICES) {
            loom_reader_problem(r->reader, list, "more than %d network cards in a host", LOOM_MAX_NODE_DEVICES);
            return;
        }
        int nic = shape->nics++;
        const loom_node *map = loom_map_in_list(r->reader, list, i);
        loom_read_int(r->reader, map, "numa", -1, shape->numas - 1, &shape->nic_numa[nic]);
        read_figure(r, map, "bandwidth", &shape->nic_bandwidth[nic]);
    }
}

/* Row `i` of the wires: as many words as devices. */
static void read_wire_row(exact_reader *r, const loom_node *node, int devices, loom_wire *row)
{
    const char *text = loom_node_text(node);
    char word[16];
    int count = 0;

    for (int used = 0; text && sscanf(text, "%15s%n", word, &used) == 1; text += used) {
        if (count == devices || !loom_wire_read(word, &row[count])) {
            loom_reader_problem(r->reader, node, "wires: \"%s\" is %s", word,
                                count == devices ? "one word too many" : "none of X, NV#, PIX, PXB, PHB, NODE, SYS, N/A");
            return;
        }
        count++;
    }
    if (count != devices)
        loom_reader_problem(r->reader, node, "wires: a row has %d words for %d devices", count, devices);
}

static loom_status read_wires(exact_reader *r, const loom_node *kind, int devices, loom_wire **wires)
{
    const loom_node *list = loom_read_list(r->reader, kind, "wires");

    if (!list)
        return LOOM_OK;
    *wires = calloc((size_t)devices * (size_t)devices + 1, sizeof **wires);
    if (!*wires)
        return loom_fail(LOOM_E_MEMORY, "no memory for the wires of %d devices", devices);
    if ((int)loom_node_count(list) != devices)
        loom_reader_problem(r->reader, list, "wires has %zu rows for %d devices", loom_node_count(list), devices);
    for (int i = 0; i < devices && i < (int)loom_node_count(list); i++)
        read_wire_row(r, loom_node_at(list, (size_t)i), devices, *wires + i * devices);
    return LOOM_OK;
}

/* A group has to be in the order of first appearance, so that a domain's ranks follow one another. */
static void read_kind(exact_reader *r, const loom_node *kind, loom_host_shape *shape)
{
    int file_chip[LOOM_MAX_NODE_DEVICES];

    loom_read_int(r->reader, kind, "cores", 0, 1 << 20, &shape->cores);
    loom_read_int(r->reader, kind, "threads", 0, 1 << 20, &shape->threads);
    read_figure(r, kind, "memory_bytes", &shape->memory_bytes);
    read_numas(r, kind, shape);
    read_nics(r, kind, shape);
    loom_require(r->reader, kind, "chip");
    shape->devices = (int)loom_node_count(loom_node_get(kind, "chip"));
    if (shape->devices > LOOM_MAX_NODE_DEVICES) {
        loom_reader_problem(r->reader, kind, "%d devices in a host, at most %d", shape->devices, LOOM_MAX_NODE_DEVICES);
        shape->devices = 0;
        return;
    }
    if (read_fact(r, kind, "chip", 0, r->n_chips - 1, shape->devices, file_chip))
        for (int i = 0; i < shape->devices; i++)
            shape->chip[i] = r->chip_index[file_chip[i]];
    read_fact(r, kind, "group", 0, LOOM_MAX_NODE_DEVICES - 1, shape->devices, shape->group);
    read_fact(r, kind, "numa", -1, shape->numas - 1, shape->devices, shape->device_numa);
    read_fact(r, kind, "nic", -1, shape->nics - 1, shape->devices, shape->device_nic);
}

/* --- nodes ----------------------------------------------------------------------------------------------------------- */

typedef struct node_kind {
    loom_host_shape *shape;
    loom_wire *wires;
} node_kind;

static loom_status read_kinds(exact_reader *r, const loom_node *list, node_kind *kinds)
{
    for (size_t i = 0; i < loom_node_count(list); i++) {
        node_kind *kind = &kinds[i];
        loom_status status;

        if (!(kind->shape = loom_host_shape_new()))
            return loom_fail(LOOM_E_MEMORY, "no memory for a node");
        const loom_node *map = loom_map_in_list(r->reader, list, i);
        read_kind(r, map, kind->shape);
        if ((status = read_wires(r, map, kind->shape->devices, &kind->wires)) < 0)
            return status;
        kind->shape->wires = kind->wires;
    }
    return LOOM_OK;
}

static loom_status read_run(exact_reader *r, const loom_node *run, node_kind *kinds, int n_kinds, int *last_rack)
{
    int kind = 0, count = 1, rack = *last_rack > 0 ? *last_rack : 0;
    bool joins = false;
    loom_status status = LOOM_OK;

    loom_require(r->reader, run, "kind");
    loom_read_int(r->reader, run, "kind", 0, n_kinds - 1, &kind);
    loom_read_int(r->reader, run, "count", 1, LOOM_MAX_NODES, &count);
    if (loom_read_int(r->reader, run, "rack", 0, LOOM_MAX_NODES, &rack) && rack != *last_rack && rack != *last_rack + 1)
        loom_reader_problem(r->reader, run, "rack %d follows rack %d: racks are numbered in order, nodes of one stand together", rack,
                            *last_rack);
    loom_read_bool(r->reader, run, "joins", &joins);
    *last_rack = rack;
    if (n_kinds == 0)
        return LOOM_OK;
    loom_host_shape *shape = kinds[kind].shape;
    shape->name[0] = '\0';
    read_string(r, run, "name", shape->name, sizeof shape->name);
    for (int i = 0; i < count && status == LOOM_OK && loom_reader_problems(r->reader) == 0; i++)
        status = loom_build_host(r->builder, shape, rack, joins);
    return status;
}

static loom_status read_nodes(exact_reader *r, const loom_node *topology)
{
    loom_require(r->reader, topology, "kinds");
    loom_require(r->reader, topology, "nodes");
    const loom_node *list = loom_read_list(r->reader, topology, "kinds"), *runs = loom_read_list(r->reader, topology, "nodes");
    int last_rack = -1;
    if (loom_node_count(list) > MOST_KINDS) {
        loom_reader_problem(r->reader, list, "%zu kinds of node, at most %d", loom_node_count(list), MOST_KINDS);
        list = NULL;
    }
    int n_kinds = (int)loom_node_count(list);
    node_kind *kinds = calloc((size_t)n_kinds + 1, sizeof *kinds);
    loom_status status = kinds ? read_kinds(r, list, kinds) : loom_fail(LOOM_E_MEMORY, "no memory for %d kinds of node", n_kinds);

    for (size_t i = 0; i < loom_node_count(runs) && status == LOOM_OK; i++)
        status = read_run(r, loom_map_in_list(r->reader, runs, i), kinds, n_kinds, &last_rack);
    for (int i = 0; kinds && i < n_kinds; i++) {
        free(kinds[i].shape);
        free(kinds[i].wires);
    }
    free(kinds);
    return status;
}

/* --- what was measured
 * -------------------------------------------------------------------------------------------------------------------- */

static const char *const pattern_names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send", NULL};
static const char *const math_names[] = {"f32", "tf32", "bf16", "fp8", "fp4", NULL};
static const char *const level_names[] = {"self", "domain", "node", "rack", "cluster", NULL};

static bool word_of(const loom_node *node, const char *const *names, int *index)
{
    const char *text = loom_node_text(node);

    for (*index = 0; text && names[*index]; ++*index)
        if (strcmp(text, names[*index]) == 0)
            return true;
    return false;
}

static bool count_of(const loom_node *node, int64_t *count)
{
    return loom_node_as_i64(node, count) && *count >= 1 && *count < INT32_MAX;
}

static bool seconds_of(const loom_node *node, double *seconds)
{
    return loom_node_as_f64(node, seconds) && *seconds > 0 && *seconds < 1e9;
}

static bool gemm_of(const exact_reader *r, const loom_node *row, loom_gemm_point *point)
{
    int64_t chip;
    int math;

    if (loom_node_count(row) != 6 || !loom_node_as_i64(loom_node_at(row, 0), &chip) || chip < 0 || chip >= r->n_chips ||
        !word_of(loom_node_at(row, 1), math_names, &math) || !count_of(loom_node_at(row, 2), &point->m) ||
        !count_of(loom_node_at(row, 3), &point->n) || !count_of(loom_node_at(row, 4), &point->k) ||
        !seconds_of(loom_node_at(row, 5), &point->seconds))
        return false;
    point->chip = r->chip_index[chip];
    point->math = (loom_math)math;
    return true;
}

static bool point_of(const loom_node *row, loom_pattern_point *point)
{
    int64_t ranks, in_domain;
    int pattern, level;

    if (loom_node_count(row) != 6 || !word_of(loom_node_at(row, 0), pattern_names, &pattern) ||
        !word_of(loom_node_at(row, 1), level_names, &level) || !count_of(loom_node_at(row, 2), &ranks) ||
        !count_of(loom_node_at(row, 3), &in_domain) || !loom_node_as_f64(loom_node_at(row, 4), &point->bytes) ||
        !(point->bytes >= 0 && point->bytes < 1e18) || !seconds_of(loom_node_at(row, 5), &point->seconds))
        return false;
    point->pattern = (loom_pattern)pattern;
    point->level = (loom_level)level;
    point->ranks = (int)ranks;
    point->in_domain = (int)in_domain;
    return true;
}

static loom_status read_gemms(exact_reader *r, const loom_node *topology)
{
    loom_topology *t = loom_build_topology(r->builder);
    const loom_node *list = loom_read_list(r->reader, topology, "gemms");

    if (!list)
        return LOOM_OK;
    if (!(t->gemms = calloc(loom_node_count(list) + 1, sizeof *t->gemms)))
        return loom_fail(LOOM_E_MEMORY, "no memory for %zu measured shapes", loom_node_count(list));
    for (size_t i = 0; i < loom_node_count(list); i++) {
        if (gemm_of(r, loom_node_at(list, i), &t->gemms[t->n_gemms]))
            t->n_gemms++;
        else
            loom_reader_problem(r->reader, loom_node_at(list, i), "gemms: expected [chip, type, m, n, k, seconds]");
    }
    return LOOM_OK;
}

static loom_status read_points(exact_reader *r, const loom_node *topology)
{
    loom_topology *t = loom_build_topology(r->builder);
    const loom_node *list = loom_read_list(r->reader, topology, "points");

    if (!list)
        return LOOM_OK;
    if (!(t->points = calloc(loom_node_count(list) + 1, sizeof *t->points)))
        return loom_fail(LOOM_E_MEMORY, "no memory for %zu measured collectives", loom_node_count(list));
    for (size_t i = 0; i < loom_node_count(list); i++) {
        if (point_of(loom_node_at(list, i), &t->points[t->n_points]))
            t->n_points++;
        else
            loom_reader_problem(r->reader, loom_node_at(list, i),
                                "points: expected [collective, level, ranks, in one domain, bytes, seconds]");
    }
    return LOOM_OK;
}

static loom_status read_laws(exact_reader *r, const loom_node *topology)
{
    loom_topology *t = loom_build_topology(r->builder);
    const loom_node *list = loom_read_list(r->reader, topology, "laws");

    if (!list)
        return LOOM_OK;
    if (!(t->laws = calloc(loom_node_count(list) + 1, sizeof *t->laws)))
        return loom_fail(LOOM_E_MEMORY, "no memory for %zu laws", loom_node_count(list));
    for (size_t i = 0; i < loom_node_count(list); i++) {
        loom_pattern_law *law = &t->laws[t->n_laws++];
        const loom_node *map = loom_map_in_list(r->reader, list, i);
        int pattern = 0, level = LOOM_LEVEL_DOMAIN;

        *law = (loom_pattern_law){
            .ranks = 2, .in_domain = 1, .fixed_s = loom_unknown(), .step_s = loom_unknown(), .bandwidth = loom_unknown()};
        loom_require(r->reader, map, "pattern");
        loom_read_choice(r->reader, map, "pattern", pattern_names, &pattern);
        loom_read_choice(r->reader, map, "level", level_names, &level);
        law->pattern = (loom_pattern)pattern;
        law->level = (loom_level)level;
        loom_read_int(r->reader, map, "ranks", 1, LOOM_MAX_DEVICES, &law->ranks);
        loom_read_int(r->reader, map, "in_domain", 1, LOOM_MAX_DEVICES, &law->in_domain);
        read_figure(r, map, "fixed_s", &law->fixed_s);
        read_figure(r, map, "step_s", &law->step_s);
        read_figure(r, map, "bandwidth", &law->bandwidth);
    }
    return LOOM_OK;
}

/* --- the whole
 * -------------------------------------------------------------------------------------------------------------------------------- */

static loom_status read_notices(exact_reader *r, const loom_node *topology)
{
    const loom_node *list = loom_read_list(r->reader, topology, "notices");
    loom_status status = LOOM_OK;

    for (size_t i = 0; i < loom_node_count(list) && status == LOOM_OK; i++) {
        const char *text = loom_node_text(loom_node_at(list, i));
        if (text)
            status = loom_build_notice(r->builder, "%s", text);
        else
            loom_reader_problem(r->reader, loom_node_at(list, i), "notices: expected texts");
    }
    return status;
}

static void read_head(exact_reader *r, const loom_node *topology)
{
    loom_topology *t = loom_build_topology(r->builder);
    const loom_node *levels = loom_read_map(r->reader, topology, "levels");

    read_string(r, topology, "name", t->name, sizeof t->name);
    read_string(r, topology, "measured", t->measured, sizeof t->measured);
    loom_read_bool(r->reader, topology, "rails", &t->rails);
    loom_read_bool(r->reader, topology, "peer_access", &t->peer_access);
    for (int level = LOOM_LEVEL_DOMAIN; level < LOOM_LEVELS; level++) {
        const loom_node *map = loom_read_map(r->reader, levels, level_names[level]);
        read_figures(r, map, &t->levels[level], loom_level_figure_names, LOOM_LEVEL_FIGURES);
        if (loom_known(t->levels[level].oversubscription) && t->levels[level].oversubscription.value < 1)
            loom_reader_problem(r->reader, map, "oversubscription is at least 1");
    }
}

loom_status loom_exact_read(loom_reader *reader, const loom_node *topology, loom_builder *builder)
{
    exact_reader r = {.reader = reader, .builder = builder};
    loom_status status;

    read_head(&r, topology);
    status = read_chips(&r, topology);
    if (status == LOOM_OK)
        status = read_nodes(&r, topology);
    if (status == LOOM_OK)
        status = read_gemms(&r, topology);
    if (status == LOOM_OK)
        status = read_points(&r, topology);
    if (status == LOOM_OK)
        status = read_laws(&r, topology);
    if (status == LOOM_OK)
        status = read_notices(&r, topology);
    free(r.chip_index);
    return status;
}
