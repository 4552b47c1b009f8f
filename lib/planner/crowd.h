/* Ranks that share cores, in a timeline. */
#ifndef LOOM_PLANNER_CROWD_H
#define LOOM_PLANNER_CROWD_H

#include <rankloom/schedule.h>

#include "planner/cost.h"

/* Where ranks share cores the costs of a timeline are those of a rank while all are at work. While only some of the stages are, each gets more of the
 * cores, up to one for each rank: those stretches of the timeline become as much shorter, and all its times move with them. Nothing moves
 * where everybody has a core. */
loom_status loom_crowd_timeline(const loom_machine *machine, const loom_schedule *schedule, loom_timeline *timeline);

#endif
