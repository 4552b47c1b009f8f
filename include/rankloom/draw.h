/* Pictures of a plan, and the page that holds them: SVG and HTML without anything from outside, for light and dark. The timeline of a bare schedule is
 * loom_schedule_svg(). Callers free *text with loom_text_free(). */
#ifndef RANKLOOM_DRAW_H
#define RANKLOOM_DRAW_H

#include <rankloom/planner.h>
LOOM_BEGIN

/* Where every rank sits: a box a node of `topology` (NULL: a box a stage), a cell a rank, one colour a stage. The first `most` ranks are drawn, the
 * others told in words. */
LOOM_API loom_status loom_map_svg(const loom_layout *layout, const loom_topology *topology, int most, char **text);

/* The layout's schedule with the planner's times of this model on this machine. `micro_batches` 0: all of a step; else that many at most, as many as
 * the schedule takes. */
LOOM_API loom_status loom_timeline_svg(const loom_plan_request *request, const loom_layout *layout, int micro_batches, char **text);
/* Bytes that each stage holds over the same time: what is always there, on top the activations of what is in flight, and the limit. At its highest a
 * stage's curve is what loom_plan_predict() says. */
LOOM_API loom_status loom_memory_svg(const loom_plan_request *request, const loom_layout *layout, int micro_batches, char **text);

/* One layout of the space that the search goes through. */
typedef struct loom_plan_point {
    int tp, cp, pp, vpp, dp, ep, etp, zero;
    int64_t micro_batch;
    loom_recompute recompute;
    double step_s, bytes; /* of the fullest stage */
    bool fits;
} loom_plan_point;
/* Draws up to `count` legal layouts at random (the same ones each time), with the best layers for each stage, whether they fit or not, predicted as
 * loom_plan_predict() does. *found: how many; fewer when their pipelines are long. */
LOOM_API loom_status loom_plan_sample(const loom_plan_request *request, int count, loom_plan_point *points, int *found);
/* Step time over the fullest stage: the sample, the plan's layouts with their numbers, its front, the limit. */
LOOM_API loom_status loom_scatter_svg(const loom_plan *plan, const loom_plan_point *points, int count, char **text);

/* The whole plan as one page: tables, the four pictures, reasons, the layout as a file. Needs no network and no script. */
LOOM_API loom_status loom_plan_html(const loom_plan_request *request, const loom_plan *plan, char **text);

LOOM_END
#endif
