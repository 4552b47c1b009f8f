/* Streams, events, and the thread that is the device. */
#include "queue.h"

#include "core/clock.h"

#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t news, passed; /* for the device's thread; for those who wait until a stream is empty */
    struct CUstream_st *streams;
    bool started;
    uint64_t random, eagerness;
} device = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER, .passed = PTHREAD_COND_INITIALIZER};

uint64_t double_random(void)
{
    device.random ^= device.random << 13;
    device.random ^= device.random >> 7;
    device.random ^= device.random << 17;
    return device.random;
}

void double_salt(uint64_t number)
{
    pthread_mutex_lock(&device.lock);
    device.random ^= (number + 1) * UINT64_C(0xbf58476d1ce4e5b9);
    pthread_mutex_unlock(&device.lock);
}

/* --- points ----------------------------------------------------------------------------------------------------------------- */

static void drop_stream(struct CUstream_st *stream)
{
    if (--stream->users == 0)
        free(stream);
}

void double_drop_point(double_point *point)
{
    if (!point || --point->users > 0)
        return;
    if (point->stream)
        drop_stream(point->stream);
    free(point->place);
    free(point);
}

double_point *double_new_point(cudaStream_t stream, uint64_t ticket)
{
    double_point *point = malloc(sizeof *point);

    if (!point)
        abort();
    *point = (double_point){.users = 1, .stream = stream, .ticket = ticket};
    stream->users++;
    return point;
}

static bool is_reached(const double_point *point)
{
    return point->stream->done >= point->ticket;
}

/* --- what may run, and what has to -------------------------------------------------------------------------------------------- */

/* Raises what is asked of `stream`; whether that is news. */
static bool want(struct CUstream_st *stream, uint64_t ticket)
{
    if (ticket <= stream->target || ticket <= stream->done)
        return false;
    stream->target = ticket;
    return true;
}

/* The op of `order` whose turn it is, in whatever stream it waits. */
static bool want_turn(void *order)
{
    uint64_t turn = ((double_order *)order)->next;

    for (struct CUstream_st *s = device.streams; s; s = s->next)
        for (double_op *op = s->shared; op; op = op->next_shared)
            if (op->order == order && op->number == turn)
                return want(s, op->ticket);
    return false;
}

/* What the heads of wanted streams wait for is wanted, too. */
static void spread_targets(void)
{
    bool news;

    do {
        news = false;
        for (struct CUstream_st *s = device.streams; s; s = s->next) {
            if (!s->head || s->target <= s->done)
                continue;
            if (s->head->point && !is_reached(s->head->point))
                news |= want(s->head->point->stream, s->head->point->ticket);
            if (s->head->order && s->head->number != ((double_order *)s->head->order)->next)
                news |= want_turn(s->head->order);
        }
    } while (news);
}

static void set_targets(void)
{
    for (struct CUstream_st *s = device.streams; s; s = s->next) {
        s->target = s->wanted;
        for (double_op *op = s->shared; op; op = op->next_shared)
            if (op->ticket > s->target && op->wanted_by_peer(op))
                s->target = op->ticket;
    }
    spread_targets();
}

static bool may_run(const struct CUstream_st *s)
{
    const double_op *op = s->head;

    if (!op || s->stuck || (s->held_ns && loom_now_ns() < s->held_ns))
        return false;
    if (op->point && !is_reached(op->point))
        return false;
    return !op->order || op->number == ((double_order *)op->order)->next;
}

/* The stream whose head runs next, at random among those that are wanted, or all. `work`: whether anything is queued and wanted at all. */
static struct CUstream_st *choose(bool *work)
{
    struct CUstream_st *chosen = NULL;
    bool any = device.eagerness == 2 || (device.eagerness == 1 && double_random() % 4 == 0);
    uint64_t count = 0;

    *work = false;
    set_targets();
    for (struct CUstream_st *s = device.streams; s; s = s->next)
        *work |= s->head && s->target > s->done;
    if (!*work)
        return NULL;
    for (struct CUstream_st *s = device.streams; s; s = s->next)
        if (may_run(s) && (any || s->target > s->done) && double_random() % ++count == 0)
            chosen = s;
    return chosen;
}

/* --- the device's thread -------------------------------------------------------------------------------------------------------- */

/* Its last work is done. Points in it stay reached. */
static void forget_stream(struct CUstream_st *stream)
{
    struct CUstream_st **link = &device.streams;

    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    drop_stream(stream);
}

