/* What the module keeps for one loom_kernels: scratch memory and cuBLASLt. Each operation is passed to its launcher here, and what a
 * launcher returns becomes a status with words. */
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/operations.h"

#include "core/try.h"

#include <stdlib.h>

/* Scratch of one stream: what is in use there, and smaller pieces from before it grew. Work that was enqueued may still use those, and
 * nobody waits for it here, so they stay until the end; each is at most half of the next, so all of them together are less than the one in
 * use. */
enum { STREAMS_MAX = 16, PIECES_MAX = 40 };

typedef struct stream_scratch {
    void *stream;
    void *piece[PIECES_MAX];
    size_t bytes; /* of the last one */
    int pieces;
} stream_scratch;

struct loom_cuda_kernels {
    loom_gpu gpu; /* first: a launcher's loom_gpu is a loom_cuda_kernels */
    loom_device *device;
    stream_scratch scratch[STREAMS_MAX];
    int streams;
};

static stream_scratch *scratch_of_stream(loom_cuda_kernels *k, void *stream)
{
    for (int i = 0; i < k->streams; i++)
        if (k->scratch[i].stream == stream)
            return &k->scratch[i];
    if (k->streams == STREAMS_MAX) {
        loom_fail(LOOM_E_UNSUPPORTED, "kernels: one handle serves at most %d streams; open another for the rest", STREAMS_MAX);
        return NULL;
    }
    k->scratch[k->streams] = (stream_scratch){.stream = stream};
    return &k->scratch[k->streams++];
}

static void *take_scratch(loom_gpu *gpu, size_t bytes)
{
    loom_cuda_kernels *k = (loom_cuda_kernels *)gpu;
    stream_scratch *s = scratch_of_stream(k, gpu->stream);
    size_t grown;

    if (!s || bytes == 0)
        return NULL;
    if (bytes <= s->bytes)
        return s->piece[s->pieces - 1];
    grown = bytes > 2 * s->bytes ? bytes : 2 * s->bytes;
    if (s->pieces == PIECES_MAX || loom_alloc(k->device, grown, LOOM_MEM_WORKSPACE, &s->piece[s->pieces]) < 0)
        return NULL;
    s->bytes = grown;
    return s->piece[s->pieces++];
}

static loom_status outcome(const char *operation, int error)
{
    if (error == 0)
        return LOOM_OK;
    if (error == LOOM_GPU_FAILED)
        return LOOM_E_MEMORY; /* it has said why */
    if (error == LOOM_GPU_REFUSED)
        return LOOM_E_UNSUPPORTED;
    if (error > LOOM_GPU_CUBLAS)
        return loom_fail(LOOM_E_IO, "%s: cuBLASLt: %s", operation, loom_cublaslt_error_text(error - LOOM_GPU_CUBLAS));
    return loom_fail(LOOM_E_IO, "%s: the launch failed: %s", operation, loom_gpu_error_text(error));
}

#define LOOM_CUDA_OPERATION_BODY(name, args)                                                                                               \
    loom_status loom_cuda_##name(loom_cuda_kernels *state, const args *a, struct CUstream_st *stream)                                      \
    {                                                                                                                                      \
        state->gpu.stream = stream;                                                                                                        \
        return outcome(#name, loom_gpu_##name(&state->gpu, a));                                                                            \
    }
LOOM_KERNEL_LIST(LOOM_CUDA_OPERATION_BODY)

loom_status loom_cuda_kernels_open(loom_device *device, const loom_cuda_choice *choice, loom_cuda_kernels **state)
{
    loom_status status;
    loom_cuda_kernels *k = calloc(1, sizeof *k);

    if (!k)
        return loom_fail(LOOM_E_MEMORY, "kernels: no memory for their state");
    k->device = device;
    k->gpu.multiprocessors = loom_gpu_multiprocessors();
    k->gpu.shared_max = (size_t)loom_gpu_shared_max();
    k->gpu.scratch = take_scratch;
    k->gpu.math = choice->math;
    k->gpu.always_narrow = choice->always_narrow;
    if (!choice->own_gemm)
        LOOM_TRY(loom_cublaslt_open(&k->gpu.lt));
    if (choice->math == LOOM_GPU_BF16 && choice->attention != LOOM_GPU_ATTENTION_OWN)
        LOOM_TRY(loom_cudnn_open(choice->attention == LOOM_GPU_ATTENTION_CUDNN, &k->gpu.dnn));
    *state = k;
    return LOOM_OK;

fail:
    loom_cuda_kernels_close(k);
    return status;
}

void loom_cuda_kernels_close(loom_cuda_kernels *k)
{
    if (!k)
        return;
    for (int i = 0; i < k->streams; i++)
        for (int p = 0; p < k->scratch[i].pieces; p++)
            loom_free(k->device, k->scratch[i].piece[p]);
    loom_cudnn_close(k->gpu.dnn);
    loom_cublaslt_close(k->gpu.lt);
    free(k);
}
