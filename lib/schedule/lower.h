/* The plain lowering. */
#ifndef LOOM_SCHEDULE_LOWER_H
#define LOOM_SCHEDULE_LOWER_H

#include "schedule/schedule.h"

/* Adds sends right behind their producers, and receives only where they are used: what a program does that posts nothing ahead. Works on orders that
 * cannot run, too. */
loom_status loom_lower_at_use(loom_schedule *schedule);

#endif
