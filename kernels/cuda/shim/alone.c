/* What stands in for the CUDA runtime where nothing else does: launches run at once, in the caller. */
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/shim/alone.h"

#include <stdlib.h>

struct CUstream_st;

int loom_shim_enqueue(struct CUstream_st *stream, void (*run)(void *work), void *work, void (*release)(void *work));

int loom_shim_enqueue(struct CUstream_st *stream, void (*run)(void *work), void *work, void (*release)(void *work))
{
    (void)stream;
    run(work);
    release(work);
    return 0;
}

int loom_gpu_multiprocessors(void)
{
    return 2; /* few, so that small tests walk over their grids, too */
}

int loom_shim_shared_max = 163 * 1024;

int loom_gpu_shared_max(void)
{
    return loom_shim_shared_max;
}

const char *loom_gpu_error_text(int error)
{
    return error == 1 ? "invalid argument" : error == 9 ? "invalid configuration argument" : "an error of the shim";
}

/* --- time: what a test says --- */

loom_shim_clock_state loom_shim_clock;

typedef struct shim_event {
    float ms;
} shim_event;

/* Every second event ends something. */
void *loom_gpu_event_record(void *stream)
{
    loom_shim_clock_state *c = &loom_shim_clock;
    shim_event *e = malloc(sizeof *e);

    (void)stream;
    if (!e)
        return NULL;
    if (c->events % 2)
        c->now_ms += c->takes_ms[c->events / 2 % 2];
    c->events++;
    e->ms = c->now_ms;
    return e;
}

bool loom_gpu_event_ms(void *begin, void *end, float *ms)
{
    if (loom_shim_clock.pending || !begin || !end)
        return false;
    *ms = ((shim_event *)end)->ms - ((shim_event *)begin)->ms;
    return true;
}

void loom_gpu_event_free(void *event)
{
    free(event);
}

bool loom_gpu_is_capturing(void *stream)
{
    (void)stream;
    return loom_shim_clock.capturing;
}
