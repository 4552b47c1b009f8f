/* A layout's schedule in virtual time, as the pictures need it. */
#ifndef LOOM_PLANNER_DRAWING_H
#define LOOM_PLANNER_DRAWING_H

#include <rankloom/draw.h>

#include "planner/rehearse.h"

typedef struct loom_drawing {
    loom_layout layout; /* maybe with fewer micro-batches */
    loom_plan_request plan;
    loom_rehearsal_request request;
    loom_rehearsing rehearsing;
    loom_timeline line;
    int64_t all;        /* micro-batches of a step */
    int micro_batches;  /* that are drawn */
} loom_drawing;

/* `micro_batches` as in loom_timeline_svg(). `drawing` is large: from the heap. */
loom_status loom_drawing_open(const loom_plan_request *request, const loom_layout *layout, int micro_batches, loom_drawing *drawing);
void loom_drawing_close(loom_drawing *drawing);
/* "8 micro-batches" or "the first 8 of 512 micro-batches". */
const char *loom_drawing_extent(const loom_drawing *drawing, char *text, size_t bytes);
loom_status loom_drawing_timeline(const loom_drawing *drawing, char **svg);
/* `prediction` is that of the whole layout. */
loom_status loom_drawing_memory(const loom_drawing *drawing, const loom_prediction *prediction, char **svg);

#endif
