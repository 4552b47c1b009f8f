/* Reads recorded exchanges. */
#include "trace.h"

#include "check.h"

static void read_chunk(trace_record *record, const char *line)
{
    assert_true(record && record->n_chunks < TRACE_CHUNKS);
    trace_chunk *chunk = &record->chunks[record->n_chunks++];
    const char *hex = line + 2;

    chunk->from_client = line[0] == '>';
    for (; hex[0] && hex[0] != '\n'; hex += 2) {
        unsigned byte;
        assert_int_equal(sscanf(hex, "%2x", &byte), 1);
        assert_true(chunk->size < TRACE_BYTES);
        chunk->data[chunk->size++] = (uint8_t)byte;
    }
}

static trace_record *begin_record(trace *t, const char *line)
{
    const char *end = strrchr(line, ']'), *arrow = strstr(line, "] ->");

    assert_true(t->n_records < TRACE_RECORDS);
    trace_record *record = &t->records[t->n_records++];
    if (arrow)
        end = arrow;
    assert_non_null(end);
    snprintf(record->name, sizeof record->name, "%.*s", (int)(end - line - 1), line + 1);
    record->left_open = strstr(end, "closed") == NULL;
    return record;
}

trace *trace_load(const char *file)
{
    char path[256], line[2 * TRACE_BYTES + 16];
    trace *t = calloc(1, sizeof *t);
    trace_record *record = NULL;

    assert_non_null(t);
    snprintf(path, sizeof path, "tcpstore_traces/%s", file);
    FILE *stream = fopen(test_data(path), "r");
    if (!stream)
        fail_msg("no file %s", test_data(path));
    while (fgets(line, sizeof line, stream)) {
        if (line[0] == '[')
            record = begin_record(t, line);
        else if (line[0] == '>' || line[0] == '<')
            read_chunk(record, line);
        else
            assert_true(line[0] == '#' || line[0] == '\n');
    }
    fclose(stream);
    assert_true(t->n_records > 10);
    return t;
}

const trace_record *trace_find(const trace *t, const char *name)
{
    for (int i = 0; i < t->n_records; i++)
        if (strcmp(t->records[i].name, name) == 0)
            return &t->records[i];
    return NULL;
}
