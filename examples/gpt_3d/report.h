/* What a person sees of a run. Only world rank 0 prints. */
#ifndef GPT_3D_REPORT_H
#define GPT_3D_REPORT_H

#include "trainer.h"

/* Layout, groups, parameters, memory by use of this rank. */
void gpt_report_start(const gpt_trainer *trainer);
/* A progress line: redrawn in place on a terminal, else now and then a line of its own. */
void gpt_report_step(const gpt_trainer *trainer, int64_t step, const gpt_step *result);
void gpt_report_end(const gpt_trainer *trainer, const gpt_step *last, double seconds);

/* --dry-run: rehearses one step of every pipeline stage (each at its first tp, cp, dp rank) on a dry device and prints layout, memory and traffic of each. */
loom_status gpt_dry_run(const gpt_run *run);

#endif
