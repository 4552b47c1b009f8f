/* A step rehearsed in virtual time, on all ranks: the very schedule that will run, the group operations of every axis, and whatever goes wrong on
 * purpose: slow devices, slow links, jitter, failures. docs/simulate.md says what is taken to wait for what. */
#ifndef RANKLOOM_SIMULATE_H
#define RANKLOOM_SIMULATE_H

#include <rankloom/goodput.h>
#include <rankloom/planner.h>
#include <rankloom/schedule.h>
LOOM_BEGIN

/* Something about one rank takes `factor` times as long as it should. */
typedef struct loom_handicap {
    int rank;
    double factor;
} loom_handicap;

typedef struct loom_rehearsal_request {
    const loom_plan_request *plan; /* model, topology, batch, constants; borrowed, as all here */
    const loom_layout *layout;     /* whole and legal */
    const loom_handicap *slow;     /* computing */
    const loom_handicap *slow_link; /* everything that the rank sends or receives */
    int n_slow, n_slow_link;
    double jitter; /* standard deviation of every action's time on every rank, as a share; 0: none. Then the planner's allowance for it is left out */
    uint64_t seed;
    const loom_run_request *run; /* what failures cost a run of such steps; its step_s, devices and topology are taken from the rehearsal. NULL: only the step */
} loom_rehearsal_request;

/* One stage, on the pipeline that makes it end last. All seconds; what is listed first, plus the wait, is end_s. */
typedef struct loom_rehearsed_stage {
    double compute_s, tp_s, cp_s, ep_s, dp_s; /* in its passes; communication as far as it is exposed */
    double wait_s;                            /* for messages of other stages: bubble, and messages themselves */
    double end_s;                             /* of its last pass */
    double reduction_s;                       /* of gradients, exposed, behind that */
} loom_rehearsed_stage;

/* Why a disturbed step is longer than the undisturbed one, told on the stage whose own passes grew most:
 * passes_s + links_s - hidden_s + behind_s is the difference of the two steps. */
typedef struct loom_slowdown {
    int stage;
    double passes_s;      /* longer computing of its passes */
    double links_s;       /* longer exposed communication in them */
    double hidden_s;      /* of these, in waits that the stage had anyway; negative: it waits so much longer for others */
    double behind_s;      /* reduction, optimizer and allowance, and what other stages add after its last pass */
    double compute_share; /* of the undisturbed step that the stage computes: times factor - 1, the most that one slow rank can cost */
} loom_slowdown;

typedef struct loom_rehearsal {
    double step_s;
    double undisturbed_s;            /* the same without handicaps and jitter */
    loom_slowdown slowdown;          /* all zero when nothing is injected */
    double part_s[LOOM_TIME_PARTS];  /* of the busiest stage; sum to step_s */
    double bubble;                   /* idle over busy, of that stage's pipeline */
    int busiest;                     /* stage */
    int replicas, replicas_together; /* pipelines; how many dp ranks run one in lockstep (experts over dp, ZeRO-3) */
    int timelines;                   /* pipelines that were run: alike ones are run once */
    int last_replica;                /* the pipeline that ends last: its first dp index */
    int64_t actions;                 /* of one pipeline */
    int stages;
    loom_rehearsed_stage *stage;     /* [stages] */
    char *critical_path;             /* in words */
    loom_run run;                    /* all zero when none was asked for */
} loom_rehearsal;

LOOM_API loom_status loom_rehearse(const loom_rehearsal_request *request, loom_rehearsal *rehearsal);
LOOM_API void loom_rehearsal_free(loom_rehearsal *rehearsal);
/* The caller frees *text with loom_text_free(). */
LOOM_API loom_status loom_rehearsal_describe(const loom_rehearsal_request *request, const loom_rehearsal *rehearsal, char **text);
LOOM_API loom_status loom_rehearsal_json(const loom_rehearsal_request *request, const loom_rehearsal *rehearsal, char **text);
/* The chosen ranks' step, as it was rehearsed, as a trace that Perfetto opens. */
LOOM_API loom_status loom_rehearsal_trace(const loom_rehearsal_request *request, const loom_rehearsal *rehearsal, const int *ranks, int count, char **text);

LOOM_END
#endif
