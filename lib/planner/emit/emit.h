/* Emitting and importing: what the dialects share. */
#ifndef LOOM_PLANNER_EMIT_EMIT_H
#define LOOM_PLANNER_EMIT_EMIT_H

#include <rankloom/emit.h>

#include "core/text.h"

/* One layout on its way out. */
typedef struct loom_emission {
    const loom_layout *layout;
    const loom_model *model;
    int world;
    int64_t micro_batches; /* of a dp rank in a step */
    bool even;             /* every chunk holds as many layers */
    loom_text out;
    loom_text reasons; /* why the dialect cannot say it, one a line */
} loom_emission;

/* One more reason. */
void loom_emit_cannot(loom_emission *e, const char *format, ...) LOOM_PRINTF(2, 3);
/* Whether the rank order is the usual one: tp, cp, dp, pp. */
bool loom_emit_usual_order(const loom_layout *layout);
/* Reasons that several dialects share, each only where the layout has it. */
void loom_emit_no_pipeline(loom_emission *e, const char *why);
void loom_emit_no_experts(loom_emission *e, const char *why);
void loom_emit_usual_order_only(loom_emission *e);
void loom_emit_even_only(loom_emission *e, const char *instead);

typedef void loom_emit_fn(loom_emission *e);
loom_emit_fn loom_emit_megatron, loom_emit_nemo, loom_emit_torchtitan, loom_emit_deepspeed, loom_emit_maxtext, loom_emit_accelerate, loom_emit_axolotl,
    loom_emit_verl;

/* One foreign text on its way in. */
typedef struct loom_importing {
    const char *source, *text;
    size_t bytes;
    const loom_model *model;
    int world;
    loom_layout *layout;
    loom_text notes;
} loom_importing;

void loom_import_note(loom_importing *in, const char *format, ...) LOOM_PRINTF(2, 3);

/* Fills the layout; resolving and checking it comes after. */
typedef loom_status loom_import_fn(loom_importing *in);
loom_import_fn loom_import_megatron, loom_import_nemo, loom_import_torchtitan, loom_import_deepspeed, loom_import_maxtext;

/* TOML as one of our documents: [section] key = value becomes section: {key: value}. Values are strings, numbers, booleans and arrays of them. */
loom_status loom_toml_parse(const char *source, const char *text, size_t bytes, loom_config **config);

#endif
