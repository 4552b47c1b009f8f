/* The growing string. */
#include "core/text.h"
#include "core/number.h"
#include "core/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void loom_text_free(char *text)
{
    free(text);
}

/* Room for `more` bytes and the zero behind them. */
static bool reserve(loom_text *text, size_t more)
{
    if (text->failed)
        return false;
    if (more < text->capacity - text->length)
        return true;

    size_t capacity = text->capacity ? text->capacity : 128;
    while (capacity - text->length <= more && capacity <= SIZE_MAX / 2)
        capacity *= 2;
    char *at = capacity - text->length > more ? realloc(text->at, capacity) : NULL;
    if (!at) {
        text->failed = true;
        return false;
    }
    text->at = at;
    text->capacity = capacity;
    return true;
}

void loom_text_add_bytes(loom_text *text, const char *bytes, size_t length)
{
    if (!reserve(text, length))
        return;
    if (length)
        memcpy(text->at + text->length, bytes, length);
    text->length += length;
    text->at[text->length] = '\0';
}

void loom_text_add(loom_text *text, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0 || !reserve(text, (size_t)length))
        return;
    va_start(arguments, format);
    vsnprintf(text->at + text->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    text->length += (size_t)length;
}

static void add_json_character(loom_text *text, const char *at, size_t length)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *found = strchr(escaped, *at);

    if (length == 0)
        loom_text_add_bytes(text, "\xef\xbf\xbd", 3); /* U+FFFD */
    else if (length == 1 && found)
        loom_text_add(text, "\\%c", letters[found - escaped]);
    else if (length == 1 && ((unsigned char)*at < 0x20 || *at == 0x7f))
        loom_text_add(text, "\\u%04x", (unsigned)(unsigned char)*at);
    else
        loom_text_add_bytes(text, at, length);
}

void loom_text_add_json(loom_text *text, const char *value)
{
    if (!value) {
        loom_text_add_bytes(text, "null", 4);
        return;
    }
    loom_text_add_bytes(text, "\"", 1);
    for (size_t left = strlen(value); left;) {
        size_t length = loom_utf8_length(value, left), step = length ? length : 1;
        add_json_character(text, value, length);
        value += step;
        left -= step;
    }
    loom_text_add_bytes(text, "\"", 1);
}

void loom_text_add_xml(loom_text *text, const char *value)
{
    for (; value && *value; value++) {
        const char *entity = *value == '&' ? "&amp;" : *value == '<' ? "&lt;" : *value == '>' ? "&gt;" : *value == '"' ? "&quot;" : NULL;

        if (!entity && (unsigned char)*value < 0x20)
            entity = "?";
        if (entity)
            loom_text_add(text, "%s", entity);
        else
            loom_text_add_bytes(text, value, 1);
    }
}

void loom_text_add_number(loom_text *text, double value)
{
    char digits[LOOM_NUMBER_BYTES];

    if (isfinite(value))
        loom_text_add_bytes(text, digits, loom_number_format(value, digits));
    else
        loom_text_add_bytes(text, "null", 4);
}

/* Characters of the next word, with the spaces before it; bytes of both. Continuation bytes of UTF-8 are no characters. */
static int next_word(const char *at, size_t *bytes)
{
    size_t n = strspn(at, " ");
    int characters = 0;

    n += strcspn(at + n, " \n");
    for (size_t i = 0; i < n; i++)
        characters += ((unsigned char)at[i] & 0xc0) != 0x80;
    *bytes = n;
    return characters;
}

void loom_text_add_wrapped(loom_text *text, const char *lines, int width, int indent)
{
    int column = 0;

    while (*lines) {
        size_t bytes, spaces = strspn(lines, " ");
        int characters = next_word(lines, &bytes);
        if (column > indent && column + characters > width && spaces > 0 && bytes > spaces) {
            loom_text_add(text, "\n%*s", indent, "");
            loom_text_add_bytes(text, lines + spaces, bytes - spaces);
            column = indent + characters - (int)spaces;
        } else {
            loom_text_add_bytes(text, lines, bytes);
            column += characters;
        }
        lines += bytes;
        if (*lines == '\n') {
            loom_text_add_bytes(text, lines++, 1);
            column = 0;
        }
    }
}

void loom_text_add_field(loom_text *text, const char *name, double value, const char *after)
{
    loom_text_add(text, "\"%s\":", name);
    loom_text_add_number(text, value);
    loom_text_add(text, "%s", after);
}

loom_status loom_text_take(loom_text *text, char **out)
{
    loom_text_add_bytes(text, "", 0); /* an empty text is a text too */
    if (text->failed) {
        size_t length = text->length;
        loom_text_drop(text);
        return loom_fail(LOOM_E_MEMORY, "no memory for a text of more than %zu bytes", length);
    }
    *out = text->at;
    *text = (loom_text){0};
    return LOOM_OK;
}

loom_status loom_text_take_wrapped(loom_text *text, int width, int indent, char **out)
{
    loom_text wrapped = {.failed = text->failed};

    loom_text_add_wrapped(&wrapped, loom_text_so_far(text), width, indent);
    loom_text_drop(text);
    return loom_text_take(&wrapped, out);
}

void loom_text_drop(loom_text *text)
{
    free(text->at);
    *text = (loom_text){0};
}

const char *loom_text_so_far(const loom_text *text)
{
    return text->at ? text->at : "";
}
