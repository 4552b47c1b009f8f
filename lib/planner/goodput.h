/* What the formulas of goodput and a run played failure by failure share: one set of defaults, one split, one way to write times. */
#ifndef LOOM_PLANNER_GOODPUT_H
#define LOOM_PLANNER_GOODPUT_H

#include <rankloom/goodput.h>

#include "core/text.h"

loom_status loom_goodput_check(const loom_goodput_request *request); /* that every number can be right */
loom_goodput_request loom_goodput_defaults(const loom_goodput_request *request);
/* The expected shares; `request` with its defaults. */
loom_goodput_split loom_goodput_split_of(const loom_goodput_request *request, double mtbf_s);
/* The length of a sequence and the devices of a calculation, by default the model's and one. */
int64_t loom_calculation_seq(const loom_calculation *c);
double loom_calculation_devices(const loom_calculation *c);
/* A time in the unit that people use for it: 2.75 h, 12.3 min, 40 s, 54 d. */
void loom_add_duration(loom_text *out, double seconds);
/* What loom_run_describe() says, and the members of loom_run_json()'s object, inside another text. */
void loom_run_add_text(loom_text *out, const loom_run_request *request, const loom_run *run);
void loom_run_add_json(loom_text *out, const loom_run_request *request, const loom_run *run);

#endif
