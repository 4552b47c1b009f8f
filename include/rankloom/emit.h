/* Layouts in the words of other frameworks, and back. docs/emit.md has the table of words and what each cannot say. */
#ifndef RANKLOOM_EMIT_H
#define RANKLOOM_EMIT_H

#include <rankloom/layout.h>
#include <rankloom/text.h>
LOOM_BEGIN

typedef enum loom_dialect {
    LOOM_DIALECT_MEGATRON,   /* command line; Megatron-LM core 0.16 to main of August 2026 */
    LOOM_DIALECT_NEMO,       /* Megatron-Bridge YAML; main of August 2026 */
    LOOM_DIALECT_TORCHTITAN, /* TOML; v0.2.2, the last that reads TOML */
    LOOM_DIALECT_DEEPSPEED,  /* JSON; 0.19 */
    LOOM_DIALECT_MAXTEXT,    /* YAML; main of August 2026 */
    LOOM_DIALECT_ACCELERATE, /* Python's ParallelismConfig; emitted only */
    LOOM_DIALECT_AXOLOTL,    /* YAML; emitted only */
    LOOM_DIALECT_VERL,       /* Hydra overrides of the Megatron actor; emitted only */
    LOOM_DIALECTS,
} loom_dialect;
LOOM_API const char *loom_dialect_name(loom_dialect dialect); /* "megatron", "nemo", … */
LOOM_API const char *loom_dialect_version(loom_dialect dialect); /* which one we speak */

/* `layout` is whole and legal for `model`, and says its batch and seq. LOOM_E_UNSUPPORTED with every reason, one a line, when the dialect cannot say
 * the layout: nothing is left out or rounded. What the framework itself does differently stands as a comment in the text where it has comments. */
LOOM_API loom_status loom_emit(const loom_layout *layout, const loom_model *model, loom_dialect dialect, char **text);

/* What a foreign file or command line says, as a layout of ours: resolved, and checked by every rule.
 *
 * `world` is needed where the dialect leaves dp open (megatron, nemo; torchtitan with -1); 0: what a torchrun in front of a command says, or what
 * the file implies. `model` may be NULL: then rules of the model are not looked at and even stages stay open. `layout` starts as it is handed in
 * (loom_layout_default() and what seq the dialect does not carry). *notes (NULL: not wanted): defaults of the framework that were filled in, one a
 * line, free with loom_text_free(). All problems of the text come in one message. */
LOOM_API loom_status loom_import(const char *source, const char *text, size_t bytes, loom_dialect dialect, const loom_model *model, int world,
                                 loom_layout *layout, char **notes);
/* By the name's end and what the text holds; LOOM_E_INVALID when it looks like none. */
LOOM_API loom_status loom_import_recognise(const char *source, const char *text, size_t bytes, loom_dialect *dialect);

LOOM_END
#endif
