/* Typed reading of a tree: every field by one rule, every problem of the file at once, every key accounted for. */
#include "core/nearest.h"
#include "core/node.h"
#include "core/number.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The keys that somebody asked of one map. */
typedef struct asked {
    const loom_node *map; /* NULL: a free slot */
    bool allow_unknown, noted_wrong_kind;
    const char **names;
    uint32_t count, capacity;
} asked;

struct loom_reader {
    const loom_config *config;
    loom_problems problems;
    loom_arena arena;
    asked *table; /* by address of the map, open addressing */
    uint32_t n_slots, used;
    bool out_of_memory;
};

/* --- which keys were asked for ------------------------------------------------------------------------------------------ */

static asked *slot_of(asked *table, uint32_t n_slots, const loom_node *map)
{
    uint32_t slot = (uint32_t)(((uintptr_t)map >> 4) * 0x9E3779B97F4A7C15u >> 32) & (n_slots - 1);

    while (table[slot].map && table[slot].map != map)
        slot = (slot + 1) & (n_slots - 1);
    return &table[slot];
}

static bool grow_table(loom_reader *reader)
{
    uint32_t n_slots = reader->n_slots ? reader->n_slots * 2 : 64;
    asked *table = calloc(n_slots, sizeof *table);

    if (!table)
        return false;
    for (uint32_t i = 0; i < reader->n_slots; i++)
        if (reader->table[i].map)
            *slot_of(table, n_slots, reader->table[i].map) = reader->table[i];
    free(reader->table);
    reader->table = table;
    reader->n_slots = n_slots;
    return true;
}

static asked *asked_of(loom_reader *reader, const loom_node *map)
{
    if (reader->used * 2 >= reader->n_slots && !grow_table(reader)) {
        reader->out_of_memory = true;
        return NULL;
    }
    asked *a = slot_of(reader->table, reader->n_slots, map);
    if (!a->map) {
        a->map = map;
        reader->used++;
    }
    return a;
}

static bool was_asked(const asked *a, const char *name)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (!strcmp(a->names[i], name))
            return true;
    return false;
}

static void note_asked(loom_reader *reader, asked *a, const char *name)
{
    if (was_asked(a, name))
        return;
    if (a->count + 1 >= a->capacity) { /* one more for the NULL behind the last */
        uint32_t capacity = a->capacity ? a->capacity * 2 : 8;
        const char **names = loom_arena_array(&reader->arena, capacity, sizeof *names);
        if (!names) {
            reader->out_of_memory = true;
            return;
        }
        if (a->count)
            memcpy(names, a->names, a->count * sizeof *names);
        a->names = names;
        a->capacity = capacity;
    }
    a->names[a->count] = loom_arena_copy(&reader->arena, name, strlen(name));
    reader->out_of_memory |= !a->names[a->count];
    a->count += a->names[a->count] != NULL;
}

/* --- problems ------------------------------------------------------------------------------------------------------------- */

/* Writes the path from `node` to `target` ("model.experts", "nodes[3]"; it begins at `start` of `text`) and returns true, or leaves `text` as it
 * was. */
static bool add_path_below(const loom_node *node, const loom_node *target, loom_text *text, size_t start)
{
    size_t length = text->length;

    if (node == target)
        return true;
    for (uint32_t i = 0; i < node->count; i++) {
        const loom_entry *e = &node->entries[i];
        if (e->value != target && e->value->kind != LOOM_NODE_LIST && e->value->kind != LOOM_NODE_MAP)
            continue;
        if (e->key)
            loom_text_add(text, "%s%.64s", length > start ? "." : "", e->key);
        else
            loom_text_add(text, "[%u]", i);
        if (add_path_below(e->value, target, text, start))
            return true;
        if (text->failed)
            return false;
        text->length = length;
        text->at[length] = '\0';
    }
    return false;
}

static void add_path(const loom_reader *reader, const loom_node *target, loom_text *text)
{
    add_path_below(reader->config->root, target, text, text->length);
}

/* "model.layers": the key as a person would look for it. */
static void add_key(const loom_reader *reader, const loom_node *map, const char *key, loom_text *text)
{
    size_t start = text->length;

    add_path(reader, map, text);
    loom_text_add(text, "%s", text->length > start ? "." : "");
    loom_text_add_shown(text, key);
}

