/* Reading a topology from whatever kind of file it is in. */
#include "topology/sources.h"

#include "core/file.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 64 << 20 };

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
    loom_require(reader, root, "cluster");
    const loom_node *cluster = loom_read_map(reader, root, "cluster");
    loom_status read = cluster ? loom_cluster_read(reader, cluster, builder) : LOOM_OK;
    status = loom_reader_finish(reader);
    loom_config_free(config);
    return read < 0 ? read : status;
}

loom_status loom_topology_parse(const char *source, const char *text, size_t bytes, loom_topology **topology)
{
    loom_builder *builder;
    loom_status status = loom_build_open(source, &builder);

    if (status < 0)
        return status;
    if ((status = read_yaml(source, text, bytes, builder)) < 0) {
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
