/* Copies of matrix rows into scratch memory, straight or transposed, in the forms that tiles read. */
#ifndef LOOM_KERNELS_PANEL_H
#define LOOM_KERNELS_PANEL_H

#include "kernels/cpu/vector.h"

/* `count` rounded up to whole vectors. */
static inline int64_t padded(int64_t count)
{
    return (count + LANES - 1) / LANES * LANES;
}

/* Rows that lie far apart are not foreseen by the processor: they are asked for so many rows ahead. */
enum { ROWS_AHEAD = 8 };

/* to[rows][ld] = from * scale, columns up to ld = padded(cols) filled with zeros. */
static inline void copy_panel(float *to, int64_t ld, const float *from, int64_t ld_from, int64_t rows, int64_t cols, float scale)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += LANES) {
            int n = cols - j < LANES ? (int)(cols - j) : LANES;

            __builtin_prefetch(from + (i + ROWS_AHEAD) * ld_from + j);
            vf_store(to + i * ld + j, vf_get(from + i * ld_from + j, n) * scale);
        }
}

/* to[cols][ld] = from' * scale for LANES rows at most; the lanes of missing rows are zeros. `ahead`: how many elements further memory is
 * asked for, where long rows are walked along; 0: it is near already. */
static inline void transpose_lanes(float *to, int64_t ld, const float *from, int64_t ld_from, int64_t rows, int64_t cols, float scale,
                                   int64_t ahead)
{
    for (int64_t j = 0; j < cols; j += LANES) {
        int n = cols - j < LANES ? (int)(cols - j) : LANES;
        vf block[LANES];

        for (int i = 0; i < LANES; i++) {
            __builtin_prefetch(from + i * ld_from + j + ahead);
            block[i] = i < rows ? vf_get(from + i * ld_from + j, n) * scale : vf_set(0);
        }
        vf_transpose(block);
        for (int i = 0; i < n; i++)
            vf_store(to + (j + i) * ld, block[i]);
    }
}

/* to[cols][ld] = from' * scale for any number of rows up to `ld`, a multiple of LANES; lanes beyond `rows` are zeros. */
static inline void transpose_panel(float *to, int64_t ld, const float *from, int64_t ld_from, int64_t rows, int64_t cols, float scale,
                                   int64_t ahead)
{
    for (int64_t i = 0; i < ld; i += LANES)
        transpose_lanes(to + i, ld, from + i * ld_from, ld_from, rows - i, cols, scale, ahead);
}

#endif
