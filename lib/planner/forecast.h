/* What the parts of a forecast share: a rank, its stage, and what lies on it. */
#ifndef LOOM_PLANNER_FORECAST_H
#define LOOM_PLANNER_FORECAST_H

#include <rankloom/forecast.h>
#include <rankloom/schedule.h>
#include <rankloom/sizes.h>

/* Parameters that are reduced alike lie in one flat buffer. */
typedef enum loom_param_class {
    LOOM_CLASS_PLAIN, /* over dp x cp */
    LOOM_CLASS_TP,    /* then over all of tp: each rank has a part of the gradient */
    LOOM_CLASS_KV,    /* then over the tp ranks that share kv heads */
    LOOM_CLASS_EXPERT, /* over edp */
    LOOM_CLASS_TIED,  /* then over the two stages that hold the embedding */
    LOOM_CLASSES,
} loom_param_class;

typedef struct loom_rank_view {
    const loom_model *model;
    const loom_layout *layout;
    const loom_schedule *schedule;
    loom_coords here;
    int stage;
    loom_rank_shape shape;
    loom_cp_shape cp;
    int64_t exchanged; /* elements that an attention keeps in its exchanged form */
    loom_expert_shape experts;
    int64_t micro_batches;
    int64_t dense_layers, expert_layers; /* of this stage */
    bool embedding, head;
    bool tied_across; /* embedding and head are copies on two stages */
    int64_t elements[LOOM_CLASSES]; /* of each class's flat buffer */
    /* Of classes whose gradients are cut, where a unit is used at a time: of the largest; and of all that are reduced, and gathered, in a micro-batch. */
    int64_t largest[LOOM_CLASSES], scattered[LOOM_CLASSES], gathered[LOOM_CLASSES];
} loom_rank_view;

/* loom_forecast_rank() of what the engine trains, with the layout's schedule at hand. */
loom_status loom_forecast_on(const loom_model *model, const loom_layout *layout, const loom_schedule *schedule, int rank, const loom_expert_rows *rows,
                             loom_rank_forecast *forecast);

/* Ranks that share the buffer of a class, and over whom optimizer state is spread. */
int loom_class_parts(const loom_layout *layout, loom_param_class param_class);
/* Whether LOOM_ZERO_STATE, … of a class is cut over them. */
bool loom_class_cuts(const loom_layout *layout, loom_param_class param_class, int what);
/* forecast_params.c: fills view->elements; returns the parameters without padding of the buffers. */
uint64_t loom_view_params(loom_rank_view *view);
/* forecast_memory.c */
loom_status loom_forecast_memory(const loom_rank_view *view, loom_rank_forecast *forecast);
/* forecast_traffic.c */
void loom_forecast_traffic(const loom_rank_view *view, loom_rank_forecast *forecast);
/* Rows of one layer and micro-batch under a balanced load. */
void loom_balanced_rows(const loom_rank_view *view, loom_expert_rows *rows);

#endif
