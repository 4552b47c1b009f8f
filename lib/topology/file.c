/* Reading a topology from whatever kind of file it is in. */
#include "topology/exact.h"

#include "core/file.h"
#include "core/try.h"
#include "topology/catalogue.h"

#include <rankloom/host.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 64 << 20 };

const loom_node *loom_map_in_list(loom_reader *reader, const loom_node *list, size_t index)
{
    const loom_node *item = loom_node_at(list, index);

    if (loom_node_get_kind(item) == LOOM_NODE_MAP)
        return item;
    loom_reader_problem(reader, item, "expected keys and values");
    return NULL;
}

static loom_status read_yaml(const char *source, const char *text, size_t bytes, loom_builder *builder)
{
    loom_config *config;
    loom_reader *reader;
    loom_status status = loom_config_parse(source, text, bytes, &config);

    if (status < 0)
        return status;
    if ((status = loom_reader_open(config, &reader)) < 0) {
        loom_config_free(config);
        return status;
    }
    const loom_node *root = loom_config_root(config);
    const loom_node *exact = loom_read_map(reader, root, "topology"), *cluster = loom_read_map(reader, root, "cluster");
    loom_status read = LOOM_OK;
    if (exact && cluster)
        loom_reader_problem(reader, cluster, "topology: and cluster: say the same in two forms; keep one");
    else if (exact)
        read = loom_exact_read(reader, exact, builder);
    else if (cluster)
        read = loom_cluster_read(reader, cluster, builder);
    else if (root && !loom_node_get(root, "cluster") && !loom_node_get(root, "topology"))
        loom_reader_problem(reader, root, "neither cluster: nor topology: is in it");
    status = loom_reader_finish(reader);
    loom_config_free(config);
    if (status == LOOM_OK && !cluster && !exact)
        status = loom_fail(LOOM_E_INVALID, "%s: neither cluster: nor topology: is in it", source);
    return read < 0 ? read : status;
}

/* One host whose cards the matrix does not name. */
static loom_status read_matrix(const char *source, const char *text, size_t bytes, loom_builder *builder)
{
    loom_host_shape *shape = loom_host_shape_new();
    loom_wire *wires = NULL;
    loom_chip chip;
    int index;
    loom_status status;

    if (!shape)
        return loom_fail(LOOM_E_MEMORY, "%s: no memory for a host", source);
    LOOM_TRY(loom_matrix_read(source, text, bytes, shape, &wires));
    loom_collect_numas(shape);
    loom_chip_blank(LOOM_NAMELESS_CHIP, LOOM_CHIP_GPU, &chip);
    LOOM_TRY(loom_build_chip(builder, &chip, &index));
    LOOM_TRY(loom_build_host(builder, shape, 0, false));
    status = loom_build_notice(builder, "a link matrix does not name the cards: their rates are unknown");

fail:
    free(wires);
    free(shape);
    return status;
}

/* Whether an XML text has this tag among its first ones. */
static bool find_tag(const char *text, size_t bytes, const char *tag)
{
    while (bytes && isspace((unsigned char)*text)) {
        text++;
        bytes--;
    }
    return bytes && *text == '<' && memmem(text, bytes < 4096 ? bytes : 4096, tag, strlen(tag));
}

/* hwloc's XML: the host with a rank for each NUMA node. */
static loom_status read_hwloc(const char *source, const char *text, size_t bytes, loom_topology **topology)
{
    loom_host *host = NULL;
    loom_status status = loom_host_parse_xml(source, text, bytes, &host);

    if (status == LOOM_OK)
        status = loom_topology_of_host(host, NULL, NULL, 0, topology);
    loom_host_free(host);
    return status;
}

loom_status loom_topology_parse(const char *source, const char *text, size_t bytes, loom_topology **topology)
{
    loom_builder *builder;

    if (find_tag(text, bytes, "<topology"))
        return read_hwloc(source, text, bytes, topology);
    loom_status status = loom_build_open(source, &builder);
    if (status < 0)
        return status;
    status = loom_looks_like_matrix(text, bytes) ? read_matrix(source, text, bytes, builder)
             : find_tag(text, bytes, "<system")  ? loom_nccl_read(source, text, bytes, builder)
                                                 : read_yaml(source, text, bytes, builder);
    if (status < 0) {
        loom_build_close(builder);
        return status;
    }
    return loom_build_finish(builder, topology);
}

loom_status loom_topology_load(const char *path, loom_topology **topology)
{
    char *text;
    size_t bytes;
    loom_status status = loom_file_read(path, MAX_FILE_BYTES, &text, &bytes);

    if (status < 0)
        return status;
    status = loom_topology_parse(path, text, bytes, topology);
    free(text);
    return status;
}
