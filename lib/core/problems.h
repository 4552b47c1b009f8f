/* The problems of one file, collected so that a person sees all of them at once. */
#ifndef LOOM_CORE_PROBLEMS_H
#define LOOM_CORE_PROBLEMS_H

#include "core/arena.h"
#include "core/text.h"

#include <rankloom/status.h>

enum { LOOM_PROBLEMS_KEPT = 100 };

typedef struct loom_problem {
    const char *origin; /* what to name instead of the file: an assignment of the command line; NULL: the file */
    int line, column;
    const char *text;
} loom_problem;

/* All zero is an empty list. */
typedef struct loom_problems {
    loom_problem at[LOOM_PROBLEMS_KEPT];
    size_t count; /* of those kept and those beyond */
    loom_arena arena;
} loom_problems;

/* Takes what `text` holds and empties it. */
void loom_problems_add(loom_problems *problems, const char *origin, int line, int column, loom_text *text);
/* LOOM_OK if there are none, else LOOM_E_INVALID with one line each, "source:line:column: text", in the order of the file. Frees the list. */
loom_status loom_problems_finish(loom_problems *problems, const char *source);
void loom_problems_free(loom_problems *problems);

/* Adds somebody's text to a message: at most 60 bytes of it, with control characters shown as '?'. */
void loom_text_add_shown(loom_text *text, const char *value);

#endif
