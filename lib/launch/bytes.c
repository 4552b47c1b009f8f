/* A growing byte buffer and views into one. */
#include "launch/bytes.h"

#include <stdlib.h>
#include <string.h>

loom_span loom_span_of_text(const char *text)
{
    return (loom_span){(const uint8_t *)text, strlen(text)};
}

bool loom_span_equal(loom_span a, loom_span b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

bool loom_bytes_reserve(loom_bytes *bytes, size_t more)
{
    if (bytes->failed || more > SIZE_MAX / 2 - bytes->size) {
        bytes->failed = true;
        return false;
    }
    if (bytes->size + more <= bytes->capacity)
        return true;

    size_t capacity = bytes->capacity ? bytes->capacity : 256;
    while (capacity < bytes->size + more)
        capacity *= 2;

    uint8_t *data = realloc(bytes->data, capacity);
    if (!data) {
        bytes->failed = true;
        return false;
    }
    bytes->data = data;
    bytes->capacity = capacity;
    return true;
}

void loom_bytes_append(loom_bytes *bytes, const void *data, size_t size)
{
    if (size == 0 || !loom_bytes_reserve(bytes, size))
        return;
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

void loom_bytes_append_u8(loom_bytes *bytes, uint8_t value)
{
    loom_bytes_append(bytes, &value, sizeof value);
}

void loom_bytes_append_u32(loom_bytes *bytes, uint32_t value)
{
    loom_bytes_append(bytes, &value, sizeof value);
}

void loom_bytes_append_u64(loom_bytes *bytes, uint64_t value)
{
    loom_bytes_append(bytes, &value, sizeof value);
}

void loom_bytes_append_string(loom_bytes *bytes, loom_span string)
{
    loom_bytes_append_u64(bytes, string.size);
    loom_bytes_append(bytes, string.data, string.size);
}

void loom_bytes_drop_front(loom_bytes *bytes, size_t count)
{
    if (count == 0)
        return;
    memmove(bytes->data, bytes->data + count, bytes->size - count);
    bytes->size -= count;
}

void loom_bytes_free(loom_bytes *bytes)
{
    free(bytes->data);
    *bytes = (loom_bytes){0};
}
