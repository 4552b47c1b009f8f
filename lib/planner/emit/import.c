/* Foreign files and command lines as layouts: which dialect, and the rules at the end. */
#include "planner/emit/emit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static loom_import_fn *const importers[LOOM_DIALECTS] = {
    [LOOM_DIALECT_MEGATRON] = loom_import_megatron,   [LOOM_DIALECT_NEMO] = loom_import_nemo,       [LOOM_DIALECT_TORCHTITAN] = loom_import_torchtitan,
    [LOOM_DIALECT_DEEPSPEED] = loom_import_deepspeed, [LOOM_DIALECT_MAXTEXT] = loom_import_maxtext,
};

void loom_import_note(loom_importing *in, const char *format, ...)
{
    char line[320];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    loom_text_add(&in->notes, "%s\n", line);
}

static bool has(const char *text, size_t bytes, const char *word)
{
    return memmem(text, bytes, word, strlen(word)) != NULL;
}

static bool ends_in(const char *source, const char *end)
{
    size_t length = strlen(source), tail = strlen(end);

    return length >= tail && strcmp(source + length - tail, end) == 0;
}

loom_status loom_import_recognise(const char *source, const char *text, size_t bytes, loom_dialect *dialect)
{
    if (ends_in(source, ".toml") || has(text, bytes, "[parallelism]"))
        *dialect = LOOM_DIALECT_TORCHTITAN;
    else if (ends_in(source, ".json"))
        *dialect = LOOM_DIALECT_DEEPSPEED;
    else if (has(text, bytes, "--micro-batch-size") || has(text, bytes, "-model-parallel-size") || has(text, bytes, "--seq-length"))
        *dialect = LOOM_DIALECT_MEGATRON;
    else if (has(text, bytes, "per_device_batch_size") || has(text, bytes, "ici_") || has(text, bytes, "dcn_"))
        *dialect = LOOM_DIALECT_MAXTEXT;
    else if (has(text, bytes, "model_parallel_size") || has(text, bytes, "use_distributed_optimizer") || has(text, bytes, "global_batch_size"))
        *dialect = LOOM_DIALECT_NEMO;
    else if (has(text, bytes, "train_micro_batch_size_per_gpu") || has(text, bytes, "zero_optimization"))
        *dialect = LOOM_DIALECT_DEEPSPEED;
    else
        return loom_fail(LOOM_E_INVALID, "%s looks like none of: a Megatron command line, Megatron-Bridge or MaxText YAML, torchtitan TOML, DeepSpeed JSON; --from says which", source);
    return LOOM_OK;
}

loom_status loom_import(const char *source, const char *text, size_t bytes, loom_dialect dialect, const loom_model *model, int world, loom_layout *layout, char **notes)
{
    loom_layout read = *layout;
    loom_importing in = {.source = source, .text = text, .bytes = bytes, .model = model, .world = world, .layout = &read};
    loom_status status;

    if (dialect >= LOOM_DIALECTS || !importers[dialect])
        return loom_fail(LOOM_E_UNSUPPORTED, "%s is emitted only; megatron, nemo, torchtitan, deepspeed and maxtext are read", loom_dialect_name(dialect));
    status = importers[dialect](&in);
    if (status == LOOM_OK && (status = loom_layout_check(&read, model, in.world)) < 0)
        status = loom_fail(status, "%s: says a layout that breaks rules:\n%s", source, loom_last_error());
    if (status == LOOM_OK && notes) {
        loom_text_add(&in.notes, "%s", ""); /* a text even when there is nothing to note */
        status = loom_text_take(&in.notes, notes);
    }
    if (status == LOOM_OK)
        *layout = read;
    loom_text_drop(&in.notes);
    return status;
}