/* Now and then, where the device is eager, a stream has to rest although it could go on. */
static void hold_some_stream(void)
{
    uint64_t count = 0;

    if (device.eagerness != 2 || double_random() % 40 != 0)
        return;
    for (struct CUstream_st *s = device.streams; s; s = s->next)
        count++;
    count = count ? double_random() % count : 0;
    for (struct CUstream_st *s = device.streams; s; s = s->next)
        if (count-- == 0)
            s->held_ns = loom_now_ns() + 200000 + double_random() % 2000000;
}

static void pop_head(struct CUstream_st *s)
{
    double_op *op = s->head;

    s->head = op->next;
    if (!s->head)
        s->tail = &s->head;
    if (op == s->shared && !(s->shared = op->next_shared))
        s->shared_tail = &s->shared;
}

static void finish_head(struct CUstream_st *s)
{
    double_op *op = s->head;

    pop_head(s);
    s->done = op->ticket;
    if (op->order)
        ((double_order *)op->order)->next++;
    double_drop_point(op->point);
    op->drop(op);
    hold_some_stream();
    if (s->head)
        return;
    pthread_cond_broadcast(&device.passed);
    if (s->destroyed)
        forget_stream(s);
}

/* Whether the head got done; the stream may be gone then. */
static bool run_head(struct CUstream_st *s)
{
    double_op *op = s->head;
    double_step step = DOUBLE_OVER;

    if (op->run) {
        pthread_mutex_unlock(&device.lock);
        if (op->of_host)
            double_memory_shut();
        else
            double_memory_open();
        step = op->run(op);
        pthread_mutex_lock(&device.lock);
    }
    if (step == DOUBLE_WAIT)
        s->stuck = true;
    else
        finish_head(s);
    return step != DOUBLE_WAIT;
}

static void let_all_try_again(void)
{
    for (struct CUstream_st *s = device.streams; s; s = s->next)
        s->stuck = false;
}

static bool waits_for_peers(void)
{
    for (struct CUstream_st *s = device.streams; s; s = s->next)
        if (s->shared)
            return true;
    return false;
}

static struct timespec in_a_moment(long ns)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += ns;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

/* `rounds` without anything to run: peers may be quick, or the host asks for more. With work that waits for a peer or for its rest to be over,
 * nobody tells. */
static void sleep_until_news(int rounds, bool work)
{
    enum { YIELDS = 3, SHORT_NAPS = 20 };
    struct timespec until = in_a_moment(100000);

    if (rounds < YIELDS) {
        pthread_mutex_unlock(&device.lock);
        sched_yield();
        pthread_mutex_lock(&device.lock);
        return;
    }
    if (!work && !waits_for_peers()) {
        double_memory_shut();
        pthread_cond_wait(&device.news, &device.lock);
        return;
    }
    if (rounds == SHORT_NAPS)
        double_memory_shut();
    pthread_cond_timedwait(&device.news, &device.lock, &until);
}

/* For whoever looks for a deadlock: what each stream waits for. */
static void tell(void)
{
    for (const struct CUstream_st *s = device.streams; s; s = s->next) {
        const double_op *op = s->head;
        if (!op)
            continue;
        fprintf(stderr, "double: process %d stream %p: %llu of %llu done, wanted to %llu; its head ", (int)getpid(), (const void *)s,
                (unsigned long long)s->done, (unsigned long long)s->pushed, (unsigned long long)s->target);
        if (op->point)
            fprintf(stderr, "waits for stream %p to get to %llu\n", (const void *)op->point->stream, (unsigned long long)op->point->ticket);
        else if (op->order)
            fprintf(stderr, "is number %llu of communicator %p, which is at %llu%s\n", (unsigned long long)op->number, op->order,
                    (unsigned long long)((double_order *)op->order)->next, s->stuck ? "; a peer is not ready" : "");
        else
            fprintf(stderr, "could run\n");
    }
}

static void *be_device(void *context)
{
    int idle = 0, tell_after = (int)double_setting("LOOM_DOUBLE_TELL", 0);

    (void)context;
    pthread_mutex_lock(&device.lock);
    for (;;) {
        bool work;
        struct CUstream_st *s = choose(&work);

        if (s) {
            idle = run_head(s) ? 0 : idle;
            continue;
        }
        if (work && tell_after && idle == tell_after)
            tell();
        let_all_try_again();
        sleep_until_news(idle++, work);
    }
    return NULL;
}

