/* The dialects: names, versions, and what all emitters share. */
#include "planner/emit/emit.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    const char *name, *version;
    loom_emit_fn *emit;
} dialects[LOOM_DIALECTS] = {
    [LOOM_DIALECT_MEGATRON] = {"megatron", "Megatron-LM core 0.16 to main of August 2026", loom_emit_megatron},
    [LOOM_DIALECT_NEMO] = {"nemo", "Megatron-Bridge, main of August 2026", loom_emit_nemo},
    [LOOM_DIALECT_TORCHTITAN] = {"torchtitan", "torchtitan v0.2.2, the last that reads TOML", loom_emit_torchtitan},
    [LOOM_DIALECT_DEEPSPEED] = {"deepspeed", "DeepSpeed 0.19", loom_emit_deepspeed},
    [LOOM_DIALECT_MAXTEXT] = {"maxtext", "MaxText, main of August 2026", loom_emit_maxtext},
    [LOOM_DIALECT_ACCELERATE] = {"accelerate", "Accelerate's ParallelismConfig", loom_emit_accelerate},
    [LOOM_DIALECT_AXOLOTL] = {"axolotl", "Axolotl YAML", loom_emit_axolotl},
    [LOOM_DIALECT_VERL] = {"verl", "veRL overrides, Megatron actor", loom_emit_verl},
};

const char *loom_dialect_name(loom_dialect dialect)
{
    return dialect < LOOM_DIALECTS ? dialects[dialect].name : "unknown";
}

const char *loom_dialect_version(loom_dialect dialect)
{
    return dialect < LOOM_DIALECTS ? dialects[dialect].version : "unknown";
}

void loom_emit_cannot(loom_emission *e, const char *format, ...)
{
    char line[400];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    loom_text_add(&e->reasons, "%s%s", e->reasons.length ? "\n" : "", line);
}

bool loom_emit_usual_order(const loom_layout *l)
{
    return l->order[0] == LOOM_AXIS_TP && l->order[1] == LOOM_AXIS_CP && l->order[2] == LOOM_AXIS_DP && l->order[3] == LOOM_AXIS_PP;
}

void loom_emit_no_pipeline(loom_emission *e, const char *why)
{
    if (e->layout->pp > 1 || e->layout->vpp > 1)
        loom_emit_cannot(e, "pp=%d vpp=%d: %s", e->layout->pp, e->layout->vpp, why);
}

void loom_emit_no_experts(loom_emission *e, const char *why)
{
    if (e->layout->ep > 1 || e->layout->etp > 1)
        loom_emit_cannot(e, "ep=%d etp=%d: %s", e->layout->ep, e->layout->etp, why);
}

void loom_emit_usual_order_only(loom_emission *e)
{
    const loom_axis *order = e->layout->order;

    if (!loom_emit_usual_order(e->layout))
        loom_emit_cannot(e, "order=[%s, %s, %s, %s]: the rank order is fixed, [tp, cp, dp, pp]", loom_axis_name(order[0]), loom_axis_name(order[1]),
                         loom_axis_name(order[2]), loom_axis_name(order[3]));
}

void loom_emit_even_only(loom_emission *e, const char *instead)
{
    if (!e->even)
        loom_emit_cannot(e, "layers_per_stage: chunks of unequal length have no word here; %s", instead);
}

static bool is_even(const loom_layout *l)
{
    for (int c = 1; c < l->n_chunks; c++)
        if (l->chunk_layers[c] != l->chunk_layers[0])
            return false;
    return true;
}

static loom_status check(const loom_layout *l, loom_dialect dialect)
{
    if (dialect >= LOOM_DIALECTS)
        return loom_fail(LOOM_E_INVALID, "dialect %d: there are %d", (int)dialect, LOOM_DIALECTS);
    if (l->global_batch < 1 || l->seq < 1)
        return loom_fail(LOOM_E_INVALID, "the layout says no %s; frameworks want it", l->global_batch < 1 ? "global_batch" : "seq");
    return LOOM_OK;
}

loom_status loom_emit(const loom_layout *layout, const loom_model *model, loom_dialect dialect, char **text)
{
    loom_layout whole = *layout; /* resolving may fill what is open */
    loom_status status = check(layout, dialect);

    if (status < 0 || (status = loom_layout_check(&whole, model, 0)) < 0)
        return status;
    loom_emission e = {.layout = &whole, .model = model, .world = loom_layout_world(&whole), .micro_batches = loom_layout_micro_batches(&whole), .even = is_even(&whole)};
    dialects[dialect].emit(&e);
    if (e.reasons.length > 0)
        status = loom_fail(LOOM_E_UNSUPPORTED, "%s (%s) cannot say this layout:\n%s", loom_dialect_name(dialect), loom_dialect_version(dialect), loom_text_so_far(&e.reasons));
    else
        status = loom_text_take(&e.out, text);
    loom_text_drop(&e.out);
    loom_text_drop(&e.reasons);
    return status;
}
