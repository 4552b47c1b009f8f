/* Ranks write into pipes; whole lines come out, with the rank in front, never mixed within a line. Nothing here blocks: a terminal that is held, or
 * a slow reader, makes the ranks wait, not the runner. */
#ifndef LAUNCH_SPAWN_OUTPUT_H
#define LAUNCH_SPAWN_OUTPUT_H

#include "launch/bytes.h"

typedef struct loom_sink { /* the runner's stdout or stderr */
    int fd;
    bool broken; /* nobody reads any more: what comes is dropped */
    loom_bytes unsent;
} loom_sink;

typedef struct loom_line_stream { /* one rank's stdout or stderr */
    int fd;                       /* the reading end, non-blocking; -1: at its end */
    char prefix[16];              /* "[3] ", or "" */
    loom_sink *sink;
    loom_bytes line; /* the line under way */
} loom_line_stream;

/* The sink has so much unsent that the streams have to wait. */
bool loom_sink_is_full(const loom_sink *sink);
/* Writes once, no more than a pipe takes for sure. Call when poll() says that it is writable. */
void loom_sink_write(loom_sink *sink);
/* Reads once. At the end of the stream an unfinished last line is finished. */
void loom_line_stream_read(loom_line_stream *stream);
void loom_line_stream_close(loom_line_stream *stream);

#endif
