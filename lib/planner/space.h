/* The space of legal layouts: which degrees there are to choose from. Follows the rules of loom_layout_resolve(); a test compares. */
#ifndef LOOM_PLANNER_SPACE_H
#define LOOM_PLANNER_SPACE_H

#include "planner/limits.h"

enum { LOOM_MOST_CHOICES = 512 };

typedef struct loom_choices {
    int at[LOOM_MOST_CHOICES];
    int count;
} loom_choices;
/* Those of `more` that `choices` do not have yet. */
void loom_choices_add_new(loom_choices *choices, const loom_choices *more);

typedef struct loom_space {
    const loom_job *job;
    const loom_limits *limits;
    int world;
} loom_space;

void loom_space_tp(const loom_space *space, loom_choices *choices);
void loom_space_cp(const loom_space *space, int tp, loom_choices *choices);
void loom_space_sequence_parallel(const loom_space *space, int tp, int cp, loom_choices *choices); /* 0, 1 */
void loom_space_cp_kind(const loom_space *space, int tp, int cp, loom_choices *choices);
void loom_space_recompute(const loom_space *space, loom_choices *choices);
void loom_space_pp(const loom_space *space, int tp, int cp, loom_choices *choices); /* those that leave a legal dp */
void loom_space_micro_batch(const loom_space *space, int dp, loom_choices *choices);
void loom_space_etp(const loom_space *space, int stage_ranks, loom_choices *choices);
void loom_space_ep(const loom_space *space, int etp, int stage_ranks, loom_choices *choices);
void loom_space_zero(const loom_space *space, int copies, loom_choices *choices);

/* Schedules of a pipeline with the chunks each takes. */
typedef struct loom_schedules {
    loom_pipeline pipeline[LOOM_MOST_CHOICES];
    int vpp[LOOM_MOST_CHOICES];
    int count;
} loom_schedules;
void loom_space_schedules(const loom_space *space, int pp, int64_t micro_batches, loom_schedules *schedules);

/* Rank orders that differ in what they place where: permutations of the axes above 1, the others behind. */
enum { LOOM_MOST_ORDERS = 24 };
typedef struct loom_orders {
    loom_axis at[LOOM_MOST_ORDERS][4];
    int count;
} loom_orders;
void loom_space_orders(int tp, int cp, int dp, int pp, loom_orders *orders);

/* "tp 1, 2, 4 or 8": what the space leaves for a degree, at most eight of them; "" for fields that are words. Returns text. */
char *loom_space_values(const loom_space *space, loom_field field, char *text, size_t bytes);

/* How many layouts the space holds. */
uint64_t loom_space_count(const loom_space *space);

#endif
