/* Tiles of a product, for every height and width that a block's edge may leave. */
#include "kernels/cpu/tile.h"

/* `rows` and `vectors` are constants where this is inlined; `last` is the columns of the last vector. */
LOOM_INLINE void tile(const tile_operands *o, const int rows, const int vectors, const int last)
{
    vf sum[TILE_ROWS][2];
    const float *a = o->a, *b = o->b;
    const int64_t a_row = o->a_row, a_step = o->a_step, ldb = o->ldb;

#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            sum[r][v] = vf_set(0);
            __builtin_prefetch(o->c + r * o->ldc + v * LANES, 1); /* C is wanted when the sums are ready */
        }
    for (int64_t k = o->k; k > 0; k--, a += a_step, b += ldb) {
        vf b0 = vectors == 2 || last == LANES ? vf_load(b) : vf_load_n(b, last);
        vf b1 = vectors < 2 ? b0 : vf_get(b + LANES, last);

#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            vf scalar = vf_set(a[r * a_row]);

            sum[r][0] = vf_fma(scalar, b0, sum[r][0]);
            if (vectors == 2)
                sum[r][1] = vf_fma(scalar, b1, sum[r][1]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            float *c = o->c + r * o->ldc + v * LANES;
            int n = v == vectors - 1 ? last : LANES;

            vf_put(c, sum[r][v] + vf_get_if(o->add, c, n), n);
        }
}

#define TILE_CASE(rows)                                                                                                                    \
    case rows:                                                                                                                             \
        tile(o, rows, vectors, last);                                                                                                      \
        break;

LOOM_INLINE void tile_of_rows(const tile_operands *o, int rows, const int vectors, const int last)
{
    switch (rows) {
#if defined(__AVX512F__) && !defined(LOW_TILES)
        TILE_CASE(12)
        TILE_CASE(11)
        TILE_CASE(10)
        TILE_CASE(9)
        TILE_CASE(8)
        TILE_CASE(7)
#endif
#if defined(__AVX2__) && !defined(LOW_TILES)
        TILE_CASE(6)
        TILE_CASE(5)
#endif
        TILE_CASE(4)
        TILE_CASE(3)
        TILE_CASE(2)
        TILE_CASE(1)
    }
}
#undef TILE_CASE

/* One function a width, so that the constants above are constants. */
static void tile_two(const tile_operands *o, int rows)
{
    tile_of_rows(o, rows, 2, LANES);
}

static void tile_two_ragged(const tile_operands *o, int rows, int last)
{
    tile_of_rows(o, rows, 2, last);
}

static void tile_one(const tile_operands *o, int rows, int last)
{
    tile_of_rows(o, rows, 1, last);
}

/* Tiles down the rows, strip by strip, so that a strip of B stays in the first cache. They are as high as each other, or nearly: a low one
 * could not keep the arithmetic busy. */
void tile_product(tile_operands o, int64_t rows, int64_t cols)
{
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, height = tiles ? (rows + tiles - 1) / tiles : 0;
    const float *a = o.a;
    float *c = o.c;

    for (int64_t j = 0; j < cols; j += TILE_COLS) {
        int left = cols - j < TILE_COLS ? (int)(cols - j) : TILE_COLS;

        o.a = a;
        o.c = c + j;
        for (int64_t i = 0; i < rows; i += height, o.a += height * o.a_row, o.c += height * o.ldc) {
            int high = rows - i < height ? (int)(rows - i) : (int)height;

            if (left == TILE_COLS)
                tile_two(&o, high);
            else if (left > LANES)
                tile_two_ragged(&o, high, left - LANES);
            else
                tile_one(&o, high, left);
        }
        o.b += TILE_COLS;
    }
}
