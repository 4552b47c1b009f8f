/* Tables with a header line: RFC 4180, quoted fields, any column order. */
#ifndef LOOM_PLANNER_CSV_H
#define LOOM_PLANNER_CSV_H

#include <rankloom/status.h>

typedef struct loom_csv {
    char *text;
    char **fields; /* [rows + 1][columns]; row 0 is the header */
    int rows, columns;
} loom_csv;

/* Every row must have as many fields as the header. */
loom_status loom_csv_load(const char *path, loom_csv *csv);
void loom_csv_free(loom_csv *csv);
/* The field of row `row` (from 0, header not counted) in the column called `name`; "" when there is no such column. */
const char *loom_csv_at(const loom_csv *csv, int row, const char *name);

#endif
