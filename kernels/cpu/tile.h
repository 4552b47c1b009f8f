/* The inner product of everything: C = A B or C += A B over all of k, tile by tile, a tile's sums in registers.
 *
 * A is read element by element (any two strides), B in vectors (contiguous columns), so neither has to be packed: a copy is worth its price
 * only where rows lie so far apart that they fight for the same cache lines. Each element of C is one chain of additions over k in order:
 * its bits do not depend on where the tile lies. */
#ifndef LOOM_KERNELS_TILE_H
#define LOOM_KERNELS_TILE_H

#include "kernels/cpu/isa.h"

/* Rows and vectors whose sums, with what feeds them, fill the registers. Every height is code of its own, and a sanitizer looks at each of
 * its hundreds of accesses: there tiles are low, so that a build takes seconds. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LOW_TILES
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOW_TILES
#endif
#if defined(__AVX512F__) && !defined(LOW_TILES)
enum { TILE_ROWS = 12 };
#elif defined(__AVX2__) && !defined(LOW_TILES)
enum { TILE_ROWS = 6 };
#else
enum { TILE_ROWS = 4 };
#endif
enum { TILE_COLS = 2 * LANES };

typedef struct tile_operands {
    const float *a;
    int64_t a_row, a_step; /* from one row to the next, from one k to the next */
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc, k;
    bool add; /* to what C holds */
} tile_operands;

/* C [rows, cols] of any size. */
#define tile_product ISA(tile_product)
void tile_product(tile_operands o, int64_t rows, int64_t cols);

#endif
