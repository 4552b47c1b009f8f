/* What the launchers want to know of the CUDA runtime. */
#include "kernels/cuda/cublaslt.h"

#include <cuda_runtime_api.h>

int loom_gpu_multiprocessors(void)
{
    int device = 0, count = 0;

    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        count < 1)
        return 100; /* only how many blocks a kernel gets depends on it, never a result */
    return count;
}

int loom_gpu_shared_max(void)
{
    int device = 0, bytes = 0;

    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return LOOM_GPU_SHARED_LEAST;
    return bytes;
}

const char *loom_gpu_error_text(int error)
{
    return cudaGetErrorString((cudaError_t)error);
}

void *loom_gpu_event_record(void *stream)
{
    cudaEvent_t event;

    if (cudaEventCreateWithFlags(&event, cudaEventDefault) != cudaSuccess)
        return NULL;
    if (cudaEventRecord(event, (cudaStream_t)stream) == cudaSuccess)
        return event;
    cudaEventDestroy(event);
    return NULL;
}

static bool tell_ms(void *begin, void *end, float *ms)
{
    return begin && end && cudaEventQuery((cudaEvent_t)end) == cudaSuccess && cudaEventElapsedTime(ms, (cudaEvent_t)begin, (cudaEvent_t)end) == cudaSuccess;
}

/* Also where a graph is captured: these events are none of it, and a thread that says so may ask. */
bool loom_gpu_event_ms(void *begin, void *end, float *ms)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    bool told;

    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess)
        return false;
    told = tell_ms(begin, end, ms);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return told;
}

void loom_gpu_event_free(void *event)
{
    if (event)
        cudaEventDestroy((cudaEvent_t)event);
}

bool loom_gpu_is_capturing(void *stream)
{
    enum cudaStreamCaptureStatus status;

    return cudaStreamIsCapturing((cudaStream_t)stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
}
