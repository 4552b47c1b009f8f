/* YAML through libyaml's events, under bounds of our own: libyaml has none. Nothing is loaded first and checked later. */
#include "core/node.h"

#include <string.h>
#include <yaml.h>

enum { DEEPEST = 64, MOST_ANCHORS = 1000, MOST_MERGED = 32 };

/* The key of a merge is marked by this pointer: a quoted "<<" is an ordinary key. */
static const char merge_key[] = "<<";

/* A list or map that is still open. */
typedef struct frame {
    loom_node *node;
    const char *key; /* of a map: read, and its value is awaited */
    int key_line, key_column;
    uint32_t nodes_before;
} frame;

typedef struct anchor {
    const char *name;
    loom_node *node;
} anchor;

typedef struct yaml {
    loom_config *config;
    const char *origin, *text;
    size_t bytes;
    const loom_limits *limits;
    loom_problems *problems;
    yaml_parser_t parser;
    frame stack[DEEPEST];
    int depth;
    uint32_t nodes; /* that a walk over the document visits: an alias counts for all it stands for */
    anchor anchors[MOST_ANCHORS];
    int n_anchors;
    loom_node *root;
    int documents;
    loom_status status;
} yaml;

/* --- problems --------------------------------------------------------------------------------------------------------- */

static bool stop_text(yaml *y, yaml_mark_t mark, loom_text *text)
{
    loom_problems_add(y->problems, y->origin, (int)mark.line + 1, (int)mark.column + 1, text);
    y->status = LOOM_E_INVALID;
    return false;
}

static bool stop(yaml *y, yaml_mark_t mark, const char *what)
{
    loom_text text = {0};

    loom_text_add(&text, "%s", what);
    return stop_text(y, mark, &text);
}

static bool no_memory(yaml *y)
{
    y->status = loom_fail(LOOM_E_MEMORY, "%s: no memory to read it", loom_config_source(y->config));
    return false;
}

/* Start of line `line` (from 0), or NULL. */
static const char *line_start(const yaml *y, size_t line)
{
    const char *at = y->text, *end = y->text + y->bytes;

    while (at && line--) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at ? at + 1 : NULL;
    }
    return at;
}

/* Whether the indentation of `line` holds a tab; *column (from 0) is where. */
static bool tab_in_indentation(const yaml *y, size_t line, size_t *column)
{
    const char *start = line_start(y, line), *end = y->text + y->bytes, *at = start;

    while (at && at < end && *at == ' ')
        at++;
    if (!at || at == end || *at != '\t')
        return false;
    *column = (size_t)(at - start);
    return true;
}

static bool reference_in_line(const yaml *y, size_t line)
{
    const char *start = line_start(y, line), *end = y->text + y->bytes;
    const char *stop_at = start ? memchr(start, '\n', (size_t)(end - start)) : NULL;

    return start && memmem(start, (size_t)((stop_at ? stop_at : end) - start), "${", 2);
}

/* Words libyaml's complaint. It has two texts about tabs, neither of which most people understand. */
static bool stop_syntax(yaml *y)
{
    yaml_mark_t mark = y->parser.problem_mark;
    loom_text text = {0};
    size_t column;

    if (y->parser.error == YAML_MEMORY_ERROR)
        return no_memory(y);
    if (y->parser.error == YAML_READER_ERROR) {
        loom_text_add(&text, "byte %zu: %s", y->parser.problem_offset, y->parser.problem);
        return stop_text(y, y->parser.mark, &text);
    }
    if (tab_in_indentation(y, mark.line, &column)) {
        mark.column = column;
        return stop(y, mark, "a tab in the indentation; YAML indents with spaces");
    }
    loom_text_add(&text, "%s", y->parser.problem ? y->parser.problem : "not YAML");
    if (y->parser.context)
        loom_text_add(&text, " %s that begins on line %zu", y->parser.context, y->parser.context_mark.line + 1);
    if (reference_in_line(y, mark.line))
        loom_text_add(&text, "; references (${…}) of other tools are not resolved here");
    return stop_text(y, mark, &text);
}

/* --- building ----------------------------------------------------------------------------------------------------------- */

static bool count_nodes(yaml *y, yaml_mark_t mark, uint32_t more)
{
    loom_text text = {0};

    if (more <= y->limits->nodes - y->nodes) {
        y->nodes += more;
        return true;
    }
    loom_text_add(&text, "more than %u values, counting each use of an alias; that is the most that is read", y->limits->nodes);
    return stop_text(y, mark, &text);
}

