/* A CUDA device: opening it, and its memory. */
#include "cuda/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/settings.h"
#include "core/clock.h"
#include "core/try.h"
#include "cuda/module.h"
#include "cuda/registered.h"

/* --- failures ------------------------------------------------------------------------------------------------------------ */

static loom_status status_of(cudaError_t code)
{
    switch (code) {
    case cudaSuccess:
        return LOOM_OK;
    case cudaErrorMemoryAllocation:
        return LOOM_E_MEMORY;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorNotSupported:
    case cudaErrorNoKernelImageForDevice:
        return LOOM_E_UNSUPPORTED;
    default:
        return LOOM_E_IO;
    }
}

loom_status loom_cuda_check(const loom_device *device, cudaError_t code, const char *what, ...)
{
    char text[512];
    va_list arguments;

    if (code == cudaSuccess)
        return LOOM_OK;
    cudaGetLastError(); /* or the next launch would report it again */
    va_start(arguments, what);
    vsnprintf(text, sizeof text, what, arguments);
    va_end(arguments);
    return loom_fail(status_of(code), "CUDA device %d: %s: %s (%s)", loom_cuda_of(device) ? loom_cuda_of(device)->ordinal : 0, text,
                     cudaGetErrorString(code), cudaGetErrorName(code));
}

loom_status loom_cuda_enter(const loom_device *device)
{
    return loom_cuda_check(device, cudaSetDevice(loom_cuda_of(device)->ordinal), "cudaSetDevice");
}

/* --- opening --------------------------------------------------------------------------------------------------------------- */

/* What the driver looks at when it starts; what the user says counts. A receive that is posted early must hold up nothing but its own stream, since its sender may wait for
 * what we do next. Kernels are loaded when the module is, not when they are first launched: loading one may wait for the device. And streams have hardware queues of
 * their own, as far as there are any: CUDA gives 8 to begin with, a step has more streams, and of those that share one each waits for what is before it. */
