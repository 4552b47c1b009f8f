/* What is neither streams nor memory: errors, devices, host functions, kernels of the shim. */
#include "double.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- failures that are asked for, and how often what was called ------------------------------------------------------------------ */

enum { FUNCTIONS_MAX = 64 };

static struct {
    pthread_mutex_t lock;
    const char *name[FUNCTIONS_MAX];
    uint64_t calls[FUNCTIONS_MAX];
    int count;
} counted = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void report(void)
{
    for (int i = 0; i < counted.count; i++)
        fprintf(stderr, "double: %s %llu\n", counted.name[i], (unsigned long long)counted.calls[i]);
}

static uint64_t count_call(const char *function)
{
    uint64_t calls;
    int i = 0;

    pthread_mutex_lock(&counted.lock);
    if (!counted.count && double_setting("LOOM_DOUBLE_REPORT", 0))
        atexit(report);
    while (i < counted.count && counted.name[i] != function)
        i++;
    if (i == counted.count) {
        if (i == FUNCTIONS_MAX)
            abort();
        counted.name[counted.count++] = function;
    }
    calls = ++counted.calls[i];
    pthread_mutex_unlock(&counted.lock);
    return calls;
}

bool double_fails(const char *function)
{
    uint64_t calls = count_call(function);
    const char *asked = getenv("LOOM_DOUBLE_FAIL"), *colon = asked ? strchr(asked, ':') : NULL;

    return colon && strlen(function) == (size_t)(colon - asked) && !strncmp(asked, function, (size_t)(colon - asked)) &&
           strtoull(colon + 1, NULL, 10) == calls;
}

static _Thread_local cudaError_t last_error;

cudaError_t double_remember(cudaError_t error)
{
    last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

static const struct {
    cudaError_t code;
    const char *name, *words;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {(cudaError_t)9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread"},
};

static int find_error(cudaError_t code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return (int)i;
    return -1;
}

const char *cudaGetErrorString(cudaError_t error)
{
    int i = find_error(error);

    return i < 0 ? "an error that the double does not know" : errors[i].words;
}

const char *cudaGetErrorName(cudaError_t error)
{
    int i = find_error(error);

    return i < 0 ? "?" : errors[i].name;
}

/* --- devices ------------------------------------------------------------------------------------------------------------------------- */

static _Thread_local int current;

static int device_count(void)
{
    return (int)double_setting("LOOM_DOUBLE_DEVICES", 8);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = device_count();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= device_count())
        return double_remember(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    bool shared = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin;

    if ((!shared && attribute != cudaDevAttrMultiProcessorCount) || device < 0 || device >= device_count())
        return double_remember(cudaErrorInvalidValue);
    *value = shared ? (int)double_setting("LOOM_DOUBLE_SHARED", 163 * 1024) : 2; /* blocks run one after the other here: few of them, each with more to do */
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* --- work of the host and kernels ------------------------------------------------------------------------------------------------------ */

/* What is called, once or in each replay of a graph. */
typedef struct call {
    int users; /* under the device's lock */
    void (*run)(void *context);
    void *context;
    void (*release)(void *context); /* NULL: nothing to free */
} call;

typedef struct call_op {
    double_op op;
    call *call;
} call_op;

static double_step run_call(double_op *op)
{
    const call *c = ((call_op *)op)->call;

    c->run(c->context);
    return DOUBLE_OVER;
}

static void drop_call(double_op *op)
{
    call *c = ((call_op *)op)->call;

    free(op);
    if (--c->users > 0)
        return;
    if (c->release)
        c->release(c->context);
    free(c);
}

static double_op *clone_call(const double_op *op)
{
    call_op *clone = malloc(sizeof *clone);

    if (!clone)
        abort();
    *clone = *(const call_op *)op;
    clone->call->users++;
    return &clone->op;
}

static cudaError_t push_call(cudaStream_t stream, call what, bool of_host)
{
    call_op *op = malloc(sizeof *op);
    call *c = malloc(sizeof *c);

    if (!op || !c)
        abort();
    *c = what;
    c->users = 1;
    *op = (call_op){.op = {.run = run_call, .drop = drop_call, .clone = clone_call, .of_host = of_host}, .call = c};
    return double_push(stream, &op->op);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    if (double_fails(__func__))
        return double_remember(cudaErrorInvalidValue);
    return push_call(stream, (call){.run = function, .context = argument}, true);
}

int loom_shim_enqueue(struct CUstream_st *stream, void (*run)(void *work), void *work, void (*release)(void *work))
{
    if (double_fails("launch")) {
        release(work);
        return double_remember(cudaErrorLaunchFailure);
    }
    return push_call(stream, (call){.run = run, .context = work, .release = release}, false);
}
