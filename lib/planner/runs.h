/* Published runs as prediction problems: a row with the columns of measured_runs.csv becomes a job and a layout. */
#ifndef LOOM_PLANNER_RUNS_H
#define LOOM_PLANNER_RUNS_H

#include "planner/cost.h"
#include "planner/csv.h"
#include "planner/overrides.h"

typedef struct loom_run {
    const char *id, *source, *gpu, *framework, *model_name, *precision;
    const loom_framework *software; /* whose habits were assumed; NULL: nobody's we know */
    loom_job job;
    loom_degrees degrees;
    int chunk_layers[LOOM_MAX_STAGES];
    int gpus;
    double measured_s, measured_gib;
    bool vpp_open, micro_batch_open; /* not told: the best one is assumed */
    bool measures_allocated;         /* the memory figure is what the framework allocated, not what the device lost */
    bool failed;                     /* the run did not finish */
    char skipped[96];                /* why it cannot be predicted; "": it can */
} loom_run;

void loom_run_read(const loom_csv *csv, int row, const loom_override *overrides, int n_overrides, loom_run *run);
/* Time and memory of the run; fills in what is open. */
loom_status loom_run_predict(loom_run *run, loom_step_cost *cost);

#endif
