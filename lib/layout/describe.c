/* A layout in one line. */
#include <rankloom/layout.h>

#include <stdio.h>

#include "core/text.h"

static void add_above_one(loom_text *line, const char *name, int degree)
{
    if (degree > 1)
        loom_text_add(line, " %s%d", name, degree);
}

char *loom_layout_describe(const loom_layout *l, char *text, size_t bytes)
{
    loom_text line = {0};

    loom_text_add(&line, "tp%d", l->tp);
    add_above_one(&line, "cp", l->cp);
    loom_text_add(&line, " pp%d", l->pp);
    add_above_one(&line, "vpp", l->vpp);
    loom_text_add(&line, " dp%d", l->dp);
    add_above_one(&line, "ep", l->ep);
    add_above_one(&line, "etp", l->etp);
    if (l->zero > 0)
        loom_text_add(&line, " zero%d", l->zero);
    if (l->sequence_parallel)
        loom_text_add(&line, " sp");
    loom_text_add(&line, " %s mb%lld", loom_schedule_kind_name(l->schedule), (long long)l->micro_batch);
    if (l->recompute != LOOM_RECOMPUTE_NONE)
        loom_text_add(&line, " recompute-%s", loom_recompute_name(l->recompute));
    if (l->cp > 1)
        loom_text_add(&line, " %s", loom_cp_kind_name(l->cp_kind));
    snprintf(text, bytes, "%s", loom_text_so_far(&line));
    loom_text_drop(&line);
    return text;
}
