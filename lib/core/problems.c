/* Collecting, sorting and wording the problems of a file. */
#include "core/problems.h"
#include "core/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SHOWN = 60, MOST_MESSAGE = 15000 };

void loom_text_add_shown(loom_text *text, const char *value)
{
    size_t left = strlen(value), shown = 0;

    while (left && shown < MOST_SHOWN) {
        size_t length = loom_utf8_length(value, left);
        if (length <= 1 && (length == 0 || (unsigned char)*value < 0x20 || *value == 0x7f))
            loom_text_add_bytes(text, "?", 1);
        else
            loom_text_add_bytes(text, value, length);
        length += length == 0;
        value += length;
        left -= length;
        shown += length;
    }
    if (left)
        loom_text_add(text, "…");
}

void loom_problems_add(loom_problems *problems, const char *origin, int line, int column, loom_text *text)
{
    if (problems->count < LOOM_PROBLEMS_KEPT) {
        const char *kept = text->failed ? NULL : loom_arena_copy(&problems->arena, loom_text_so_far(text), text->length);
        problems->at[problems->count] = (loom_problem){origin, line, column, kept ? kept : "(no memory to say what is wrong)"};
    }
    problems->count++;
    loom_text_drop(text);
}

static int by_place(const void *a, const void *b)
{
    const loom_problem *p = a, *q = b;

    if (!p->origin != !q->origin)
        return p->origin ? 1 : -1; /* the file first, then the command line */
    if (p->line != q->line)
        return p->line < q->line ? -1 : 1;
    if (p->column != q->column)
        return p->column < q->column ? -1 : 1;
    return strcmp(p->text, q->text);
}

loom_status loom_problems_finish(loom_problems *problems, const char *source)
{
    size_t kept = problems->count < LOOM_PROBLEMS_KEPT ? problems->count : LOOM_PROBLEMS_KEPT, shown = 0;
    loom_status status = LOOM_OK;
    loom_text text = {0};

    qsort(problems->at, kept, sizeof problems->at[0], by_place);
    for (; shown < kept && text.length < MOST_MESSAGE; shown++) {
        const loom_problem *p = &problems->at[shown];
        loom_text_add(&text, "%s", shown ? "\n" : "");
        if (p->origin) {
            loom_text_add_shown(&text, p->origin);
            loom_text_add(&text, ": %s", p->text);
        } else {
            loom_text_add(&text, "%.300s:%d:%d: %s", source, p->line, p->column, p->text);
        }
    }
    if (shown < problems->count)
        loom_text_add(&text, "\nand %zu more", problems->count - shown);
    if (problems->count)
        status = loom_fail(LOOM_E_INVALID, "%s", loom_text_so_far(&text));
    loom_text_drop(&text);
    loom_problems_free(problems);
    return status;
}

void loom_problems_free(loom_problems *problems)
{
    loom_arena_free(&problems->arena);
    problems->count = 0;
}
