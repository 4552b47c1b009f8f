/* Amounts with units, as people type them on a command line: 16GB, 900GB/s, 80GiB, 5us. */
#ifndef CLI_QUANTITY_H
#define CLI_QUANTITY_H

#include <rankloom/status.h>

/* B, kB, MB, GB, TB (1000) and KiB, MiB, GiB, TiB (1024); `per_second` wants "/s" behind, Gbit/s and Gb/s count bits. */
loom_status loom_quantity_bytes(const char *text, bool per_second, double *bytes);
/* s, ms, us, ns, min, h, d. */
loom_status loom_quantity_seconds(const char *text, double *seconds);
/* The same for each text that is not NULL. */
typedef struct quantity_seconds {
    const char *text;
    double *seconds;
} quantity_seconds;
loom_status quantity_read_seconds(const quantity_seconds *times, int count);

#endif