static loom_node *new_node(yaml *y, loom_node_kind kind, yaml_mark_t mark)
{
    if (!count_nodes(y, mark, 1))
        return NULL;
    loom_node *node = loom_node_new(y->config, kind, (int)mark.line + 1, (int)mark.column + 1);
    if (!node)
        no_memory(y);
    else
        node->origin = y->origin;
    return node;
}

static bool remember_anchor(yaml *y, const yaml_char_t *name, loom_node *node, yaml_mark_t mark)
{
    const char *text = (const char *)name;

    if (!text)
        return true;
    if (y->n_anchors == MOST_ANCHORS)
        return stop(y, mark, "more than 1000 anchors");
    text = loom_arena_copy(&y->config->arena, text, strlen(text));
    if (!text)
        return no_memory(y);
    y->anchors[y->n_anchors++] = (anchor){text, node};
    return true;
}

/* Puts a finished value where it belongs: top, list, or behind its key. */
static bool place(yaml *y, loom_node *value)
{
    frame *f = y->depth ? &y->stack[y->depth - 1] : NULL;

    if (!f) {
        y->root = value;
        return true;
    }
    if (!loom_node_append(y->config, f->node, f->key, f->key_line, f->key_column, value))
        return no_memory(y);
    f->key = NULL;
    return true;
}

static bool awaits_key(const yaml *y)
{
    return y->depth && y->stack[y->depth - 1].node->kind == LOOM_NODE_MAP && !y->stack[y->depth - 1].key;
}

static bool is_null(const char *text)
{
    return !*text || !strcmp(text, "~") || !strcmp(text, "null") || !strcmp(text, "Null") || !strcmp(text, "NULL");
}

static bool take_key(yaml *y, const char *text, bool plain, yaml_mark_t mark)
{
    frame *f = &y->stack[y->depth - 1];

    if (!*text)
        return stop(y, mark, "a key without a name");
    f->key = plain && !strcmp(text, merge_key) ? merge_key : text;
    f->key_line = (int)mark.line + 1;
    f->key_column = (int)mark.column + 1;
    return true;
}

static bool take_scalar(yaml *y, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    char *text;

    if (event->data.scalar.tag)
        return stop(y, event->start_mark, "a tag (!…); types follow from the field here");
    if (strlen(value) != length)
        return stop(y, event->start_mark, "a zero byte in a text");
    text = loom_arena_copy(&y->config->arena, value, length);
    if (!text)
        return no_memory(y);
    if (awaits_key(y))
        return event->data.scalar.anchor ? stop(y, event->start_mark, "an anchor on a key") : take_key(y, text, plain, event->start_mark);

    loom_node *node = new_node(y, plain && is_null(text) ? LOOM_NODE_NULL : LOOM_NODE_SCALAR, event->start_mark);
    if (!node)
        return false;
    if (node->kind == LOOM_NODE_SCALAR) {
        node->text = text;
        node->quoted = !plain;
        loom_node_refuse_reference(node, y->problems);
    }
    return remember_anchor(y, event->data.scalar.anchor, node, event->start_mark) && place(y, node);
}

/* Whether `more` levels fit below where we are; else the end of the reading. */
static bool count_levels(yaml *y, yaml_mark_t mark, int more)
{
    int deepest = y->limits->depth < DEEPEST ? y->limits->depth : DEEPEST;
    loom_text text = {0};

    if (more <= deepest - y->depth)
        return true;
    loom_text_add(&text, "lists and maps inside one another more than %d deep", deepest);
    return stop_text(y, mark, &text);
}

static bool open_container(yaml *y, loom_node_kind kind, const yaml_char_t *name, const yaml_char_t *tag, yaml_mark_t mark)
{
    uint32_t before = y->nodes;

    if (tag)
        return stop(y, mark, "a tag (!…); types follow from the field here");
    if (awaits_key(y))
        return stop(y, mark, "a list or map as a key");
    loom_node *node = count_levels(y, mark, 1) ? new_node(y, kind, mark) : NULL;
    if (!node || !remember_anchor(y, name, node, mark))
        return false;
    node->size = 0; /* still open: an alias to it would have no end */
    y->stack[y->depth++] = (frame){.node = node, .nodes_before = before};
    return true;
}

static yaml_mark_t mark_of(const loom_node *node)
{
    return (yaml_mark_t){.line = (size_t)node->line - 1, .column = (size_t)node->column - 1};
}

/* Appends those entries of `from` whose keys `map` has not: an explicit key overrides a merged one, an earlier merge a later one. */
static bool merge_map(yaml *y, loom_node *map, const loom_node *from)
{
    uint32_t present = map->count;

    for (uint32_t i = 0; i < from->count; i++) {
        const loom_entry *e = &from->entries[i];
        bool there = map->slots && loom_node_find(map, e->key) >= 0;
        for (uint32_t k = 0; !map->slots && k < present && !there; k++)
            there = !strcmp(map->entries[k].key, e->key);
        if (!there && !loom_node_append(y->config, map, e->key, e->line, e->column, e->value))
            return no_memory(y);
    }
    return loom_node_index(y->config, map) || no_memory(y);
}

