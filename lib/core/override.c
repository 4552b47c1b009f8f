/* "a.b.c=value" from a command line, into the tree of a file. */
#include "core/node.h"

#include <string.h>

/* Reads the text behind '=' as YAML; it will lie `levels` maps deep, and the bound on nesting holds for the whole. */
static loom_status read_value(loom_config *config, const char *assignment, const char *value, int levels, loom_node **node)
{
    loom_problems problems = {.count = 0};
    loom_status status = loom_yaml_read(config, assignment, value, strlen(value), &loom_file_limits, &problems, node);

    if (status == LOOM_E_MEMORY) {
        loom_problems_free(&problems);
        return status;
    }
    if ((status = loom_problems_finish(&problems, loom_config_source(config))) < 0)
        return status;
    if (levels + (*node)->height > loom_file_limits.depth)
        return loom_fail(LOOM_E_INVALID, "%s: lists and maps inside one another more than %d deep", assignment, loom_file_limits.depth);
    return LOOM_OK;
}

/* A copy of `map` that may be changed without changing what shares it through an alias. */
static loom_node *own_copy(loom_config *config, const loom_node *map)
{
    loom_node *copy = loom_arena_alloc(&config->arena, sizeof *copy);

    if (!copy)
        return NULL;
    *copy = *map;
    copy->entries = loom_arena_array(&config->arena, copy->count + 1u, sizeof *copy->entries);
    if (!copy->entries)
        return NULL;
    if (copy->count)
        memcpy(copy->entries, map->entries, copy->count * sizeof *copy->entries);
    copy->capacity = copy->count + 1;
    return copy;
}

static loom_node *new_map(loom_config *config, const char *assignment)
{
    loom_node *map = loom_node_new(config, LOOM_NODE_MAP, 1, 1);

    if (map)
        map->origin = assignment;
    return map;
}

/* Puts `value` under `key` of `map`, in place of what is there. */
static bool put(loom_config *config, loom_node *map, const char *key, loom_node *value)
{
    long index = loom_node_find(map, key);

    if (index >= 0) {
        map->entries[index].value = value;
        return true;
    }
    return loom_node_append(config, map, key, 1, 1, value) && loom_node_index(config, map);
}

static loom_status no_memory(const char *assignment)
{
    return loom_fail(LOOM_E_MEMORY, "%s: no memory", assignment);
}

static loom_status not_a_map(const char *assignment, const char *path, size_t length, const loom_node *found)
{
    loom_text shown = {0};

    loom_node_show(found, &shown);
    loom_status status = loom_fail(LOOM_E_INVALID, "%s: %.*s is %s, so nothing can be set inside it", assignment, (int)length, path, loom_text_so_far(&shown));
    loom_text_drop(&shown);
    return status;
}

/* The map that `*slot` leads to, made our own, or a new one where nothing is yet. `path` (its first `length` bytes) is for the message. */
static loom_status descend(loom_config *config, const char *assignment, const char *path, size_t length, const loom_node *found, loom_node **map)
{
    if (found && found->kind != LOOM_NODE_MAP && found->kind != LOOM_NODE_NULL)
        return not_a_map(assignment, path, length, found);
    *map = found && found->kind == LOOM_NODE_MAP ? own_copy(config, found) : new_map(config, assignment);
    return *map ? LOOM_OK : no_memory(assignment);
}

/* Bytes of the path before '=', which is keys with a dot between them, and how many keys; 0 if it is not that. */
static size_t path_length(const char *assignment, int *keys)
{
    const char *at = assignment;

    for (*keys = 1;; at++, ++*keys) {
        size_t key = strcspn(at, ".=");
        at += key;
        if (key == 0 || !*at)
            return 0;
        if (*at == '=')
            return (size_t)(at - assignment);
    }
}

loom_status loom_config_override(loom_config *config, const char *assignment)
{
    int keys;
    size_t length = path_length(assignment, &keys);
    loom_node *value, *map, *top;
    loom_status status;

    if (!length)
        return loom_fail(LOOM_E_INVALID, "%s: an assignment looks like train.lr=3e-3", assignment);
    char *path = loom_arena_copy(&config->arena, assignment, length);
    assignment = loom_arena_copy(&config->arena, assignment, strlen(assignment));
    if (!path || !assignment)
        return loom_fail(LOOM_E_MEMORY, "no memory for an assignment");
    if ((status = read_value(config, assignment, assignment + length + 1, keys, &value)) < 0)
        return status;
    if ((status = descend(config, assignment, "the file", 8, config->root, &top)) < 0)
        return status;

    char *key = path;
    map = top;
    for (char *dot; (dot = strchr(key, '.')); key = dot + 1) {
        loom_node *inner;
        *dot = '\0';
        status = descend(config, assignment, assignment, (size_t)(dot - path), loom_node_get(map, key), &inner);
        if (status < 0)
            return status;
        if (!put(config, map, key, inner))
            return no_memory(assignment);
        map = inner;
    }
    if (!put(config, map, key, value))
        return no_memory(assignment);
    config->root = top;
    return LOOM_OK;
}
