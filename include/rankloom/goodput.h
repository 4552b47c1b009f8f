/* What failures cost a long run, and the calculator answers that go with it. Pure arithmetic; docs/goodput.md has the derivation. */
#ifndef RANKLOOM_GOODPUT_H
#define RANKLOOM_GOODPUT_H

#include <rankloom/model.h>
#include <rankloom/topology.h>
LOOM_BEGIN

/* --- failures that somebody counted ------------------------------------------------------------------------------------------- */

/* `failures` on `devices` in `hours`. All texts are static. */
typedef struct loom_failure_record {
    const char *name; /* "llama3" */
    const char *what; /* "Llama 3 405B, 16,384 H100, 54 days: 419 unexpected interruptions" */
    const char *source;
    double devices, hours, failures;
} loom_failure_record;
LOOM_API bool loom_failure_record_at(int index, loom_failure_record *record); /* false past the last; the first is the default */
LOOM_API loom_status loom_failure_record_find(const char *name, loom_failure_record *record);
LOOM_API double loom_failure_device_hours(const loom_failure_record *record); /* hours of one device between failures */

/* --- intervals --------------------------------------------------------------------------------------------------------------------
 * Failures come at random (exponential) with `mtbf_s` between them, also while a checkpoint is written or the job restarts. Work goes in pieces of
 * `interval_s`, each followed by a checkpoint that stops training for `checkpoint_s`; a failure costs the piece under way and `restart_s`. All in
 * seconds, all positive but restart_s, which may be 0. */
LOOM_API double loom_interval_young(double mtbf_s, double checkpoint_s); /* sqrt(2 d M) */
LOOM_API double loom_interval_daly(double mtbf_s, double checkpoint_s);  /* Daly 2006, higher order; M from d = 2 M on */
LOOM_API double loom_interval_exact(double mtbf_s, double checkpoint_s); /* (1 - x) e^x = e^(-d/M), interval = x M: where goodput peaks */
/* Useful share of the time: T / (M e^(R/M) (e^((T+d)/M) - 1)). */
LOOM_API double loom_goodput_share(double mtbf_s, double interval_s, double checkpoint_s, double restart_s);
/* The fewest spares with which more than that many of `mean` expected absences (Poisson) happen with a chance of at most `risk`. */
LOOM_API int loom_spares(double mean, double risk);

/* --- a run ---------------------------------------------------------------------------------------------------------------------------- */

/* Zero where nothing is known or wanted, unless said otherwise. */
typedef struct loom_goodput_request {
    int devices;         /* that train */
    int node_devices;    /* that leave together when one fails; 0: 8 */
    double device_hours; /* between failures of one device; 0: the first record */
    double checkpoint_s; /* that a checkpoint stops training; 0: 40, what BLOOM's took */
    double write_s;      /* until it is safe, under training: a failure costs that much work more */
    double detect_s;     /* from a failure until it is noticed; 0: restart_s has it */
    double restart_s;    /* from then until training goes on; 0: 600, MegaScale's "detect and diagnose" */
    double interval_s;   /* between checkpoints; 0: the exact optimum */
    double repair_s;     /* until a failed node is back; 0: one day, assumed */
    double spare_risk;   /* of having too few spares at a moment; 0: 0.01 */
    double tokens;       /* to train on */
    double tokens_per_s; /* of all devices together while nothing fails */
    double reserved_s;   /* how long the devices are ours */
    double price;        /* of one device and hour */
    double spot_price;         /* the same when they may be taken away; 0: no comparison */
    double reclaims_per_hour;  /* of one device */
    double notice_s;           /* warning before it goes */
    double replace_s;          /* until another takes its place, on top of restart_s */
} loom_goodput_request;

/* What one way of running gives. Shares sum to 1. */
typedef struct loom_goodput_split {
    double mtbf_s, young_s, daly_s, exact_s, interval_s;
    double useful, checkpoint, rework, restart; /* shares of the time */
} loom_goodput_split;

typedef struct loom_goodput {
    double device_hours;
    const char *origin; /* of device_hours; static */
    loom_goodput_split run;
    double first_order; /* 1 - d/T - T/(2M) - R/M, for comparison; may be negative */
    double nodes_down;  /* at a moment, on average */
    int spares;         /* nodes */
    double days, cost;  /* for the tokens; NaN when not known */
    double useful_price; /* of a device-hour that counts */
    bool has_spot, spot_graceful; /* graceful: the notice is long enough for a checkpoint */
    loom_goodput_split spot;
    double spot_days, spot_cost, spot_useful_price, spot_break_even; /* break-even: the spot price at which both cost the same */
} loom_goodput;

/* LOOM_E_INVALID when numbers cannot be right, or when the tokens take longer than the reservation: with how long they take, and the tokens or the
 * devices that would fit. */
LOOM_API loom_status loom_goodput_of(const loom_goodput_request *request, loom_goodput *goodput);
/* In words, with formulas; the published records beside the rate. The caller frees *text with loom_text_free(). */
LOOM_API loom_status loom_goodput_describe(const loom_goodput_request *request, const loom_goodput *goodput, char **text);

