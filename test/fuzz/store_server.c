/* Requests of anybody to the store that we serve. Two clients share it: the second waits for keys that the first may set. However the bytes are cut,
 * the answers are the same. */
#include "fuzz.h"
#include "launch/store_service.h"

#include <assert.h>
#include <string.h>

static const uint8_t validate[] = {0x00, 0xce, 0xf7, 0x85, 0x3c};
static const uint8_t wait_for_k1[] = {0x06, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, '/', 'k', '1'};

/* What came of it, folded into two numbers. */
typedef struct outcome {
    bool open;
    size_t replies, woken;
    uint64_t sum;
} outcome;

static outcome serve(const uint8_t *data, size_t size, size_t step)
{
    loom_store_service service = {0};
    loom_store_session *waiting = loom_store_session_open(&service), *session = loom_store_session_open(&service);
    outcome result = {.open = true};

    if (!waiting || !session || !loom_store_session_feed(waiting, validate, sizeof validate) ||
        !loom_store_session_feed(waiting, wait_for_k1, sizeof wait_for_k1)) {
        loom_store_service_free(&service);
        return result;
    }
    for (size_t at = 0; at < size && result.open; at += step)
        result.open = loom_store_session_feed(session, data + at, size - at < step ? size - at : step);

    const loom_bytes *replies = loom_store_session_replies(session);
    result.replies = replies->size;
    result.woken = loom_store_session_replies(waiting)->size;
    for (size_t i = 0; i < replies->size; i++)
        result.sum = result.sum * 31 + replies->data[i];
    loom_store_service_free(&service);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    outcome whole = serve(data, size, size ? size : 1), bytes = serve(data, size, 1), odd = serve(data, size, 7);

    assert(memcmp(&whole.replies, &bytes.replies, sizeof whole - offsetof(outcome, replies)) == 0 && whole.open == bytes.open);
    assert(memcmp(&whole.replies, &odd.replies, sizeof whole - offsetof(outcome, replies)) == 0 && whole.open == odd.open);
    return 0;
}
