/* A growing byte buffer and views into one, for messages of the store. Numbers go in the byte order of the machine, as in PyTorch. */
#ifndef LAUNCH_BYTES_H
#define LAUNCH_BYTES_H

#include <rankloom/status.h>

typedef struct loom_span { /* borrowed bytes; keys and values may hold any byte, NUL included */
    const uint8_t *data;
    size_t size;
} loom_span;

typedef struct loom_bytes {
    uint8_t *data;
    size_t size, capacity;
    bool failed; /* memory ran out once; the content is not to be used */
} loom_bytes;

loom_span loom_span_of_text(const char *text);
bool loom_span_equal(loom_span a, loom_span b);

/* Makes room for `more` bytes behind size; false (and failed) when memory ran out. */
bool loom_bytes_reserve(loom_bytes *bytes, size_t more);
void loom_bytes_append(loom_bytes *bytes, const void *data, size_t size);
void loom_bytes_append_u8(loom_bytes *bytes, uint8_t value);
void loom_bytes_append_u32(loom_bytes *bytes, uint32_t value);
void loom_bytes_append_u64(loom_bytes *bytes, uint64_t value);
void loom_bytes_append_string(loom_bytes *bytes, loom_span string); /* u64 length, then the bytes */
void loom_bytes_drop_front(loom_bytes *bytes, size_t count);
void loom_bytes_free(loom_bytes *bytes);

#endif