/* The same figures as JSON, null where one is not known. The caller frees *text. */
LOOM_API loom_status loom_goodput_json(const loom_goodput_request *request, const loom_goodput *goodput, char **text);

/* --- a run, failure by failure ----------------------------------------------------------------------------------------------------------
 * The same arithmetic played in virtual time: steps, a checkpoint every few of them, and failures where they are wished or where chance puts them.
 * A failure stops all ranks: what was done since the last safe checkpoint is lost, it takes detect_s to notice and restart_s to go on, and its
 * node is away for repair_s. A failure meanwhile begins that anew. */

/* `rank` fails, and its node leaves with it. */
typedef struct loom_run_failure {
    int rank;
    double at_s; /* from the start of the run */
} loom_run_failure;

typedef struct loom_run_request {
    loom_goodput_request costs; /* devices, rate, checkpoint, write, detect, restart, interval, repair: with loom_goodput_of()'s defaults; the rest is not looked at */
    double step_s;
    int64_t steps;   /* until that many are done and a checkpoint has them; 0: until period_s is over */
    double period_s;
    const loom_topology *topology; /* says on which node a rank is; NULL: nodes of costs.node_devices */
    const loom_run_failure *failures; /* borrowed; in any order */
    int n_failures;
    bool drawn;    /* more failures at random, at the rate of `costs` */
    uint64_t seed; /* of those */
    int spares;    /* nodes that wait to replace a failed one; negative: always enough */
} loom_run_request;

typedef enum loom_run_doing { LOOM_RUN_STEP, LOOM_RUN_CHECKPOINT, LOOM_RUN_RESTART } loom_run_doing;
typedef struct loom_run_event {
    int rank, node;
    bool drawn;
    double at_s;
    loom_run_doing doing;    /* when it failed */
    int64_t step, safe_step; /* the one under way, from 1, or the last before the checkpoint; the last one that a safe checkpoint holds */
    double lost_s;           /* work and checkpoints since then */
    double spare_s;          /* that it waits for a node, once noticed */
} loom_run_event;
enum { LOOM_RUN_EVENTS = 1000 }; /* that are kept; the sums have all */

typedef struct loom_run {
    double seconds;                                                      /* of the whole run, and the sum of these: */
    double useful_s, checkpoint_s, lost_s, detect_s, restart_s, spare_s; /* lost_s: work done again, and checkpoints with it */
    double goodput;                                                      /* useful_s over seconds */
    double expected;         /* the goodput of `costs` at this interval by formula; NaN unless failures are drawn */
    double mtbf_s;           /* by the rate of `costs` */
    int64_t steps;           /* done and counted */
    int64_t interval_steps;  /* between checkpoints: interval_s in whole steps */
    int64_t failures;
    int most_away;           /* nodes at a time */
    loom_run_event *event;   /* the first n_events, in time */
    int n_events;
} loom_run;

LOOM_API loom_status loom_run_play(const loom_run_request *request, loom_run *run);
LOOM_API void loom_run_free(loom_run *run);
/* In words, and as JSON. The caller frees *text. */
LOOM_API loom_status loom_run_describe(const loom_run_request *request, const loom_run *run, char **text);
LOOM_API loom_status loom_run_json(const loom_run_request *request, const loom_run *run, char **text);

/* --- calculator -------------------------------------------------------------------------------------------------------------------------
 * Each answer is a line or two with its formula. Free *text with loom_text_free(). */
typedef struct loom_calculation {
    const loom_model *model;
    int64_t seq;      /* 0: the model's */
    double peak;      /* flop/s of one device */
    int devices;      /* 0: 1 */
    double mfu;       /* share, attention square counted whole */
    double goodput;   /* 0: 1 */
    double tokens;    /* for the time of a count */
    double tokens_per_s;
    double seconds, device_hours, flop, money, price; /* budgets; money needs price, of a device-hour */
} loom_calculation;
/* flop of one token, forward and backward; see loom_model_flop() for `causal`. */
LOOM_API double loom_flop_per_token(const loom_model *model, int64_t seq, bool causal);
LOOM_API loom_status loom_calculate_mfu(const loom_calculation *c, double *whole, double *causal, char **text);
/* Tokens that the tightest of the given budgets buys. */
LOOM_API loom_status loom_calculate_tokens(const loom_calculation *c, double *tokens, char **text);
LOOM_API loom_status loom_calculate_time(const loom_calculation *c, double *seconds, char **text);
/* Weights, gradients, optimizer by ZeRO stage on `devices`, in bytes of one device: bytes[stage]. */
LOOM_API loom_status loom_calculate_memory(const loom_calculation *c, double bytes[4], char **text);
/* The same answers as JSON objects, with the lines in "lines". */
LOOM_API loom_status loom_calculate_mfu_json(const loom_calculation *c, char **text);
LOOM_API loom_status loom_calculate_tokens_json(const loom_calculation *c, char **text);
LOOM_API loom_status loom_calculate_time_json(const loom_calculation *c, char **text);
LOOM_API loom_status loom_calculate_memory_json(const loom_calculation *c, char **text);

LOOM_END
#endif
