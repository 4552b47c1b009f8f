/* Exposed communication: how long compute stood still for a comm. Around what a computing stream waits for (a call of a comm on itself, or the point that
 * another stream's call has to get to) lie two events that note the time. Whoever waits for the stream afterwards adds up what they say. In a graph each
 * replay records them anew; of replays that nobody waited for between them the last one counts. */
#include "cuda/device.h"

#include <stdlib.h>

#include "core/try.h"

loom_status loom_cuda_account_open(loom_device *device, double *exposed_s, loom_cuda_account **account)
{
    loom_cuda_device *d = loom_cuda_of(device);
    loom_cuda_account *a = malloc(sizeof *a);

    if (!a)
        return loom_fail(LOOM_E_MEMORY, "no memory for an account of waits");
    pthread_mutex_lock(&d->lock);
    *a = (loom_cuda_account){.next = d->accounts, .exposed_s = exposed_s};
    d->accounts = a;
    pthread_mutex_unlock(&d->lock);
    *account = a;
    return LOOM_OK;
}

void loom_cuda_account_close(loom_cuda_account *account)
{
    if (account)
        account->exposed_s = NULL; /* streams, events and measured waits may still name it: it stays until the device closes */
}

static void free_wait(loom_cuda_wait *w)
{
    if (w->begin)
        cudaEventDestroy(w->begin);
    if (w->end)
        cudaEventDestroy(w->end);
    free(w);
}

static loom_status make_wait(loom_device *device, loom_cuda_wait **wait)
{
    loom_cuda_wait *w = calloc(1, sizeof *w);
    loom_status status;

    if (!w)
        return loom_fail(LOOM_E_MEMORY, "no memory to measure a wait");
    LOOM_TRY(loom_cuda_check(device, cudaEventCreateWithFlags(&w->begin, cudaEventDefault), "cudaEventCreateWithFlags"));
    LOOM_TRY(loom_cuda_check(device, cudaEventCreateWithFlags(&w->end, cudaEventDefault), "cudaEventCreateWithFlags"));
    *wait = w;
    return LOOM_OK;

fail:
    free_wait(w);
    return status;
}

/* One that was used before, so that a step makes no events once it has met its waits. */
static loom_status take_wait(loom_device *device, loom_cuda_wait **wait)
{
    loom_cuda_device *d = loom_cuda_of(device);

    pthread_mutex_lock(&d->lock);
    *wait = d->spare_waits;
    if (*wait)
        d->spare_waits = (*wait)->next;
    pthread_mutex_unlock(&d->lock);
    return *wait ? LOOM_OK : make_wait(device, wait);
}

static void give_wait(loom_cuda_device *d, loom_cuda_wait *w)
{
    w->next = d->spare_waits;
    d->spare_waits = w;
}

/* What is captured notes the time as a piece of the graph's work, for all to see; else it would only order that work. */
static loom_status record(loom_stream *stream, cudaEvent_t event)
{
    unsigned flags = loom_cuda_of(stream->device)->capturing ? cudaEventRecordExternal : cudaEventRecordDefault;

    return loom_cuda_check(stream->device, cudaEventRecordWithFlags(event, loom_cuda_stream_of(stream), flags), "cudaEventRecordWithFlags on stream \"%s\"",
                           stream->name);
}

loom_status loom_cuda_wait_begin(loom_stream *stream, loom_cuda_account *account, loom_cuda_wait **wait)
{
    loom_status status;

    *wait = NULL;
    if (!account || !((loom_cuda_stream *)stream)->computes)
        return LOOM_OK;
    if ((status = take_wait(stream->device, wait)) < 0)
        return status;
    (*wait)->account = account;
    return record(stream, (*wait)->begin);
}

/* To the graph that is captured, or to the end of those that are measured once. */
static void keep_wait(loom_cuda_device *d, loom_cuda_wait *wait)
{
    wait->next = d->capturing ? d->capturing->waits : NULL;
    if (d->capturing) {
        d->capturing->waits = wait;
        return;
    }
    *d->last_wait = wait;
    d->last_wait = &wait->next;
}

loom_status loom_cuda_wait_end(loom_stream *stream, loom_cuda_wait *wait)
{
    loom_cuda_device *d = loom_cuda_of(stream->device);
    loom_status status;

    if (!wait)
        return LOOM_OK;
    status = record(stream, wait->end);
    pthread_mutex_lock(&d->lock);
    if (status < 0)
        give_wait(d, wait);
    else
        keep_wait(d, wait);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static void add_up(const loom_cuda_wait *w)
{
    float ms;

    if (w->account->exposed_s && cudaEventElapsedTime(&ms, w->begin, w->end) == cudaSuccess)
        *w->account->exposed_s += ms * 1e-3;
}

static void collect_replay(loom_cuda_graph *g)
{
    if (!g->measured || cudaEventQuery(g->done) != cudaSuccess)
        return;
    for (const loom_cuda_wait *w = g->waits; w; w = w->next)
        add_up(w);
    g->measured = false;
}

void loom_cuda_collect_waits(loom_device *device)
{
    loom_cuda_device *d = loom_cuda_of(device);

    pthread_mutex_lock(&d->lock);
    while (d->waits && cudaEventQuery(d->waits->end) == cudaSuccess) {
        loom_cuda_wait *w = d->waits;
        d->waits = w->next;
        if (!d->waits)
            d->last_wait = &d->waits;
        add_up(w);
        give_wait(d, w);
    }
    for (loom_cuda_graph *g = d->graphs; g; g = g->next)
        collect_replay(g);
    pthread_mutex_unlock(&d->lock);
}

void loom_cuda_give_waits(loom_cuda_device *d, loom_cuda_wait *waits)
{
    pthread_mutex_lock(&d->lock);
    while (waits) {
        loom_cuda_wait *w = waits;
        waits = w->next;
        give_wait(d, w);
    }
    pthread_mutex_unlock(&d->lock);
}

void loom_cuda_free_waits(loom_cuda_device *d)
{
    *d->last_wait = d->spare_waits;
    while (d->waits) {
        loom_cuda_wait *w = d->waits;
        d->waits = w->next;
        free_wait(w);
    }
    while (d->accounts) {
        loom_cuda_account *a = d->accounts;
        d->accounts = a->next;
        free(a);
    }
}
