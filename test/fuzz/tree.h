/* Parsing any bytes and asking everything of the tree that comes out. */
#ifndef TEST_FUZZ_TREE_H
#define TEST_FUZZ_TREE_H

#include "fuzz.h"

#include <rankloom/config.h>

#include <string.h>

/* Visits every node and returns how many: the bounds of the parser must hold for a walk. */
static inline size_t walk(const loom_node *node, int depth)
{
    size_t visited = 1;
    int64_t whole;
    double real;

    PROMISE(depth <= 65 && loom_node_line(node) >= 1 && loom_node_column(node) >= 1);
    loom_node_as_i64(node, &whole);
    loom_node_as_f64(node, &real);
    if (loom_node_get_kind(node) == LOOM_NODE_SCALAR)
        PROMISE(loom_node_text(node) != NULL);
    for (size_t i = 0; i < loom_node_count(node); i++) {
        const char *key = loom_node_key_at(node, i);
        PROMISE((key != NULL) == (loom_node_get_kind(node) == LOOM_NODE_MAP));
        PROMISE(!key || loom_node_get(node, key) == loom_node_at(node, i)); /* no key twice */
        visited += walk(loom_node_at(node, i), depth + 1);
    }
    return visited;
}

static inline void parse_and_walk(const char *source, const uint8_t *data, size_t size)
{
    loom_config *config;
    loom_reader *reader;

    loom_clear_error();
    if (loom_config_parse(source, (const char *)data, size, &config) != LOOM_OK) {
        PROMISE(*loom_last_error()); /* whoever refuses says why */
        return;
    }
    PROMISE(walk(loom_config_root(config), 0) <= 200000);
    if (loom_reader_open(config, &reader) == LOOM_OK) {
        int64_t value;
        loom_read_i64(reader, loom_read_map(reader, loom_config_root(config), "a"), "b", 0, 9, &value);
        loom_reader_finish(reader);
    }
    loom_config_free(config);
}

#endif
