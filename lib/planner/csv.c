/* RFC 4180 tables. Fields are unquoted in place, so the whole table is one buffer and an index. */
#include "planner/csv.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"

enum { LIMIT_BYTES = 256 << 20 };

/* Ends one field at *text, unquoting it in place. Returns the character that ended it: ',' '\n' or 0; -1: a quote never closes. */
static int take_field(char **text, char **field)
{
    char *read = *text, *write = *text;
    int end;

    *field = write;
    if (*read == '"') {
        read++;
        while (*read && !(read[0] == '"' && read[1] != '"')) {
            read += read[0] == '"';
            *write++ = *read++;
        }
        if (*read++ != '"')
            return -1;
    }
    while (*read && *read != ',' && *read != '\n')
        *write++ = *read++;
    end = *read;
    if (write > *field && write[-1] == '\r' && end != ',')
        write--;
    *text = end ? read + 1 : read;
    *write = '\0';
    return end;
}

static loom_status grow(loom_csv *csv, size_t *capacity, size_t count)
{
    if (count < *capacity)
        return LOOM_OK;
    *capacity = *capacity ? 2 * *capacity : 4096;
    char **more = realloc(csv->fields, *capacity * sizeof *more);
    if (!more)
        return loom_fail(LOOM_E_MEMORY, "no memory for a table of %zu fields", *capacity);
    csv->fields = more;
    return LOOM_OK;
}

static loom_status split(const char *path, loom_csv *csv)
{
    size_t count = 0, capacity = 0;
    char *at = csv->text;
    int line = 1, in_row = 0;

    while (*at) {
        loom_status status = grow(csv, &capacity, count);
        if (status < 0)
            return status;
        int end = take_field(&at, &csv->fields[count]);
        if (end < 0)
            return loom_fail(LOOM_E_INVALID, "%s:%d: a quote is opened and never closed", path, line);
        count++;
        in_row++;
        if (end == ',' && *at)
            continue;
        if (in_row == 1 && !csv->fields[count - 1][0]) { /* an empty line */
            count--;
        } else if (line == 1) {
            csv->columns = in_row;
        } else if (in_row != csv->columns) {
            return loom_fail(LOOM_E_INVALID, "%s: row %d has %d fields, the header has %d", path, line, in_row, csv->columns);
        }
        in_row = 0;
        line++;
    }
    csv->rows = csv->columns ? (int)(count / (size_t)csv->columns) - 1 : 0;
    return LOOM_OK;
}

loom_status loom_csv_load(const char *path, loom_csv *csv)
{
    loom_csv c = {0};
    size_t bytes;
    loom_status status = loom_file_read(path, LIMIT_BYTES, &c.text, &bytes);

    if (status < 0)
        return status;
    status = split(path, &c);
    if (status >= 0 && c.rows < 1)
        status = loom_fail(LOOM_E_INVALID, "%s: no rows under the header", path);
    if (status < 0) {
        loom_csv_free(&c);
        return status;
    }
    *csv = c;
    return LOOM_OK;
}

void loom_csv_free(loom_csv *csv)
{
    free(csv->text);
    free(csv->fields);
    *csv = (loom_csv){0};
}

const char *loom_csv_at(const loom_csv *csv, int row, const char *name)
{
    for (int i = 0; i < csv->columns; i++)
        if (strcmp(csv->fields[i], name) == 0)
            return csv->fields[(size_t)(row + 1) * csv->columns + i];
    return "";
}
