/* Where kernels run at once and in the caller (kernels/cuda/shim/alone.c), the double of cuBLASLt has no device behind it: all memory is the device's, and
 * nothing fails but what a test asks for. */
#include "double.h"
#include "shim_maker.h"

#include <string.h>

const char *double_failing;

bool double_fails(const char *function)
{
    return double_failing && !strcmp(function, double_failing);
}

bool double_is_device(const void *pointer, size_t bytes)
{
    (void)bytes;
    return pointer != NULL;
}
