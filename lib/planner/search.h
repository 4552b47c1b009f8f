/* The search: the fastest layouts of a space, exactly, by branch and bound over factored tables. */
#ifndef LOOM_PLANNER_SEARCH_H
#define LOOM_PLANNER_SEARCH_H

#include "planner/space.h"
#include "planner/split.h"

/* A layout with its time and memory. */
typedef struct loom_found {
    double seconds, fullest; /* fullest: bytes of the fullest stage */
    loom_degrees degrees;
    int chunk_layers[LOOM_MAX_STAGES];
} loom_found;

enum { LOOM_MOST_FOUND = 32 };

typedef struct loom_search {
    loom_space space;
    double limit;      /* bytes a stage may take */
    double below;      /* seconds: slower layouts are of no interest; INFINITY: all are */
    int keep;          /* the fastest `keep` layouts that differ in tp, cp, pp, ep or etp */
    loom_found *found; /* [LOOM_MOST_FOUND], fastest first */
    int n_found;
    uint64_t evaluated; /* layouts whose time was worked out */
    uint64_t too_large; /* of those looked at, how many do not fit, whatever the split */
    size_t peak_bytes;  /* memory that the search took */
} loom_search;

/* Fills `found`. Exact: no layout of the space that fits is faster than found[0] (or than `below`, when nothing is found), under the split that loom_split_best() gives each. */
loom_status loom_search_run(loom_search *search);

/* Time and fullest stage of one layout under its best split; false: it does not fit. `degrees` need not be placed. */
bool loom_search_evaluate(const loom_job *job, loom_degrees *degrees, double limit, loom_found *found);

#endif
