/* The tree that YAML and JSON are read into, and how it is built. */
#ifndef LOOM_CORE_NODE_H
#define LOOM_CORE_NODE_H

#include "core/arena.h"
#include "core/problems.h"

#include <rankloom/config.h>

typedef struct loom_entry {
    const char *key; /* NULL in a list */
    loom_node *value;
    int line, column; /* of the key */
} loom_entry;

struct loom_node {
    loom_node_kind kind;
    bool quoted;
    int line, column;
    const char *origin; /* the assignment of the command line that made it; NULL: the file */
    const char *text;   /* of a scalar */
    loom_entry *entries;
    uint32_t count, capacity;
    uint32_t *slots; /* of a large map that is complete: its keys by hash, entry index + 1; NULL: it is searched from the front */
    uint32_t slot_mask;
    uint32_t size; /* nodes that a walk over it visits, itself included; aliases count each time. Set by the YAML reader. */
    int height;    /* lists and maps on the longest way down, itself included: 0 for a scalar. What an alias stands for counts. */
};

struct loom_config {
    loom_arena arena; /* of all nodes and texts */
    char *source;
    loom_node *root;
};

/* What a document may be at most. */
typedef struct loom_limits {
    size_t bytes;
    int depth;
    uint32_t nodes;
} loom_limits;
extern const loom_limits loom_file_limits; /* 64 MiB, 64 levels, 100,000 nodes: files that people write */

/* An empty document named `source`. */
loom_status loom_config_new(const char *source, loom_config **config);

/* Read `text` into `config`'s arena and hand out the top. `origin` goes into every node. Problems that are no end of the reading (a key given
 * twice) are collected in `problems`; what stops it (a syntax error, a bound) is the last of them, and *root is then unset. LOOM_E_MEMORY is the
 * only other failure. */
loom_status loom_yaml_read(loom_config *config, const char *origin, const char *text, size_t bytes, const loom_limits *limits,
                           loom_problems *problems, loom_node **root);
loom_status loom_json_read(loom_config *config, const char *text, size_t bytes, const loom_limits *limits, loom_problems *problems,
                           loom_node **root);
/* JSON alone, under the caller's limits: a header inside a binary file. */
loom_status loom_json_parse(const char *source, const char *text, size_t bytes, const loom_limits *limits, loom_config **config);

loom_node *loom_node_new(loom_config *config, loom_node_kind kind, int line, int column); /* NULL: no memory */
/* Appends to a list (key NULL) or map; false: no memory. */
bool loom_node_append(loom_config *config, loom_node *parent, const char *key, int line, int column, loom_node *value);
/* A map is complete: looks for keys that came twice (a problem that names both lines) and makes it quick to search. false: no memory. */
bool loom_node_seal(loom_config *config, loom_node *map, loom_problems *problems);
/* Makes a changed map quick to search again. false: no memory. */
bool loom_node_index(loom_config *config, loom_node *map);
/* Position of `key` in a map, or -1. */
long loom_node_find(const loom_node *map, const char *key);
/* Whether a scalar is somebody's reference (${…}), which we do not resolve; notes the problem. */
bool loom_node_refuse_reference(const loom_node *scalar, loom_problems *problems);
/* "a list", "a map of keys", "the quoted text …", "4k": what a person gave instead of what was meant. */
void loom_node_show(const loom_node *node, loom_text *text);

#endif
