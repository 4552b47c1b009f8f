/* How good a choice predictions would have made among layouts that somebody measured. */
#ifndef LOOM_PLANNER_CHOICE_H
#define LOOM_PLANNER_CHOICE_H

#include <rankloom/status.h>

/* One measured layout of a group: equal model, devices, batch. measured_s NaN: it did not run. */
typedef struct loom_candidate {
    int group;
    bool one_node, fits; /* fits: predicted memory */
    double predicted_s, measured_s;
} loom_candidate;

typedef struct loom_choice {
    int groups;
    double regret; /* mean over groups: measured time of the layout we would pick over the best measured, less one */
    double worst_regret;
    double rank_correlation; /* mean over groups of three and more: Spearman's rho */
} loom_choice;

/* Over the groups with two and more measured layouts that are on one node, or on several. */
loom_status loom_choice_judge(const loom_candidate *candidates, int n, int n_groups, bool one_node, loom_choice *choice);

#endif
