/* A string that grows: messages, YAML, JSON, reports. */
#ifndef LOOM_CORE_TEXT_H
#define LOOM_CORE_TEXT_H

#include <rankloom/status.h>
#include <rankloom/text.h>

/* All zero is empty. A failed allocation is remembered, later additions do nothing, and loom_text_take() reports it: a writer checks once. */
typedef struct loom_text {
    char *at; /* NULL or zero-terminated */
    size_t length, capacity;
    bool failed;
} loom_text;

void loom_text_add(loom_text *text, const char *format, ...) LOOM_PRINTF(2, 3);
void loom_text_add_bytes(loom_text *text, const char *bytes, size_t length);
/* `value` as a JSON string with its quotes; bytes that are no UTF-8 become U+FFFD. NULL writes null. */
void loom_text_add_json(loom_text *text, const char *value);
/* `value` as character data of XML: & < > " become entities, control characters a question mark. NULL writes nothing. */
void loom_text_add_xml(loom_text *text, const char *value);
/* The shortest decimal that reads back as `value`, with '.' in every locale; null when it is not finite (JSON has no word for it). */
void loom_text_add_number(loom_text *text, double value);
/* `lines` with every line of more than `width` characters broken at a space; what follows a break is indented by `indent`. A word that is
 * wider stays whole. */
void loom_text_add_wrapped(loom_text *text, const char *lines, int width, int indent);
enum { LOOM_TEXT_WIDTH = 100 }; /* columns of what commands say */
/* The same of a whole text: hands it out wrapped, or fails, as loom_text_take() does. */
loom_status loom_text_take_wrapped(loom_text *text, int width, int indent, char **out);

/* A member of a JSON object, "name":value, and what comes behind it. */
void loom_text_add_field(loom_text *text, const char *name, double value, const char *after);

/* Hands the text out (the caller frees it with loom_text_free()), or fails with LOOM_E_MEMORY and leaves *out. Empties `text`. */
loom_status loom_text_take(loom_text *text, char **out);
void loom_text_drop(loom_text *text); /* frees what was written; leaves it empty and usable */
const char *loom_text_so_far(const loom_text *text); /* "" when empty; valid until the next addition */

#endif
