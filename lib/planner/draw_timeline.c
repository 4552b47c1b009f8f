/* The schedule of a layout with the planner's times. */
#include "planner/drawing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

/* Interleaved schedules go round in groups of pp micro-batches, so fewer than all are a multiple of pp. */
static int64_t fewer(const loom_layout *l, int64_t all, int wanted)
{
    int64_t m = (wanted + l->pp - 1) / l->pp * (int64_t)l->pp;

    return wanted <= 0 || m >= all ? all : m;
}

loom_status loom_drawing_open(const loom_plan_request *request, const loom_layout *layout, int micro_batches, loom_drawing *d)
{
    loom_status status;

    memset(d, 0, sizeof *d);
    d->layout = *layout;
    d->all = loom_layout_micro_batches(layout);
    d->micro_batches = (int)fewer(layout, d->all, micro_batches);
    d->layout.global_batch = d->micro_batches * layout->micro_batch * layout->dp;
    d->plan = *request;
    if (d->micro_batches < d->all)
        d->plan.n_measured = 0; /* those were steps of the whole batch */
    d->request = (loom_rehearsal_request){.plan = &d->plan, .layout = &d->layout};
    if ((status = loom_rehearsing_open(&d->request, &d->rehearsing)) < 0)
        return status;
    if ((status = loom_rehearsing_run(&d->rehearsing, LOOM_UNDISTURBED, true, &d->line)) < 0)
        loom_rehearsing_close(&d->rehearsing);
    return status;
}

void loom_drawing_close(loom_drawing *d)
{
    loom_timeline_free(&d->line);
    loom_rehearsing_close(&d->rehearsing);
}

const char *loom_drawing_extent(const loom_drawing *d, char *text, size_t bytes)
{
    if (d->micro_batches < d->all)
        snprintf(text, bytes, "the first %d of %lld micro-batches", d->micro_batches, (long long)d->all);
    else
        snprintf(text, bytes, "%d micro-batch%s", d->micro_batches, d->micro_batches == 1 ? "" : "es");
    return text;
}

loom_status loom_drawing_timeline(const loom_drawing *d, char **text)
{
    const loom_schedule *s = d->rehearsing.schedule;
    char layout[256], extent[64], title[512];

    snprintf(title, sizeof title, "%s: %d stage%s x %d chunk%s, %s, passes and messages; gradients and optimizer come after",
             loom_layout_describe(&d->layout, layout, sizeof layout), s->stages, s->stages == 1 ? "" : "s", s->chunks_per_stage, s->chunks_per_stage == 1 ? "" : "s",
             loom_drawing_extent(d, extent, sizeof extent));
    return loom_schedule_svg(s, &d->line, title, true, text);
}

loom_status loom_timeline_svg(const loom_plan_request *request, const loom_layout *layout, int micro_batches, char **text)
{
    loom_drawing *d = malloc(sizeof *d);
    loom_status status = d ? loom_drawing_open(request, layout, micro_batches, d) : loom_fail(LOOM_E_MEMORY, "no memory for a timeline");

    if (status == LOOM_OK) {
        status = loom_drawing_timeline(d, text);
        loom_drawing_close(d);
    }
    free(d);
    return status;
}
