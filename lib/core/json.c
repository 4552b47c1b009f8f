/* JSON by RFC 8259, strictly, into the same tree as YAML. */
#include "core/node.h"
#include "core/utf8.h"

#include <stdio.h>
#include <string.h>

typedef struct json {
    loom_config *config;
    const loom_limits *limits;
    loom_problems *problems;
    const char *at, *end;
    int line;
    const char *counted; /* columns are counted in characters, once, as the reading goes on */
    int column;          /* of `counted` */
    int depth;
    uint32_t nodes;
    loom_status status; /* LOOM_E_MEMORY, or LOOM_E_INVALID once a problem has stopped the reading */
} json;

static loom_node *read_value(json *j);

/* Moves the column on to `at`, which never goes back. */
static int column_here(json *j)
{
    for (; j->counted < j->at; j->counted++)
        j->column += ((unsigned char)*j->counted & 0xc0) != 0x80;
    return j->column;
}

static void *stop(json *j, const char *what, const char *shown)
{
    loom_text text = {0};

    if (j->status == LOOM_OK) {
        loom_text_add(&text, "%s", what);
        if (shown)
            loom_text_add_shown(&text, shown);
        loom_problems_add(j->problems, NULL, j->line, column_here(j), &text);
        j->status = LOOM_E_INVALID;
    }
    return NULL;
}

static void *stop_at_limit(json *j, const char *format, uint32_t limit)
{
    char what[96];

    snprintf(what, sizeof what, format, limit);
    return stop(j, what, "; that is the most that is read here");
}

static void *no_memory(json *j)
{
    j->status = loom_fail(LOOM_E_MEMORY, "%s: no memory to read it", loom_config_source(j->config));
    return NULL;
}

static void skip_space(json *j)
{
    for (; j->at < j->end && memchr(" \t\r\n", *j->at, 4); j->at++)
        if (*j->at == '\n') {
            j->line++;
            j->counted = j->at + 1;
            j->column = 1;
        }
}

static bool next_is(json *j, char c)
{
    skip_space(j);
    if (j->at == j->end || *j->at != c)
        return false;
    j->at++;
    return true;
}

static loom_node *new_node(json *j, loom_node_kind kind)
{
    if (++j->nodes > j->limits->nodes)
        return stop_at_limit(j, "more than %u values", j->limits->nodes);
    loom_node *node = loom_node_new(j->config, kind, j->line, column_here(j));
    return node ? node : no_memory(j);
}

static bool read_hex4(json *j, uint32_t *code)
{
    *code = 0;
    if (j->end - j->at < 4)
        return false;
    for (int i = 0; i < 4; i++, j->at++) {
        char c = *j->at;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return false;
        *code = *code * 16 + (uint32_t)digit;
    }
    return true;
}