static bool too_many(loom_reader *reader)
{
    if (reader->problems.count < LOOM_PROBLEMS_KEPT)
        return false;
    reader->problems.count++; /* counted, no longer worded */
    return true;
}

static void note(loom_reader *reader, const loom_node *node, loom_text *text)
{
    loom_problems_add(&reader->problems, node ? node->origin : NULL, loom_node_line(node), loom_node_column(node), text);
}

void loom_reader_problem(loom_reader *reader, const loom_node *node, const char *format, ...)
{
    char what[1024];
    va_list arguments;
    loom_text text = {0};

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    loom_text_add(&text, "%s", what);
    note(reader, node, &text);
}

/* "model.layers must be WHAT, and is GIVEN": every field says it this way. */
static bool refuse(loom_reader *reader, const loom_node *map, const char *key, const loom_node *given, const char *what, const char *hint)
{
    loom_text text = {0};

    if (too_many(reader))
        return false;
    add_key(reader, map, key, &text);
    loom_text_add(&text, " must be %s, and is ", what);
    loom_node_show(given, &text);
    if (hint)
        loom_text_add(&text, "; %s", hint);
    note(reader, given, &text);
    return false;
}

void loom_require(loom_reader *reader, const loom_node *map, const char *key)
{
    loom_text text = {0};
    const loom_node *value = loom_node_get(map, key);

    if (!map || map->kind != LOOM_NODE_MAP)
        return;
    asked *a = asked_of(reader, map);
    if (a)
        note_asked(reader, a, key);
    if ((value && value->kind != LOOM_NODE_NULL) || too_many(reader))
        return;
    loom_text_add(&text, "key ");
    add_key(reader, map, key, &text);
    loom_text_add(&text, value ? " has no value" : " is missing");
    note(reader, value ? value : map, &text);
}

/* --- reading ---------------------------------------------------------------------------------------------------------------- */

loom_status loom_reader_open(const loom_config *config, loom_reader **reader)
{
    loom_reader *r = calloc(1, sizeof *r);

    if (!r)
        return loom_fail(LOOM_E_MEMORY, "%s: no memory to read it", loom_config_source(config));
    r->config = config;
    *reader = r;
    return LOOM_OK;
}

static void note_no_map(loom_reader *reader, asked *a)
{
    loom_text text = {0};

    if (a->noted_wrong_kind || a->map->kind == LOOM_NODE_NULL)
        return;
    a->noted_wrong_kind = true;
    add_path(reader, a->map, &text);
    loom_text_add(&text, "%s must be a map of keys, and is ", text.length ? "" : "the file");
    loom_node_show(a->map, &text);
    note(reader, a->map, &text);
}

/* The value of `key`, NULL when it is absent or null. Whoever asks makes the key a known one. */
static const loom_node *ask(loom_reader *reader, const loom_node *map, const char *key)
{
    asked *a = map ? asked_of(reader, map) : NULL;

    if (!a)
        return NULL;
    note_asked(reader, a, key);
    if (map->kind != LOOM_NODE_MAP)
        note_no_map(reader, a);
    const loom_node *value = loom_node_get(map, key);
    return loom_node_get_kind(value) == LOOM_NODE_NULL ? NULL : value;
}

const loom_node *loom_read_map(loom_reader *reader, const loom_node *map, const char *key)
{
    const loom_node *value = ask(reader, map, key);

    if (value && value->kind != LOOM_NODE_MAP) {
        refuse(reader, map, key, value, "a map of keys", NULL);
        return NULL;
    }
    return value;
}

const loom_node *loom_read_list(loom_reader *reader, const loom_node *map, const char *key)
{
    const loom_node *value = ask(reader, map, key);

    if (value && value->kind != LOOM_NODE_LIST) {
        refuse(reader, map, key, value, "a list", NULL);
        return NULL;
    }
    return value;
}

static const char *hint_for(const loom_node *node, loom_number_fault fault)
{
    return node->quoted ? "leave the quotes away" : loom_number_hint(fault);
}

static bool plain_scalar(const loom_node *node)
{
    return node->kind == LOOM_NODE_SCALAR && !node->quoted;
}