static void start(void)
{
    pthread_t thread;
    uint64_t seed = double_setting("LOOM_DOUBLE_SEED", 1);

    if (device.started)
        return;
    device.started = true;
    device.eagerness = seed % 3;
    device.random = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    if (pthread_create(&thread, NULL, be_device, NULL) != 0)
        abort();
    pthread_detach(thread);
}

/* --- what the host calls ----------------------------------------------------------------------------------------------------------- */

void double_enqueue(cudaStream_t stream, double_op *op)
{
    op->ticket = ++stream->pushed;
    op->next = op->next_shared = NULL;
    *stream->tail = op;
    stream->tail = &op->next;
    if (op->order) {
        op->number = ((double_order *)op->order)->issued++;
        *stream->shared_tail = op;
        stream->shared_tail = &op->next_shared;
    }
    pthread_cond_signal(&device.news);
}

void double_lock(void)
{
    pthread_mutex_lock(&device.lock);
}

void double_unlock(void)
{
    pthread_mutex_unlock(&device.lock);
}

cudaError_t double_push(cudaStream_t stream, double_op *op)
{
    cudaError_t error = cudaSuccess;

    pthread_mutex_lock(&device.lock);
    if (stream->capture)
        error = double_capture(stream, op);
    else
        double_enqueue(stream, op);
    pthread_mutex_unlock(&device.lock);
    return error == cudaSuccess ? error : double_remember(error);
}

static cudaStream_t open_stream(void)
{
    struct CUstream_st *s = calloc(1, sizeof *s);

    if (!s)
        abort();
    s->tail = &s->head;
    s->shared_tail = &s->shared;
    s->users = 1;
    s->next = device.streams;
    device.streams = s;
    return s;
}

cudaStream_t double_open_queue(void)
{
    cudaStream_t s = open_stream();

    s->destroyed = true;
    return s;
}

void double_release_streams(cudaGraph_t captured)
{
    for (struct CUstream_st *s = device.streams; s; s = s->next)
        if (s->capture == captured)
            s->capture = NULL;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5)
        return double_remember(cudaErrorInvalidValue);
    if (double_fails(__func__))
        return double_remember(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&device.lock);
    start();
    *stream = open_stream();
    pthread_mutex_unlock(&device.lock);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

/* What is queued still runs; asked for, since nobody can ask for it later. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;

    pthread_mutex_lock(&device.lock);
    if (stream->capture) {
        error = double_invalidate(stream, cudaErrorStreamCaptureUnsupported);
    } else if (!stream->head) {
        forget_stream(stream);
    } else {
        stream->destroyed = true;
        stream->wanted = stream->pushed;
        pthread_cond_signal(&device.news);
    }
    pthread_mutex_unlock(&device.lock);
    return error == cudaSuccess ? error : double_remember(error);
}

static void ask_for(struct CUstream_st *stream, uint64_t ticket)
{
    if (stream->wanted >= ticket)
        return;
    stream->wanted = ticket;
    pthread_cond_signal(&device.news);
}

void double_finish(cudaStream_t stream)
{
    uint64_t ticket;

    pthread_mutex_lock(&device.lock);
    ticket = stream->capture ? 0 : stream->pushed;
    ask_for(stream, ticket);
    while (stream->done < ticket)
        pthread_cond_wait(&device.passed, &device.lock);
    pthread_mutex_unlock(&device.lock);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    struct timespec until = in_a_moment(200000);
    bool over;

    if (double_fails(__func__))
        return double_remember(cudaErrorLaunchFailure);
    if (double_ends_capture())
        return double_remember(cudaErrorStreamCaptureUnsupported);
    pthread_mutex_lock(&device.lock);
    ask_for(stream, stream->pushed);
    while (stream->done < stream->pushed && pthread_cond_timedwait(&device.passed, &device.lock, &until) == 0)
        ; /* whoever polls leaves the core to the device for a moment */
    over = stream->done == stream->pushed;
    pthread_mutex_unlock(&device.lock);
    return over ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    if ((flags != cudaEventDisableTiming && flags != cudaEventDefault) || !(*event = calloc(1, sizeof **event)))
        return double_remember(cudaErrorInvalidValue);
    (*event)->timed = flags == cudaEventDefault;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    pthread_mutex_lock(&device.lock);
    double_drop_point(event->point);
    pthread_mutex_unlock(&device.lock);
    free(event);
    return cudaSuccess;
}