/* The character of \uXXXX, two of them for a pair of surrogates; `at` is behind the 'u'. */
static bool read_unicode(json *j, uint32_t *code)
{
    uint32_t low;

    if (!read_hex4(j, code))
        return stop(j, "\\u wants four hexadecimal digits", NULL);
    if (*code == 0)
        return stop(j, "\\u0000 in a text", NULL);
    if (*code < 0xd800 || *code > 0xdfff)
        return true;
    if (*code > 0xdbff || j->end - j->at < 6 || j->at[0] != '\\' || j->at[1] != 'u')
        return stop(j, "half of a surrogate pair", NULL);
    j->at += 2;
    if (!read_hex4(j, &low) || low < 0xdc00 || low > 0xdfff)
        return stop(j, "half of a surrogate pair", NULL);
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* Reads one escape behind its backslash and writes what it stands for; an escape is never shorter than that. */
static size_t read_escape(json *j, char *out)
{
    static const char letters[] = "\"\\/bfnrt", stands_for[] = "\"\\/\b\f\n\r\t";
    char letter = j->at < j->end ? *j->at++ : '\0';
    const char *found = letter ? strchr(letters, letter) : NULL;
    uint32_t code;

    if (found) {
        *out = stands_for[found - letters];
        return 1;
    }
    if (letter != 'u') {
        stop(j, "a backslash is followed by one of \" \\ / b f n r t u", NULL);
        return 0;
    }
    return read_unicode(j, &code) ? loom_utf8_write(code, out) : 0;
}

/* Length of the raw text up to its closing quote, or -1. Escapes only make it shorter. */
static long raw_length(const json *j)
{
    for (const char *c = j->at; c < j->end && *c != '\n'; c++) {
        if (*c == '"')
            return c - j->at;
        if (*c == '\\')
            c++;
    }
    return -1;
}

/* A string whose opening quote has been read. */
static const char *read_string(json *j)
{
    long most = raw_length(j);

    if (most < 0)
        return stop(j, "the text that begins here has no closing quote on its line", NULL);
    char *text = loom_arena_alloc(&j->config->arena, (size_t)most + 1), *out = text;
    if (!text)
        return no_memory(j);
    while (*j->at != '"') {
        if (*j->at == '\\') {
            j->at++;
            out += read_escape(j, out);
        } else {
            size_t length = (unsigned char)*j->at < 0x20 ? 0 : loom_utf8_length(j->at, (size_t)(j->end - j->at));
            if (!length)
                return stop(j, (unsigned char)*j->at < 0x20 ? "a control character in a text; write it as \\u00XX" : "bytes that are not UTF-8", NULL);
            memcpy(out, j->at, length);
            out += length;
            j->at += length;
        }
        if (j->status < 0)
            return NULL;
    }
    j->at++;
    return text;
}

static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

/* End of the number at `at` by the grammar of RFC 8259, or NULL. */
static const char *number_end(const char *at, const char *end)
{
    const char *start;

    at += at < end && *at == '-';
    start = at;
    at = skip_digits(at, end);
    if (at == start || (*start == '0' && at - start > 1))
        return NULL;
    if (at < end && *at == '.') {
        start = ++at;
        at = skip_digits(at, end);
        if (at == start)
            return NULL;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        at += at < end && (*at == '+' || *at == '-');
        start = at;
        at = skip_digits(at, end);
        if (at == start)
            return NULL;
    }
    return at;
}

static size_t word_length(const json *j)
{
    const char *c = j->at;

    while (c < j->end && !memchr(" \t\r\n,:[]{}\"", *c, 11))
        c++;
    return (size_t)(c - j->at);
}

/* true, false, null or a number. */
static loom_node *read_word(json *j)
{
    size_t length = word_length(j);
    const char *end = number_end(j->at, j->at + length);
    bool boolean = (length == 4 && !memcmp(j->at, "true", 4)) || (length == 5 && !memcmp(j->at, "false", 5));
    bool null = length == 4 && !memcmp(j->at, "null", 4);
    loom_node *node;
    char *text;

    if (!boolean && !null && (!end || end != j->at + length)) {
        char shown[32] = "";
        memcpy(shown, j->at, length < sizeof shown - 1 ? length : sizeof shown - 1);
        return length ? stop(j, "not JSON (true, false, null, a number or a text in quotes is meant): ", shown) : stop(j, "a value is missing here", NULL);
    }
    node = new_node(j, null ? LOOM_NODE_NULL : LOOM_NODE_SCALAR);
    text = node ? loom_arena_copy(&j->config->arena, j->at, length) : NULL;
    if (node && !text)
        return no_memory(j);
    if (node && !null)
        node->text = text;
    j->at += length;
    return node;
}

static loom_node *read_text(json *j)
{
    loom_node *node = new_node(j, LOOM_NODE_SCALAR);

    j->at++;
    if (!node)
        return NULL;
    node->quoted = true;
    node->text = read_string(j);
    if (node->text)
        loom_node_refuse_reference(node, j->problems);
    return node->text ? node : NULL;
}

/* Reads `"key":` and hands out the key and where it stands. */
static const char *read_key(json *j, int *line, int *column)
{
    skip_space(j);
    *line = j->line;
    *column = column_here(j);
    if (!next_is(j, '"'))
        return stop(j, j->at < j->end && *j->at == '}' ? "a comma before }" : "a key in quotes is meant here", NULL);
    const char *key = read_string(j);
    if (key && !next_is(j, ':'))
        return stop(j, "a colon is meant here, behind the key ", key);
    return key;
}

static loom_node *read_container(json *j, loom_node_kind kind)
{
    const char close = kind == LOOM_NODE_MAP ? '}' : ']';
    loom_node *node = new_node(j, kind);

    if (!node)
        return NULL;
    if (++j->depth > j->limits->depth)
        return stop_at_limit(j, "lists and maps inside one another more than %u deep", (uint32_t)j->limits->depth);
    j->at++;
    for (bool more = !next_is(j, close); more;) {
        int line = 0, column = 0;
        const char *key = kind == LOOM_NODE_MAP ? read_key(j, &line, &column) : NULL;
        loom_node *value = j->status < 0 ? NULL : read_value(j);
        if (!value)
            return NULL;
        if (!loom_node_append(j->config, node, key, line, column, value))
            return no_memory(j);
        if (next_is(j, close))
            more = false;
        else if (!next_is(j, ','))
            return stop(j, kind == LOOM_NODE_MAP ? "a comma or } is meant here" : "a comma or ] is meant here", NULL);
    }
    j->depth--;
    return kind == LOOM_NODE_LIST || loom_node_seal(j->config, node, j->problems) ? node : no_memory(j);
}

static loom_node *read_value(json *j)
{
    skip_space(j);
    if (j->at == j->end)
        return stop(j, "the file ends where a value is meant", NULL);
    switch (*j->at) {
    case '{':
        return read_container(j, LOOM_NODE_MAP);
    case '[':
        return read_container(j, LOOM_NODE_LIST);
    case '"':
        return read_text(j);
    default:
        return read_word(j);
    }
}

loom_status loom_json_read(loom_config *config, const char *text, size_t bytes, const loom_limits *limits, loom_problems *problems,
                           loom_node **root)
{
    json j = {.config = config, .limits = limits, .problems = problems, .at = text, .end = text + bytes, .line = 1, .counted = text, .column = 1};

    if (bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) /* the byte order mark of some editors */
        j.at = j.counted = text + 3;
    loom_node *top = read_value(&j);
    skip_space(&j);
    if (top && j.at < j.end)
        stop(&j, "something follows the end of the JSON value", NULL);
    if (j.status == LOOM_OK)
        *root = top;
    return j.status;
}
