/* The wire protocol of PyTorch's TCPStore, version 2.2 and later: operations, limits, and where a request ends.
 *
 * Little-endian in practice (the byte order of the peers, never converted). A request is an opcode byte and fields, without a length in
 * front; a string is a u64 length and its bytes. What each operation answers is told in store_server.c. */
#ifndef LAUNCH_PROTOCOL_H
#define LAUNCH_PROTOCOL_H

#include "launch/bytes.h"

typedef enum loom_store_op {
    LOOM_OP_VALIDATE = 0x00, /* u32 magic; the first message, once */
    LOOM_OP_SET = 0x01,
    LOOM_OP_COMPARE_SET = 0x02,
    LOOM_OP_GET = 0x03,
    LOOM_OP_ADD = 0x04,
    LOOM_OP_CHECK = 0x05,
    LOOM_OP_WAIT = 0x06,
    LOOM_OP_GET_NUM_KEYS = 0x07,
    LOOM_OP_DELETE_KEY = 0x08,
    LOOM_OP_APPEND = 0x09,
    LOOM_OP_MULTI_GET = 0x0a,
    LOOM_OP_MULTI_SET = 0x0b,
    LOOM_OP_CANCEL_WAIT = 0x0c,
    LOOM_OP_PING = 0x0d, /* u32 nonce, echoed */
    LOOM_OP_QUEUE_PUSH = 0x0e,
    LOOM_OP_QUEUE_POP = 0x0f,
    LOOM_OP_QUEUE_LEN = 0x10,
    LOOM_OP_LIST_KEYS = 0x11,
    LOOM_OP_BARRIER = 0x12,
} loom_store_op;

#define LOOM_STORE_MAGIC 0x3C85F7CEu

/* The limits of PyTorch's server (libuv), and one of our own for a whole request: its 131072 keys of 8 KiB each would be 1 GiB. */
enum {
    LOOM_STORE_KEY_BYTES = 8192,
    LOOM_STORE_VALUE_BYTES = 8 << 20,
    LOOM_STORE_KEYS = 131072,
    LOOM_STORE_REQUEST_BYTES = 64 << 20,
};

/* Replies of one byte. */
enum { LOOM_STORE_READY = 0x00, LOOM_STORE_NOT_READY = 0x01, LOOM_STORE_WAIT_CANCELED = 0x01 };

/* Finds the end of the request at the head of a buffer that grows. Remembers how far it came, so that input byte by byte costs no more
 * than input in one piece. Start each request with an all-zero scan. */
typedef struct loom_request_scan {
    size_t offset;         /* of the next field */
    uint64_t strings_left; /* of the fields that are strings */
    bool counted;          /* the fields' number is known */
} loom_request_scan;

typedef enum loom_scan_result { LOOM_SCAN_MORE, LOOM_SCAN_COMPLETE, LOOM_SCAN_ILLEGAL } loom_scan_result;

/* COMPLETE: the request is data[0 .. scan->offset). ILLEGAL: unknown operation or a length above its limit; the connection is lost,
 * because nobody can tell where the next request begins. A length is judged before its bytes are there. */
loom_scan_result loom_request_scan_bytes(loom_request_scan *scan, const uint8_t *data, size_t size);

/* Reads the fields of a complete request in order. */
typedef struct loom_field_reader {
    const uint8_t *next;
} loom_field_reader;

uint32_t loom_field_u32(loom_field_reader *reader);
uint64_t loom_field_u64(loom_field_reader *reader);
loom_span loom_field_string(loom_field_reader *reader);

#endif
