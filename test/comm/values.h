/* Values whose sums over ranks are exact in every dtype, so that results are compared with ==. */
#ifndef LOOM_TEST_COMM_VALUES_H
#define LOOM_TEST_COMM_VALUES_H

#include <rankloom/comm.h>

double value_of(int rank, size_t index); /* a small integer, 0 to 3 */
double value_get(const void *memory, size_t index, loom_dtype dtype);
void value_set(void *memory, size_t index, loom_dtype dtype, double value);
void value_fill(void *memory, int rank, size_t first, size_t count, loom_dtype dtype);
/* Fails the test at the first element that is not what value_fill() wrote. */
void value_expect(const void *memory, int rank, size_t first, size_t count, loom_dtype dtype);
double value_reduced(int size, size_t index, loom_dtype dtype, loom_reduce_op op); /* over ranks 0 to size-1, as dtype holds it */

#endif