static void prepare_driver(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

static loom_status find_device(const loom_device *device, bool or_only)
{
    loom_cuda_device *d = loom_cuda_of(device);
    int count = 0; /* CUDA leaves it untouched when it fails */
    cudaError_t code = cudaGetDeviceCount(&count);
    int driver = 0;

    if (code == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess)
        return loom_fail(LOOM_E_UNSUPPORTED, "CUDA device %d: %s (driver for CUDA %d.%d, this build needs %d.%d)", d->ordinal,
                         driver ? "the NVIDIA driver is too old" : "this machine has no NVIDIA driver", driver / 1000, driver % 1000 / 10,
                         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (code != cudaSuccess)
        return loom_cuda_check(device, code, "cudaGetDeviceCount");
    if (or_only && count == 1)
        d->ordinal = 0;
    if (d->ordinal >= count)
        return loom_fail(LOOM_E_UNSUPPORTED, "CUDA device %d: this process sees %d device%s (CUDA_VISIBLE_DEVICES counts)", d->ordinal, count,
                         count == 1 ? "" : "s");
    return LOOM_OK;
}

/* Memory that was freed stays in the pool: a step allocates nothing of the driver once it has met its shapes. Of freed memory an allocation takes only
 * what every stream is through with. Left to itself the pool may also hand out what is still in use and let the taker wait for it: on a receive that was
 * posted early, whose sender waits for us, that would be for ever. */
static loom_status open_pool(loom_device *device, loom_cuda_device *d)
{
    struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                     .handleTypes = cudaMemHandleTypeNone,
                                     .location = {.type = cudaMemLocationTypeDevice, .id = d->ordinal}};
    uint64_t keep = UINT64_MAX;
    int no = 0;
    loom_status status;

    LOOM_TRY(loom_cuda_check(device, cudaMemPoolCreate(&d->pool, &props), "cudaMemPoolCreate"));
    LOOM_TRY(loom_cuda_check(device, cudaMemPoolSetAttribute(d->pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute"));
    return loom_cuda_check(device, cudaMemPoolSetAttribute(d->pool, cudaMemPoolReuseAllowInternalDependencies, &no), "cudaMemPoolSetAttribute");

fail:
    return status;
}

static loom_status device_open(loom_device *device, const loom_device_config *config)
{
    loom_cuda_device *d = calloc(1, sizeof *d);
    loom_status status;

    if (!d)
        return loom_fail(LOOM_E_MEMORY, "no memory for CUDA device %d", config->index);
    d->ordinal = config->index;
    d->last_wait = &d->waits;
    pthread_mutex_init(&d->lock, NULL);
    device->native = d;
    device->threads = 1; /* of the host; kernels bring their own */
    prepare_driver();
    LOOM_TRY(loom_setting_bool(LOOM_SETTING_REGISTER, &d->registers));
    LOOM_TRY(find_device(device, config->or_only));
    LOOM_TRY(loom_cuda_enter(device));
    LOOM_TRY(loom_cuda_check(device, cudaDeviceGetStreamPriorityRange(&d->priority_least, &d->priority_greatest),
                             "cudaDeviceGetStreamPriorityRange"));
    LOOM_TRY(open_pool(device, d));
    LOOM_TRY(loom_cuda_check(device, cudaStreamCreateWithFlags(&d->allocations, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    return loom_cuda_check(device, cudaStreamCreateWithFlags(&d->frees, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");

fail:
    return status;
}

/* --- memory ------------------------------------------------------------------------------------------------------------------- */

/* Zeroed when it is handed out, whatever stream uses it first. */
static loom_status device_alloc(loom_device *device, size_t bytes, void **memory)
{
    loom_cuda_device *d = loom_cuda_of(device);
    void *block = NULL;
    loom_status status;

    LOOM_TRY(loom_cuda_enter(device));
    LOOM_TRY(loom_cuda_check(device, cudaMallocFromPoolAsync(&block, bytes, d->pool, d->allocations), "cudaMallocFromPoolAsync"));
    LOOM_TRY(loom_cuda_check(device, cudaMemsetAsync(block, 0, bytes, d->allocations), "cudaMemsetAsync of %zu bytes", bytes));
    LOOM_TRY(loom_cuda_settle(device, d->allocations, "new memory"));
    *memory = block;
    return LOOM_OK;

fail:
    if (block)
        cudaFreeAsync(block, d->allocations);
    return status;
}

static loom_status alloc_for_comm(loom_device *device, size_t bytes, void **memory)
{
    loom_status status;

    LOOM_TRY(loom_cuda_enter(device));
    LOOM_TRY(loom_cuda_registered_alloc(device, bytes, memory));
    return *memory ? LOOM_OK : device_alloc(device, bytes, memory);

fail:
    return status;
}

/* Failures of the runtime have nowhere to go here; the next wait of a stream reports them. */
void loom_cuda_frees_follow_all(loom_device *device)
{
    loom_cuda_device *d = loom_cuda_of(device);

    pthread_mutex_lock(&d->lock);
    for (loom_cuda_stream *s = d->streams; s; s = s->next)
        if (cudaEventRecord(s->mark, loom_cuda_stream_of(&s->base)) == cudaSuccess)
            cudaStreamWaitEvent(d->frees, s->mark, 0);
    pthread_mutex_unlock(&d->lock);
}

/* Work that is queued now may still use the block: it goes back behind all of it. */
static void device_free(loom_device *device, void *memory)
{
    if (loom_cuda_enter(device) < 0 || loom_cuda_registered_free(device, memory))
        return;
    loom_cuda_frees_follow_all(device);
    cudaFreeAsync(memory, loom_cuda_of(device)->frees);
}

typedef struct loom_cuda_host_block {
    void *memory;
    cudaEvent_t passed; /* all that was queued when it was freed */
    struct loom_cuda_host_block *next;
} host_block;

static void release_host_blocks(loom_cuda_device *d, bool all)
{
    host_block **link = &d->host_blocks;

    while (*link) {
        host_block *block = *link;
        if (!all && cudaEventQuery(block->passed) == cudaErrorNotReady) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        cudaEventDestroy(block->passed);
        cudaFreeHost(block->memory);
        free(block);
    }
}

static loom_status host_alloc(loom_device *device, size_t bytes, void **memory)
{
    loom_status status = loom_cuda_enter(device);

    if (status < 0)
        return status;
    return loom_cuda_check(device, cudaHostAlloc(memory, bytes, cudaHostAllocDefault), "cudaHostAlloc of %zu bytes", bytes);
}

/* Copies that are queued now may still use it: it goes when they are over, and nobody waits for that. */
static void host_free(loom_device *device, void *memory)
{
    loom_cuda_device *d = loom_cuda_of(device);
    host_block *block = calloc(1, sizeof *block);

    if (!block || loom_cuda_enter(device) < 0 || cudaEventCreateWithFlags(&block->passed, cudaEventDisableTiming) != cudaSuccess) {
        free(block); /* and the memory stays: better than under a copy */
        return;
    }
    block->memory = memory;
    loom_cuda_frees_follow_all(device);
    cudaEventRecord(block->passed, d->frees);
    block->next = d->host_blocks;
    d->host_blocks = block;
    release_host_blocks(d, false);
}

/* --- closing ------------------------------------------------------------------------------------------------------------------- */

static void device_close(loom_device *device)
{
    loom_cuda_device *d = loom_cuda_of(device);

    if (!d)
        return;
    if (d->frees) {
        loom_cuda_run_out(device, d->frees, loom_now_s());
        release_host_blocks(d, true);
        loom_cuda_registered_visit(device, true);
    }
    if (d->allocations)
        cudaStreamDestroy(d->allocations);
    if (d->frees)
        cudaStreamDestroy(d->frees); /* what is queued still runs, and the pool goes when its last block is back */
    loom_cuda_free_waits(d);
    if (d->pool)
        cudaMemPoolDestroy(d->pool);
    pthread_mutex_destroy(&d->lock);
    free(d);
    device->native = NULL;
}

static void progress(loom_device *device)
{
    (void)device; /* the device goes on by itself */
}

const loom_backend loom_cuda_backend = {
    .name = "cuda",
    .open = device_open,
    .close = device_close,
    .alloc = device_alloc,
    .alloc_for_comm = alloc_for_comm,
    .free = device_free,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .progress = progress,
    .range_begin = loom_cuda_range_begin,
    .range_end = loom_cuda_range_end,
    LOOM_CUDA_STREAMS,
};
