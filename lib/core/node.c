/* Nodes: building, searching, and the questions that callers ask of them. */
#include "core/node.h"
#include "core/file.h"
#include "core/number.h"
#include "core/random.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

const loom_limits loom_file_limits = {.bytes = 64u << 20, .depth = 64, .nodes = 100000};

enum { SEARCH_FROM_FRONT = 8 }; /* a map of up to so many keys is searched one by one */

loom_status loom_config_new(const char *source, loom_config **config)
{
    loom_config *c = calloc(1, sizeof *c);

    if (c)
        c->source = strdup(source);
    if (!c || !c->source) {
        free(c);
        return loom_fail(LOOM_E_MEMORY, "%s: no memory to read it", source);
    }
    *config = c;
    return LOOM_OK;
}

void loom_config_free(loom_config *config)
{
    if (!config)
        return;
    loom_arena_free(&config->arena);
    free(config->source);
    free(config);
}

const loom_node *loom_config_root(const loom_config *config)
{
    return config->root;
}

const char *loom_config_source(const loom_config *config)
{
    return config->source;
}

/* --- building --------------------------------------------------------------------------------------------------------- */

loom_node *loom_node_new(loom_config *config, loom_node_kind kind, int line, int column)
{
    loom_node *node = loom_arena_alloc(&config->arena, sizeof *node);

    if (node) {
        node->kind = kind;
        node->line = line;
        node->column = column;
        node->size = 1;
        node->height = kind == LOOM_NODE_LIST || kind == LOOM_NODE_MAP;
    }
    return node;
}

bool loom_node_append(loom_config *config, loom_node *parent, const char *key, int line, int column, loom_node *value)
{
    if (parent->count == parent->capacity) {
        uint32_t capacity = parent->capacity ? parent->capacity * 2 : 4;
        loom_entry *entries = loom_arena_array(&config->arena, capacity, sizeof *entries);
        if (!entries)
            return false;
        if (parent->count)
            memcpy(entries, parent->entries, parent->count * sizeof *entries);
        parent->entries = entries;
        parent->capacity = capacity;
    }
    parent->entries[parent->count++] = (loom_entry){key, value, line, column};
    if (parent->height <= value->height)
        parent->height = value->height + 1;
    return true;
}

static void note_duplicate(const loom_node *map, uint32_t first, uint32_t second, loom_problems *problems)
{
    const loom_entry *entry = &map->entries[second];
    loom_text text = {0};

    loom_text_add(&text, "key ");
    loom_text_add_shown(&text, entry->key);
    loom_text_add(&text, " is given twice, on lines %d and %d; keep one", map->entries[first].line, entry->line);
    loom_problems_add(problems, map->origin, entry->line, entry->column, &text);
}

static uint32_t slot_of(const loom_node *map, const char *key)
{
    uint32_t slot = (uint32_t)loom_fnv1a64(key, strlen(key)) & map->slot_mask;

    while (map->slots[slot] && strcmp(map->entries[map->slots[slot] - 1].key, key))
        slot = (slot + 1) & map->slot_mask;
    return slot;
}

/* Keys by hash; a key that comes again is reported to `problems` (unless NULL), and the first one stays. */
static bool index_large(loom_config *config, loom_node *map, loom_problems *problems)
{
    uint32_t n_slots = 16;

    while (n_slots < map->count * 2)
        n_slots *= 2;
    map->slots = loom_arena_array(&config->arena, n_slots, sizeof *map->slots);
    if (!map->slots)
        return false;
    map->slot_mask = n_slots - 1;
    for (uint32_t i = 0; i < map->count; i++) {
        uint32_t slot = slot_of(map, map->entries[i].key);
        if (!map->slots[slot])
            map->slots[slot] = i + 1;
        else if (problems)
            note_duplicate(map, map->slots[slot] - 1, i, problems);
    }
    return true;
}

bool loom_node_index(loom_config *config, loom_node *map)
{
    map->slots = NULL;
    return map->count <= SEARCH_FROM_FRONT || index_large(config, map, NULL);
}

bool loom_node_seal(loom_config *config, loom_node *map, loom_problems *problems)
{
    if (map->count > SEARCH_FROM_FRONT)
        return index_large(config, map, problems);
    for (uint32_t i = 1; i < map->count; i++) {
        long first = loom_node_find(map, map->entries[i].key);
        if (first < (long)i)
            note_duplicate(map, (uint32_t)first, i, problems);
    }
    return true;
}

long loom_node_find(const loom_node *map, const char *key)
{
    if (map->slots)
        return (long)map->slots[slot_of(map, key)] - 1;
    for (uint32_t i = 0; i < map->count; i++)
        if (!strcmp(map->entries[i].key, key))
            return (long)i;
    return -1;
}