static void drop_op(double_op *op)
{
    free(op);
}

typedef struct stamp {
    double_op op;
    double_point *point; /* held */
} stamp;

static double_step run_stamp(double_op *op)
{
    ((stamp *)op)->point->ns = loom_now_ns();
    return DOUBLE_OVER;
}

static void drop_stamp(double_op *op)
{
    double_drop_point(((stamp *)op)->point);
    free(op);
}

/* The time is noted by a piece of work of its own. */
double_point *double_enqueue_stamp(cudaStream_t stream)
{
    stamp *s = calloc(1, sizeof *s);

    if (!s)
        abort();
    s->op = (double_op){.run = run_stamp, .drop = drop_stamp};
    double_enqueue(stream, &s->op);
    s->point = double_new_point(stream, s->op.ticket);
    s->point->users++;
    return s->point;
}

static void record(cudaStream_t stream, cudaEvent_t event)
{
    double_drop_point(event->point);
    event->point = event->timed ? double_enqueue_stamp(stream) : double_new_point(stream, stream->pushed);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    cudaError_t error = cudaSuccess;

    pthread_mutex_lock(&device.lock);
    if (stream->capture)
        error = double_capture_record(stream, event, flags == cudaEventRecordExternal);
    else if (flags != cudaEventRecordDefault)
        error = cudaErrorInvalidValue; /* external to what */
    else
        record(stream, event);
    pthread_mutex_unlock(&device.lock);
    return error == cudaSuccess ? error : double_remember(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

static bool is_captured(const struct CUevent_st *event)
{
    return event->point && event->point->place;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    cudaError_t error = cudaSuccess;

    pthread_mutex_lock(&device.lock);
    if (!start->timed || !end->timed || !start->point || !end->point)
        error = cudaErrorInvalidResourceHandle;
    else if (is_captured(start) || is_captured(end))
        error = cudaErrorCapturedEvent;
    else if (!is_reached(start->point) || !is_reached(end->point))
        error = cudaErrorNotReady;
    else
        *ms = (float)((double)(end->point->ns - start->point->ns) * 1e-6);
    pthread_mutex_unlock(&device.lock);
    return error == cudaSuccess ? error : double_remember(error);
}

/* Where the wait that a test leaves out was asked for, to the file that LOOM_DOUBLE_DROPPED names. */
static void tell_left_out(uint64_t number)
{
    const char *path = getenv("LOOM_DOUBLE_DROPPED");
    void *frames[12];
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;

    if (file < 0)
        return;
    dprintf(file, "wait %llu of process %d:\n", (unsigned long long)number, (int)getpid());
    backtrace_symbols_fd(frames, backtrace(frames, 12), file);
    close(file);
}

bool double_leaves_out_wait(void)
{
    static uint64_t calls;

    if (++calls != double_setting("LOOM_DOUBLE_DROP", 0))
        return false;
    tell_left_out(calls);
    return true;
}

void double_enqueue_wait(cudaStream_t stream, double_point *point)
{
    double_op *op = calloc(1, sizeof *op);

    if (!op)
        abort();
    op->drop = drop_op;
    op->point = point;
    point->users++;
    double_enqueue(stream, op);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    cudaError_t error = cudaSuccess;

    (void)flags;
    pthread_mutex_lock(&device.lock);
    if (stream->capture || is_captured(event))
        error = double_capture_wait(stream, event);
    else if (event->point && !is_reached(event->point) && !double_leaves_out_wait())
        double_enqueue_wait(stream, event->point);
    pthread_mutex_unlock(&device.lock);
    return error == cudaSuccess ? error : double_remember(error);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    bool reached;

    if (double_ends_capture())
        return double_remember(cudaErrorStreamCaptureUnsupported);
    pthread_mutex_lock(&device.lock);
    if (is_captured(event)) {
        pthread_mutex_unlock(&device.lock);
        return double_remember(cudaErrorCapturedEvent);
    }
    reached = !event->point || is_reached(event->point);
    if (!reached)
        ask_for(event->point->stream, event->point->ticket);
    pthread_mutex_unlock(&device.lock);
    return reached ? cudaSuccess : cudaErrorNotReady;
}
