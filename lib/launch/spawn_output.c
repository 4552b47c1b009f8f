/* Whole lines from the ranks' pipes to the runner's stdout and stderr. */
#include "launch/spawn_output.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 16 << 10, LONGEST_LINE = 1 << 20, FULL = 1 << 20 };

bool loom_sink_is_full(const loom_sink *sink)
{
    return sink->unsent.size > FULL;
}

void loom_sink_write(loom_sink *sink)
{
    size_t size = sink->unsent.size < PIPE_BUF ? sink->unsent.size : PIPE_BUF; /* poll() promises room for that much */

    if (size == 0)
        return;
    ssize_t n = write(sink->fd, sink->unsent.data, size);
    if (n > 0)
        loom_bytes_drop_front(&sink->unsent, (size_t)n);
    else if (n < 0 && errno != EAGAIN && errno != EINTR) {
        sink->broken = true;
        loom_bytes_free(&sink->unsent);
    }
}

static void emit(loom_line_stream *stream, const uint8_t *line, size_t size)
{
    loom_bytes *unsent = &stream->sink->unsent;

    if (stream->sink->broken)
        return;
    loom_bytes_append(unsent, stream->prefix, strlen(stream->prefix));
    loom_bytes_append(unsent, line, size);
    loom_bytes_append_u8(unsent, '\n');
    unsent->failed = false; /* out of memory: this line is lost, those before and after are not */
}

/* Emits the complete lines; what is left is the beginning of one. A line beyond all measure is cut. */
static void emit_lines(loom_line_stream *stream)
{
    loom_bytes *line = &stream->line;
    size_t done = 0;

    for (const uint8_t *end; (end = memchr(line->data + done, '\n', line->size - done)); done = (size_t)(end - line->data) + 1)
        emit(stream, line->data + done, (size_t)(end - line->data) - done);
    loom_bytes_drop_front(line, done);
    if (line->size >= LONGEST_LINE) {
        emit(stream, line->data, line->size);
        line->size = 0;
    }
}

void loom_line_stream_read(loom_line_stream *stream)
{
    uint8_t buffer[READ_BYTES];
    ssize_t n = read(stream->fd, buffer, sizeof buffer);

    if (n > 0) {
        loom_bytes_append(&stream->line, buffer, (size_t)n);
        stream->line.failed = false;
        if (stream->line.size)
            emit_lines(stream);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        loom_line_stream_close(stream);
    }
}

void loom_line_stream_close(loom_line_stream *stream)
{
    if (stream->fd < 0)
        return;
    close(stream->fd);
    stream->fd = -1;
    if (stream->line.size)
        emit(stream, stream->line.data, stream->line.size);
    loom_bytes_free(&stream->line);
}
