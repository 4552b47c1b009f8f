/* A weight file of anybody: what is accepted covers its data exactly, and every element of it can be read. */
#include "fuzz.h"

#include "checkpoint/safetensors_format.h"

static void read_all(const loom_tensor_view *view)
{
    float values[256];

    for (int64_t first = 0; view->bytes && first < view->count; first += 256) {
        int64_t count = view->count - first < 256 ? view->count - first : 256;
        if (loom_tensor_to_f32(view, first, count, values) < 0)
            return; /* no floating type */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    loom_config *header;
    loom_tensor_view *views;
    size_t count, total = 0;

    loom_clear_error();
    if (loom_safetensors_parse("f", data, size, &header, &views, &count) != LOOM_OK) {
        PROMISE(*loom_last_error());
        return 0;
    }
    const uint8_t *end = data + size;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *at = views[i].data;
        PROMISE(at >= data + LOOM_SAFETENSORS_LENGTH && at <= end && views[i].bytes <= (size_t)(end - at));
        total += views[i].bytes;
        read_all(&views[i]);
    }
    PROMISE(LOOM_SAFETENSORS_LENGTH + total <= size);
    free(views);
    loom_config_free(header);
    return 0;
}
