/* Reads recorded exchanges of PyTorch's store clients and servers (test/data/tcpstore_traces/README.md tells the format). */
#ifndef TEST_LAUNCH_TRACE_H
#define TEST_LAUNCH_TRACE_H

#include "launch/bytes.h"

enum { TRACE_NAME = 64, TRACE_CHUNKS = 8, TRACE_BYTES = 512, TRACE_RECORDS = 64 };

typedef struct trace_chunk { /* consecutive bytes of one direction */
    bool from_client;
    size_t size;
    uint8_t data[TRACE_BYTES];
} trace_chunk;

typedef struct trace_record {
    char name[TRACE_NAME];
    bool left_open; /* edge files: what the server did with the connection */
    int n_chunks;
    trace_chunk chunks[TRACE_CHUNKS];
} trace_record;

typedef struct trace {
    int n_records;
    trace_record records[TRACE_RECORDS];
} trace;

trace *trace_load(const char *file); /* name in test/data/tcpstore_traces; fails the test when it is not as described; free() it */
const trace_record *trace_find(const trace *t, const char *name); /* NULL: not in this file */

#endif
