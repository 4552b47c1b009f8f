/* Files and command lines of other frameworks, by anybody: refused with a reason, or a layout that breaks no rule. The first byte picks the dialect and
 * whether the model and the number of ranks are known. */
#include "fuzz.h"

#include <rankloom/emit.h>

static const loom_model model = {.layers = 32, .hidden = 64, .heads = 16, .kv_heads = 8, .head_dim = 4, .ffn = 128, .vocab = 131, .seq = 8192,
                                 .moe = {.experts = 8, .top_k = 2, .ffn = 32, .every = 1}};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const loom_model *known = size > 0 && data[0] & 8 ? &model : NULL;
    loom_layout layout;
    char *notes = NULL, *yaml = NULL;
    loom_dialect dialect;

    if (size == 0)
        return 0;
    loom_layout_default(known, &layout);
    int world = data[0] & 16 ? 64 : 0;
    const char *text = (const char *)data + 1;
    if (loom_import("job", text, size - 1, (loom_dialect)(data[0] % 8), known, world, &layout, &notes) == LOOM_OK) {
        PROMISE(loom_layout_check(&layout, known, world) == LOOM_OK);
        PROMISE(loom_layout_yaml(&layout, &yaml) == LOOM_OK && yaml && notes);
    }
    (void)loom_import_recognise("job", text, size - 1, &dialect);
    loom_text_free(notes);
    loom_text_free(yaml);
    return 0;
}