/* A whole number in [low, high] from `node`, which stands under `key` of `map`. */
static bool whole(loom_reader *reader, const loom_node *map, const char *key, const loom_node *node, int64_t low, int64_t high, int64_t *value)
{
    int64_t read;
    char range[96];
    loom_number_fault fault = plain_scalar(node) ? loom_number_i64(node->text, &read) : LOOM_NUMBER_NONE;

    if (fault)
        return refuse(reader, map, key, node, "a whole number", hint_for(node, fault));
    if (read < low || read > high) {
        if (high >= INT_MAX && high != low && read < low)
            snprintf(range, sizeof range, "at least %lld", (long long)low);
        else
            snprintf(range, sizeof range, "a whole number from %lld to %lld", (long long)low, (long long)high);
        return refuse(reader, map, key, node, range, NULL);
    }
    *value = read;
    return true;
}

static bool real(loom_reader *reader, const loom_node *map, const char *key, const loom_node *node, double low, double high, double *value)
{
    double read;
    char range[96];
    loom_number_fault fault = plain_scalar(node) ? loom_number_f64(node->text, &read) : LOOM_NUMBER_NONE;

    if (fault)
        return refuse(reader, map, key, node, "a number", hint_for(node, fault));
    if (!(read >= low && read <= high)) {
        snprintf(range, sizeof range, "from %g to %g", low, high);
        return refuse(reader, map, key, node, range, NULL);
    }
    *value = read;
    return true;
}

bool loom_read_i64(loom_reader *reader, const loom_node *map, const char *key, int64_t low, int64_t high, int64_t *value)
{
    const loom_node *node = ask(reader, map, key);

    return node && whole(reader, map, key, node, low, high, value);
}

bool loom_read_int(loom_reader *reader, const loom_node *map, const char *key, int low, int high, int *value)
{
    int64_t read;

    if (!loom_read_i64(reader, map, key, low, high, &read))
        return false;
    *value = (int)read;
    return true;
}

bool loom_read_f64(loom_reader *reader, const loom_node *map, const char *key, double low, double high, double *value)
{
    const loom_node *node = ask(reader, map, key);

    return node && real(reader, map, key, node, low, high, value);
}

static bool one_of(const char *text, const char *a, const char *b, const char *c)
{
    return !strcmp(text, a) || !strcmp(text, b) || !strcmp(text, c);
}

bool loom_read_bool(loom_reader *reader, const loom_node *map, const char *key, bool *value)
{
    const loom_node *node = ask(reader, map, key);

    if (!node)
        return false;
    bool yes = plain_scalar(node) && one_of(node->text, "true", "True", "TRUE");
    if (!yes && !(plain_scalar(node) && one_of(node->text, "false", "False", "FALSE")))
        return refuse(reader, map, key, node, "true or false", node->quoted ? "leave the quotes away" : NULL);
    *value = yes;
    return true;
}

bool loom_read_text(loom_reader *reader, const loom_node *map, const char *key, const char **value)
{
    const loom_node *node = ask(reader, map, key);

    if (!node)
        return false;
    if (node->kind != LOOM_NODE_SCALAR)
        return refuse(reader, map, key, node, "a text", NULL);
    *value = node->text;
    return true;
}

bool loom_read_choice(loom_reader *reader, const loom_node *map, const char *key, const char *const *names, int *value)
{
    const loom_node *node = ask(reader, map, key);
    const char *nearest;
    loom_text list = {0}, hint = {0};

    if (!node)
        return false;
    for (int i = 0; node->kind == LOOM_NODE_SCALAR && names[i]; i++)
        if (!strcmp(node->text, names[i])) {
            *value = i;
            return true;
        }
    for (int i = 0; names[i]; i++)
        loom_text_add(&list, "%s%s", i == 0 ? "" : names[i + 1] ? ", " : " or ", names[i]);
    nearest = node->kind == LOOM_NODE_SCALAR ? loom_nearest_name(node->text, names) : NULL;
    if (nearest)
        loom_text_add(&hint, "did you mean %s?", nearest);
    refuse(reader, map, key, node, loom_text_so_far(&list), nearest ? loom_text_so_far(&hint) : NULL);
    loom_text_drop(&list);
    loom_text_drop(&hint);
    return false;
}

