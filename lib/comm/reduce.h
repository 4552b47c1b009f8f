/* Sums of several ranks' elements in rank order: f32 and the smaller floats in f32, f64 in f64, integers in 64 bits. */
#ifndef LOOM_COMM_REDUCE_H
#define LOOM_COMM_REDUCE_H

#include <rankloom/comm.h>

typedef struct loom_reducer loom_reducer; /* one for each instruction set; constant */

/* The best for this processor, or what RANKLOOM_ISA asks for. All give the same bits. */
loom_status loom_reducer_choose(const loom_reducer **reducer);
/* All that this processor can run, best last (tests). Returns how many. */
int loom_reducer_all(const loom_reducer *reducers[], int capacity);
const char *loom_reducer_name(const loom_reducer *reducer);

/* out[count] = op over r of in[r][count], r ascending. `out` may be one of the inputs, with no other overlap. AVG divides the sum by
 * `ranks` (integers: towards zero). MAX and MIN return NaN if any rank has one. */
void loom_reduce(const loom_reducer *reducer, void *out, const void *const *in, int ranks, size_t count, loom_dtype dtype,
                 loom_reduce_op op);

#endif
