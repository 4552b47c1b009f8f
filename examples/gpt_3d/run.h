/* RUN.yaml: everything a training run is told. */
#ifndef GPT_3D_RUN_H
#define GPT_3D_RUN_H

#include "data.h"

enum { GPT_PATH_BYTES = 4096 };

typedef struct gpt_run {
    loom_model model;
    char init[GPT_PATH_BYTES]; /* weights to start from; "": from the seed */
    struct {
        char path[GPT_PATH_BYTES];
        gpt_tokenizer tokenizer;
        gpt_order order;
        bool packed; /* documents end with token `separator`; else the text is one */
        int32_t separator;
    } data;
    struct {
        int64_t steps, global_batch, micro_batch, seq, warmup, seed; /* seq: as the data has it; ranks may hold padding behind it */
        double lr, min_lr;
        loom_adamw_config adamw;
        bool eager; /* enqueues each step anew, also where a graph could be replayed */
    } train;
    loom_ep_config experts; /* how tokens reach them */
    loom_layout layout; /* resolved and checked for the world; not yet when it is to be planned */
    bool planned;       /* layout: auto. gpt_plan() fills the layout */
    char topology[GPT_PATH_BYTES]; /* what a plan is made for; "": measured */
    loom_device_kind device;
    bool device_auto; /* CUDA where it is there, else CPU */
    struct {
        char dir[GPT_PATH_BYTES], metrics[GPT_PATH_BYTES], trace[GPT_PATH_BYTES], plot[GPT_PATH_BYTES]; /* "": none */
        int64_t sample; /* tokens of text to generate at the end */
        bool save;
    } output;
} gpt_run;

/* Reads `path` and the assignments "a.b=value" of the command line for a world of `world` ranks, `node_ranks` of them on a node (0: all). Paths in the file are relative to it, paths in
 * assignments to the working directory. Every problem of the file is in the one message. */
loom_status gpt_run_load(const char *path, const char *const *assignments, int count, int world, int node_ranks, gpt_run *run);

#endif
