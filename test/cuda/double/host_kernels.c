/* The CPU's kernels as those of the double: what stands in for kernels/cuda/state.c and the bodies below it where a test is about order, lifetimes and
 * messages, and wants many runs. An operation is queued on its stream with a copy of its arguments, and the device's thread computes it. The bodies
 * themselves, compiled for the host, are a hundred times slower; other tests have them. */
#include "double.h"

#include "core/try.h"
#include "kernels/cuda/operations.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct loom_cuda_kernels {
    _Atomic int users; /* the handle, and queued operations: closing waits for nothing */
    loom_device *host; /* of the kernels' workspace */
    loom_stream *stream;
    loom_kernels *kernels;
};

static void drop(loom_cuda_kernels *k)
{
    if (!k || atomic_fetch_sub(&k->users, 1) > 1)
        return;
    loom_kernels_close(k->kernels);
    loom_stream_close(k->stream);
    loom_device_close(k->host);
    free(k);
}

/* On a GPU there is nobody to tell: the numbers would be wrong, or NaN. */
static void insist(loom_status status, const char *operation)
{
    if (status >= 0)
        return;
    fprintf(stderr, "double: %s: %s\n", operation, loom_last_error());
    abort();
}

static loom_status enqueue(struct CUstream_st *stream, void (*run)(void *), void *work, void (*release)(void *))
{
    int error = loom_shim_enqueue(stream, run, work, release);

    return error ? loom_fail(LOOM_E_IO, "the launch failed: %s", cudaGetErrorString((cudaError_t)error)) : LOOM_OK;
}

#define HOST_OPERATION(name, arguments)                                                                                                    \
    typedef struct name##_work {                                                                                                           \
        loom_cuda_kernels *state;                                                                                                          \
        arguments args;                                                                                                                    \
    } name##_work;                                                                                                                         \
                                                                                                                                           \
    static void run_##name(void *context)                                                                                                  \
    {                                                                                                                                      \
        const name##_work *w = context;                                                                                                    \
        insist(w->state->kernels->name(w->state->kernels, &w->args, w->state->stream), #name);                                             \
    }                                                                                                                                      \
                                                                                                                                           \
    static void release_##name(void *context)                                                                                              \
    {                                                                                                                                      \
        name##_work *w = context;                                                                                                          \
        drop(w->state);                                                                                                                    \
        free(w);                                                                                                                           \
    }                                                                                                                                      \
                                                                                                                                           \
    loom_status loom_cuda_##name(loom_cuda_kernels *state, const arguments *a, struct CUstream_st *stream)                                 \
    {                                                                                                                                      \
        name##_work *w = malloc(sizeof *w);                                                                                                \
        if (!w)                                                                                                                            \
            return loom_fail(LOOM_E_MEMORY, #name ": no memory to queue it");                                                              \
        *w = (name##_work){state, *a};                                                                                                     \
        atomic_fetch_add(&state->users, 1);                                                                                                \
        return enqueue(stream, run_##name, w, release_##name);                                                                             \
    }
LOOM_KERNEL_LIST(HOST_OPERATION)

loom_status loom_cuda_kernels_open(loom_device *device, const loom_cuda_choice *choice, loom_cuda_kernels **state)
{
    enum { HEAP_BYTES = 64 << 20 };
    loom_cuda_kernels *k = calloc(1, sizeof *k);
    loom_status status;

    (void)device, (void)choice; /* products are f32 whatever is asked for: the CPU has nothing else */
    if (!k)
        return loom_fail(LOOM_E_MEMORY, "kernels: no memory for their state");
    atomic_store(&k->users, 1);
    LOOM_TRY(loom_device_open(LOOM_CPU, &(loom_device_config){.threads = 1, .heap_bytes = HEAP_BYTES}, &k->host));
    LOOM_TRY(loom_stream_open(k->host, LOOM_STREAM_INLINE, "kernels of the double", &k->stream));
    LOOM_TRY(loom_kernels_open(k->host, &(loom_kernels_config){.gemm_library = "own"}, &k->kernels));
    *state = k;
    return LOOM_OK;

fail:
    drop(k);
    return status;
}

void loom_cuda_kernels_close(loom_cuda_kernels *k)
{
    drop(k);
}
