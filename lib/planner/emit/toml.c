/* TOML as far as configuration files of trainers use it, read into one of our documents. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "planner/emit/emit.h"

typedef struct toml {
    const char *source, *at, *end;
    int line;
    char section[256];
    loom_config *config;
} toml;

static loom_status wrong(const toml *t, const char *what)
{
    return loom_fail(LOOM_E_INVALID, "%s:%d: %s", t->source, t->line, what);
}

/* Adds the rest of the line to `value`, and more lines while a bracket is open. A comment ends a line; strings of one line are kept whole. */
static loom_status read_value(toml *t, loom_text *value)
{
    int depth = 0;
    char quote = 0;

    for (; t->at < t->end; t->at++) {
        char c = *t->at;
        if (c == '\n') {
            if (quote)
                return wrong(t, "a string does not end in its line");
            if (depth == 0)
                return LOOM_OK;
            t->line++;
            c = ' ';
        } else if (quote) {
            if (c == '\\' && quote == '"' && t->at + 1 < t->end)
                loom_text_add_bytes(value, t->at++, 1);
            else if (c == quote)
                quote = 0;
            c = *t->at;
        } else if (c == '#') {
            while (t->at + 1 < t->end && t->at[1] != '\n')
                t->at++;
            continue;
        } else if (c == '"' || c == '\'') {
            quote = c;
        } else if (c == '{') {
            return wrong(t, "inline tables are not read; write a [section]");
        } else {
            depth += (c == '[') - (c == ']');
        }
        loom_text_add_bytes(value, &c, 1);
    }
    return depth > 0 || quote ? wrong(t, "the file ends inside a value") : LOOM_OK;
}

static loom_status read_section(toml *t)
{
    const char *begin = ++t->at;

    while (t->at < t->end && *t->at != ']' && *t->at != '\n')
        t->at++;
    size_t length = (size_t)(t->at - begin);
    if (t->at == t->end || *t->at != ']' || length == 0 || length >= sizeof t->section || *begin == '[')
        return wrong(t, "a section is written [name] or [name.inner]");
    memcpy(t->section, begin, length);
    t->section[length] = '\0';
    while (t->at < t->end && *t->at != '\n')
        t->at++;
    return LOOM_OK;
}

static loom_status read_pair(toml *t)
{
    const char *begin = t->at;
    loom_text pair = {0};
    loom_status status;

    while (t->at < t->end && (isalnum((unsigned char)*t->at) || strchr("_-.", *t->at)))
        t->at++;
    int length = (int)(t->at - begin);
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t'))
        t->at++;
    if (length == 0 || t->at == t->end || *t->at != '=')
        return wrong(t, "a line is [section], key = value or a # comment");
    t->at++;
    loom_text_add(&pair, "%s%s%.*s=", t->section, *t->section ? "." : "", length, begin);
    status = read_value(t, &pair);
    if (status == LOOM_OK)
        status = loom_config_override(t->config, loom_text_so_far(&pair));
    if (status < 0 && status != LOOM_E_MEMORY)
        status = loom_fail(status, "%s:%d: %s", t->source, t->line, loom_last_error());
    loom_text_drop(&pair);
    return status;
}

static loom_status read_lines(toml *t)
{
    loom_status status = LOOM_OK;

    while (t->at < t->end && status == LOOM_OK) {
        if (*t->at == '\n')
            t->line++;
        if (isspace((unsigned char)*t->at))
            t->at++;
        else if (*t->at == '#')
            while (t->at < t->end && *t->at != '\n')
                t->at++;
        else
            status = *t->at == '[' ? read_section(t) : read_pair(t);
    }
    return status;
}

loom_status loom_toml_parse(const char *source, const char *text, size_t bytes, loom_config **config)
{
    toml t = {.source = source, .at = text, .end = text + bytes, .line = 1};
    loom_status status = loom_config_parse("toml.json", "{}", 2, &t.config);

    if (status == LOOM_OK)
        status = read_lines(&t);
    if (status < 0)
        loom_config_free(t.config);
    else
        *config = t.config;
    return status;
}
