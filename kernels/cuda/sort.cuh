/* A stable sort of small integers that needs no atomics and whose result is one whatever runs first: radix passes of eight bits. */
#ifndef LOOM_KERNELS_CUDA_SORT_CUH
#define LOOM_KERNELS_CUDA_SORT_CUH

#include "kernels/cuda/device.cuh"

/* Values first .. first + bound - 1 have keys 0 .. bound - 1; all others have the key `bound` and so come last. */
typedef struct loom_sort_values {
    const int32_t *value;
    int64_t count, first, bound;
} loom_sort_values;

/* [count] each, on the device. */
typedef struct loom_sorted {
    int32_t *key;   /* ascending */
    int32_t *index; /* where each came from; ascending among equal keys */
} loom_sorted;

size_t loom_gpu_sort_bytes(int64_t count);
/* `scratch` has loom_gpu_sort_bytes() and holds the result, too. count > 0. */
int loom_gpu_sort(const loom_gpu *gpu, loom_sort_values values, void *scratch, loom_sorted *sorted);

/* The first row of `key`, ascending, whose key is at least `least`. */
LOOM_DEVICE int64_t first_not_below(const int32_t *key, int64_t count, int64_t least)
{
    int64_t low = 0, high = count;

    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (key[middle] < least)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#endif
