/* layout: auto. */
#ifndef GPT_3D_PLAN_H
#define GPT_3D_PLAN_H

#include "run.h"

/* Fills run->layout with the fastest one for these ranks: rank 0 plans, with the figures of run->topology or of a short measurement, and the others
 * receive what it took. Collective over `world`. */
loom_status gpt_plan(gpt_run *run, loom_comm *world);
/* The same for a world that is only rehearsed; needs run->topology. */
loom_status gpt_plan_dry(gpt_run *run, int world);

#endif