static bool merge_value(yaml *y, loom_node *map, const loom_node *value)
{
    if (value->kind == LOOM_NODE_MAP)
        return merge_map(y, map, value);
    if (value->kind != LOOM_NODE_LIST || value->count > MOST_MERGED)
        return stop(y, mark_of(value), "<< takes a map or a list of at most 32 maps");
    for (uint32_t i = 0; i < value->count; i++) {
        const loom_node *from = value->entries[i].value;
        if (from->kind != LOOM_NODE_MAP)
            return stop(y, mark_of(from), "<< takes a map or a list of at most 32 maps");
        if (!merge_map(y, map, from))
            return false;
    }
    return true;
}

/* Replaces the entry "<<" of a sealed map by what it stands for. */
static bool apply_merge(yaml *y, loom_node *map)
{
    for (uint32_t i = 0; i < map->count; i++) {
        const loom_entry entry = map->entries[i];
        if (entry.key != merge_key)
            continue;
        if (!merge_value(y, map, entry.value))
            return false;
        map->count--;
        memmove(&map->entries[i], &map->entries[i + 1], (map->count - i) * sizeof *map->entries);
        return loom_node_index(y->config, map) || no_memory(y);
    }
    return true;
}

static bool close_container(yaml *y)
{
    frame *f = &y->stack[--y->depth];
    loom_node *node = f->node;

    node->size = y->nodes - f->nodes_before;
    if (node->kind == LOOM_NODE_MAP && !loom_node_seal(y->config, node, y->problems))
        return no_memory(y);
    return (node->kind != LOOM_NODE_MAP || apply_merge(y, node)) && place(y, node);
}

static bool take_alias(yaml *y, const yaml_event_t *event)
{
    const char *name = (const char *)event->data.alias.anchor;
    loom_text text = {0};

    if (awaits_key(y))
        return stop(y, event->start_mark, "an alias as a key");
    for (int i = y->n_anchors; i-- > 0;) {
        if (strcmp(y->anchors[i].name, name))
            continue;
        loom_node *meant = y->anchors[i].node;
        if (!meant->size)
            return stop(y, event->start_mark, "an alias inside what it stands for has no end");
        return count_nodes(y, event->start_mark, meant->size) && count_levels(y, event->start_mark, meant->height) && place(y, meant);
    }
    loom_text_add(&text, "alias *");
    loom_text_add_shown(&text, name);
    loom_text_add(&text, " has no anchor before it");
    return stop_text(y, event->start_mark, &text);
}

static bool take_event(yaml *y, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        return y->documents++ == 0 || stop(y, event->start_mark, "a second document; one file holds one");
    case YAML_ALIAS_EVENT:
        return take_alias(y, event);
    case YAML_SCALAR_EVENT:
        return take_scalar(y, event);
    case YAML_SEQUENCE_START_EVENT:
        return open_container(y, LOOM_NODE_LIST, event->data.sequence_start.anchor, event->data.sequence_start.tag, event->start_mark);
    case YAML_MAPPING_START_EVENT:
        return open_container(y, LOOM_NODE_MAP, event->data.mapping_start.anchor, event->data.mapping_start.tag, event->start_mark);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_container(y);
    default:
        return true;
    }
}

static void read_events(yaml *y)
{
    for (bool more = true; more;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&y->parser, &event)) {
            stop_syntax(y);
            return;
        }
        more = take_event(y, &event) && event.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
}

loom_status loom_yaml_read(loom_config *config, const char *origin, const char *text, size_t bytes, const loom_limits *limits,
                           loom_problems *problems, loom_node **root)
{
    yaml y = {.config = config, .origin = origin, .text = text, .bytes = bytes, .limits = limits, .problems = problems};

    if (!yaml_parser_initialize(&y.parser)) {
        no_memory(&y);
        return y.status;
    }
    yaml_parser_set_encoding(&y.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&y.parser, (const unsigned char *)text, bytes);
    read_events(&y);
    yaml_parser_delete(&y.parser);
    if (y.status == LOOM_OK && !y.root) { /* an empty file */
        y.root = loom_node_new(config, LOOM_NODE_NULL, 1, 1);
        if (!y.root)
            no_memory(&y);
    }
    if (y.status == LOOM_OK)
        *root = y.root;
    return y.status;
}
