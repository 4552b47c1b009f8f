/* Where a request of the store protocol ends, and reading its fields. */
#include "launch/protocol.h"

#include <string.h>

/* What follows the opcode: fixed bytes, then strings (perhaps behind a u64 that counts their groups), then fixed bytes. The first string
 * of a group is a key, the others are values. */
typedef struct request_shape {
    bool known, counted; /* counted: a u64 in front says how many groups of strings follow */
    uint8_t head_bytes, strings, tail_bytes;
} request_shape;

static const request_shape shapes[] = {
    [LOOM_OP_VALIDATE] = {true, .head_bytes = 4},
    [LOOM_OP_SET] = {true, .strings = 2},
    [LOOM_OP_COMPARE_SET] = {true, .strings = 3},
    [LOOM_OP_GET] = {true, .strings = 1},
    [LOOM_OP_ADD] = {true, .strings = 1, .tail_bytes = 8},
    [LOOM_OP_CHECK] = {true, .counted = true, .strings = 1},
    [LOOM_OP_WAIT] = {true, .counted = true, .strings = 1},
    [LOOM_OP_GET_NUM_KEYS] = {true},
    [LOOM_OP_DELETE_KEY] = {true, .strings = 1},
    [LOOM_OP_APPEND] = {true, .strings = 2},
    [LOOM_OP_MULTI_GET] = {true, .counted = true, .strings = 1},
    [LOOM_OP_MULTI_SET] = {true, .counted = true, .strings = 2},
    [LOOM_OP_CANCEL_WAIT] = {true},
    [LOOM_OP_PING] = {true, .head_bytes = 4},
    [LOOM_OP_QUEUE_PUSH] = {true, .strings = 2},
    [LOOM_OP_QUEUE_POP] = {true, .strings = 1},
    [LOOM_OP_QUEUE_LEN] = {true, .strings = 1},
    [LOOM_OP_LIST_KEYS] = {true},
    [LOOM_OP_BARRIER] = {true, .strings = 1, .tail_bytes = 8},
};

static uint64_t load_u64(const uint8_t *data)
{
    uint64_t value;

    memcpy(&value, data, sizeof value);
    return value;
}

/* Opcode, fixed head and the number of strings. */
static loom_scan_result scan_head(loom_request_scan *scan, const request_shape *shape, const uint8_t *data, size_t size)
{
    size_t head = 1 + (size_t)shape->head_bytes;
    uint64_t groups = 1;

    if (size < head + (shape->counted ? 8 : 0))
        return LOOM_SCAN_MORE;
    if (shape->counted) {
        groups = load_u64(data + head);
        if (groups > LOOM_STORE_KEYS)
            return LOOM_SCAN_ILLEGAL;
        head += 8;
    }
    scan->strings_left = groups * shape->strings;
    scan->offset = head;
    scan->counted = true;
    return LOOM_SCAN_COMPLETE;
}

static loom_scan_result scan_string(loom_request_scan *scan, const request_shape *shape, const uint8_t *data, size_t size)
{
    if (size - scan->offset < 8)
        return LOOM_SCAN_MORE;

    bool is_key = scan->strings_left % shape->strings == 0;
    uint64_t length = load_u64(data + scan->offset);
    if (length > (is_key ? LOOM_STORE_KEY_BYTES : LOOM_STORE_VALUE_BYTES) || scan->offset + 8 + length > LOOM_STORE_REQUEST_BYTES)
        return LOOM_SCAN_ILLEGAL;
    if (size - scan->offset - 8 < length)
        return LOOM_SCAN_MORE;
    scan->offset += 8 + (size_t)length;
    scan->strings_left--;
    return LOOM_SCAN_COMPLETE;
}

loom_scan_result loom_request_scan_bytes(loom_request_scan *scan, const uint8_t *data, size_t size)
{
    loom_scan_result result = LOOM_SCAN_COMPLETE;

    if (size == 0)
        return LOOM_SCAN_MORE;
    if (data[0] >= sizeof shapes / sizeof shapes[0] || !shapes[data[0]].known)
        return LOOM_SCAN_ILLEGAL;

    const request_shape *shape = &shapes[data[0]];
    if (!scan->counted)
        result = scan_head(scan, shape, data, size);
    while (result == LOOM_SCAN_COMPLETE && scan->strings_left > 0)
        result = scan_string(scan, shape, data, size);
    if (result != LOOM_SCAN_COMPLETE)
        return result;
    if (size - scan->offset < shape->tail_bytes)
        return LOOM_SCAN_MORE;
    scan->offset += shape->tail_bytes;
    return LOOM_SCAN_COMPLETE;
}

uint32_t loom_field_u32(loom_field_reader *reader)
{
    uint32_t value;

    memcpy(&value, reader->next, sizeof value);
    reader->next += sizeof value;
    return value;
}

uint64_t loom_field_u64(loom_field_reader *reader)
{
    uint64_t value = load_u64(reader->next);

    reader->next += sizeof value;
    return value;
}

loom_span loom_field_string(loom_field_reader *reader)
{
    uint64_t size = loom_field_u64(reader);
    loom_span string = {reader->next, (size_t)size};

    reader->next += size;
    return string;
}