bool loom_node_refuse_reference(const loom_node *scalar, loom_problems *problems)
{
    loom_text text = {0};

    if (!strstr(scalar->text, "${"))
        return false;
    loom_text_add_shown(&text, scalar->text);
    loom_text_add(&text, ": references (${…}) of other tools are not resolved here; write the value itself");
    loom_problems_add(problems, scalar->origin, scalar->line, scalar->column, &text);
    return true;
}

void loom_node_show(const loom_node *node, loom_text *text)
{
    switch (node->kind) {
    case LOOM_NODE_NULL:
        loom_text_add(text, "empty");
        return;
    case LOOM_NODE_LIST:
        loom_text_add(text, "a list");
        return;
    case LOOM_NODE_MAP:
        loom_text_add(text, "a map of keys");
        return;
    case LOOM_NODE_SCALAR:
        loom_text_add(text, "%s", node->quoted ? "the quoted text \"" : "");
        loom_text_add_shown(text, node->text);
        loom_text_add(text, "%s", node->quoted ? "\"" : "");
    }
}

/* --- reading a whole text --------------------------------------------------------------------------------------------- */

static bool ends_in(const char *text, const char *ending)
{
    size_t n = strlen(text), m = strlen(ending);

    return n >= m && !strcasecmp(text + n - m, ending);
}

static bool is_json(const char *source, const char *text, size_t bytes)
{
    size_t at = 0;

    if (ends_in(source, ".json"))
        return true;
    if (ends_in(source, ".yaml") || ends_in(source, ".yml"))
        return false;
    while (at < bytes && memchr(" \t\r\n", text[at], 4))
        at++;
    return at < bytes && text[at] == '{';
}

static loom_status parse(const char *source, const char *text, size_t bytes, const loom_limits *limits, bool json, loom_config **config)
{
    loom_problems problems = {.count = 0};
    loom_config *c = NULL;
    loom_status status;

    if (bytes > limits->bytes)
        return loom_fail(LOOM_E_INVALID, "%s: %zu bytes, and the most that is read is %zu", source, bytes, limits->bytes);
    status = loom_config_new(source, &c);
    if (status < 0)
        return status;
    status = json ? loom_json_read(c, text, bytes, limits, &problems, &c->root) : loom_yaml_read(c, NULL, text, bytes, limits, &problems, &c->root);
    if (status == LOOM_E_MEMORY)
        loom_problems_free(&problems);
    else
        status = loom_problems_finish(&problems, source);
    if (status < 0)
        loom_config_free(c);
    else
        *config = c;
    return status;
}

loom_status loom_config_parse(const char *source, const char *text, size_t bytes, loom_config **config)
{
    return parse(source, text, bytes, &loom_file_limits, is_json(source, text, bytes), config);
}

loom_status loom_json_parse(const char *source, const char *text, size_t bytes, const loom_limits *limits, loom_config **config)
{
    return parse(source, text, bytes, limits, true, config);
}

loom_status loom_config_load(const char *path, loom_config **config)
{
    size_t bytes;
    char *text;
    loom_status status = loom_file_read(path, loom_file_limits.bytes, &text, &bytes);

    if (status < 0)
        return status;
    status = loom_config_parse(path, text, bytes, config);
    free(text);
    return status;
}

/* --- questions ---------------------------------------------------------------------------------------------------------- */

loom_node_kind loom_node_get_kind(const loom_node *node)
{
    return node ? node->kind : LOOM_NODE_NULL;
}

int loom_node_line(const loom_node *node)
{
    return node ? node->line : 1;
}

int loom_node_column(const loom_node *node)
{
    return node ? node->column : 1;
}

size_t loom_node_count(const loom_node *node)
{
    return node ? node->count : 0;
}

const loom_node *loom_node_at(const loom_node *node, size_t index)
{
    return node && index < node->count ? node->entries[index].value : NULL;
}

const char *loom_node_key_at(const loom_node *node, size_t index)
{
    return node && index < node->count ? node->entries[index].key : NULL;
}

const loom_node *loom_node_get(const loom_node *node, const char *key)
{
    long index = node && node->kind == LOOM_NODE_MAP ? loom_node_find(node, key) : -1;

    return index < 0 ? NULL : node->entries[index].value;
}

const char *loom_node_text(const loom_node *node)
{
    return node && node->kind == LOOM_NODE_SCALAR ? node->text : NULL;
}

bool loom_node_quoted(const loom_node *node)
{
    return node && node->quoted;
}

bool loom_node_as_i64(const loom_node *node, int64_t *value)
{
    return node && node->kind == LOOM_NODE_SCALAR && !node->quoted && loom_number_i64(node->text, value) == LOOM_NUMBER_OK;
}

bool loom_node_as_f64(const loom_node *node, double *value)
{
    return node && node->kind == LOOM_NODE_SCALAR && !node->quoted && loom_number_f64(node->text, value) == LOOM_NUMBER_OK;
}