/* A list of at most `capacity`; NULL when it is absent or wrong. */
static const loom_node *bounded_list(loom_reader *reader, const loom_node *map, const char *key, size_t capacity)
{
    const loom_node *list = loom_read_list(reader, map, key);
    char what[64];

    if (list && list->count > capacity) {
        snprintf(what, sizeof what, "a list of at most %zu", capacity);
        refuse(reader, map, key, list, what, NULL);
        return NULL;
    }
    return list;
}

bool loom_read_i64_list(loom_reader *reader, const loom_node *map, const char *key, int64_t low, int64_t high, size_t capacity, int64_t *values,
                        size_t *count)
{
    const loom_node *list = bounded_list(reader, map, key, capacity);
    bool right = list != NULL;

    for (uint32_t i = 0; list && i < list->count; i++)
        right &= whole(reader, map, key, list->entries[i].value, low, high, &values[i]);
    if (right)
        *count = list->count;
    return right;
}

bool loom_read_f64_list(loom_reader *reader, const loom_node *map, const char *key, double low, double high, size_t capacity, double *values,
                        size_t *count)
{
    const loom_node *list = bounded_list(reader, map, key, capacity);
    bool right = list != NULL;

    for (uint32_t i = 0; list && i < list->count; i++)
        right &= real(reader, map, key, list->entries[i].value, low, high, &values[i]);
    if (right)
        *count = list->count;
    return right;
}

/* --- the end ------------------------------------------------------------------------------------------------------------------ */

void loom_reader_allow_unknown(loom_reader *reader, const loom_node *map)
{
    asked *a = map ? asked_of(reader, map) : NULL;

    if (a)
        a->allow_unknown = true;
}

int loom_reader_problems(const loom_reader *reader)
{
    return reader->problems.count < INT_MAX ? (int)reader->problems.count : INT_MAX;
}

/* A map under `node` of which `key` is a known key, or NULL. */
static const loom_node *map_that_knows(const loom_reader *reader, const loom_node *node, const char *key)
{
    const asked *a = reader->n_slots ? slot_of(reader->table, reader->n_slots, node) : NULL;

    if (a && a->map && was_asked(a, key))
        return node;
    for (uint32_t i = 0; i < node->count; i++) {
        const loom_node *found = map_that_knows(reader, node->entries[i].value, key);
        if (found)
            return found;
    }
    return NULL;
}

static void note_unknown(loom_reader *reader, const asked *a, const loom_entry *entry)
{
    loom_text text = {0};
    const loom_node *elsewhere;
    const char *nearest;

    if (too_many(reader))
        return;
    loom_text_add(&text, "unknown key ");
    add_key(reader, a->map, entry->key, &text);
    if (a->count)
        a->names[a->count] = NULL;
    nearest = a->count ? loom_nearest_name(entry->key, a->names) : NULL;
    elsewhere = nearest ? NULL : map_that_knows(reader, reader->config->root, entry->key);
    if (nearest || elsewhere) {
        loom_text_add(&text, "; did you mean ");
        add_key(reader, elsewhere ? elsewhere : a->map, nearest ? nearest : entry->key, &text);
        loom_text_add(&text, "?");
    }
    loom_problems_add(&reader->problems, entry->value->origin, entry->line, entry->column, &text);
}

/* Reports the keys under `node` that nobody asked for. Below an unknown key nothing is looked at: one problem is enough. */
static void find_unknown(loom_reader *reader, const loom_node *node)
{
    const asked nothing = {.map = node}, *a = reader->n_slots ? slot_of(reader->table, reader->n_slots, node) : NULL;

    if (!a || !a->map)
        a = &nothing;
    for (uint32_t i = 0; i < node->count; i++) {
        const loom_entry *e = &node->entries[i];
        if (!e->key || was_asked(a, e->key))
            find_unknown(reader, e->value);
        else if (!a->allow_unknown && strncmp(e->key, "x-", 2))
            note_unknown(reader, a, e);
    }
}

loom_status loom_reader_finish(loom_reader *reader)
{
    loom_status status;

    find_unknown(reader, reader->config->root);
    if (reader->out_of_memory) {
        loom_problems_free(&reader->problems);
        status = loom_fail(LOOM_E_MEMORY, "%s: no memory to check it", loom_config_source(reader->config));
    } else {
        status = loom_problems_finish(&reader->problems, loom_config_source(reader->config));
    }
    loom_arena_free(&reader->arena);
    free(reader->table);
    free(reader);
    return status;
}
