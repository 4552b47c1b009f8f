/* How often devices fail and what that costs, as options of more than one command. */
#ifndef CLI_FAILURE_COSTS_H
#define CLI_FAILURE_COSTS_H

#include "options.h"

#include <rankloom/goodput.h>

typedef struct failure_costs {
    double device_hours;
    const char *record, *checkpoint, *write, *detect, *restart, *interval, *repair;
} failure_costs;

/* Rows of a command's table of options; `at` is the offset of its failure_costs. */
#define FAILURE_COSTS_OPTIONS(at)                                                                                                                                                          \
    {"device-hours", 0, LOOM_OPTION_REAL, (at) + offsetof(failure_costs, device_hours), .low = 1e-3, .high = 1e12, .takes = "H", .help = "hours of one device between failures (Llama 3's, 50677)"}, \
    {"record", 0, LOOM_OPTION_TEXT, (at) + offsetof(failure_costs, record), .takes = "NAME", .help = "the failures of a published run instead: llama3, rsc1, bloom"},                        \
    {"checkpoint", 0, LOOM_OPTION_TEXT, (at) + offsetof(failure_costs, checkpoint), .takes = "TIME", .help = "that a checkpoint stops training (40s)"},                                      \
    {"write", 0, LOOM_OPTION_TEXT, (at) + offsetof(failure_costs, write), .takes = "TIME", .help = "until a checkpoint is safe, under training (0s)"},                                       \
    {"detect", 0, LOOM_OPTION_TEXT, (at) + offsetof(failure_costs, detect), .takes = "TIME", .help = "from a failure until it is noticed (0s: --restart has it)"},                           \
    {"restart", 0, LOOM_OPTION_TEXT, (at) + offsetof(failure_costs, restart), .takes = "TIME", .help = "from then until training goes on (10min)"},                                          \
    {"interval", 0, LOOM_OPTION_TEXT, (at) + offsetof(failure_costs, interval), .takes = "TIME", .help = "between checkpoints (the best one)"},                                              \
    {"repair", 0, LOOM_OPTION_TEXT, (at) + offsetof(failure_costs, repair), .takes = "TIME", .help = "until a failed node is back (24h)"}

/* Puts what was given into `request`. */
loom_status failure_costs_read(const failure_costs *costs, loom_goodput_request *request);

#endif
