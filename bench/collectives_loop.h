/* The one timing loop that every maker of collectives is measured by (collectives.c, mpi_collectives.c; gloo_collectives.py follows it).
 *
 * For each call and size: warm up, then BATCHES batches of equal numbers of calls, each between two barriers; a rank's figure is the median
 * of its batches, the figure printed is the largest of the ranks'. Bandwidth is bytes of the buffer over time, without any factor for the
 * algorithm.
 *
 * A buffer that nobody touches between two calls stays in the caches of the core that sums it, and a call then moves nothing: fast, and no
 * program's case. With --touch every rank reads and rewrites its buffers between the calls, outside the time. */
#ifndef COLLECTIVES_LOOP_H
#define COLLECTIVES_LOOP_H

#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum bench_call {
    BENCH_ALL_REDUCE,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_ALL_TO_ALL,
    BENCH_BROADCAST,
    BENCH_SEND_RECV,
    BENCH_BARRIER,
    BENCH_CALLS
} bench_call;

static const char *const bench_call_names[BENCH_CALLS] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                          "broadcast",  "send_recv",      "barrier"};

typedef struct bench_maker {
    const char *name, *variant;
    int rank, size;
    void *context;
    /* One call on f32 buffers, waited for. `bytes` is of the larger buffer: what all_reduce sums, what all_gather ends with. send_recv: to
     * the next rank, from the one before. */
    void (*call)(void *context, bench_call call, size_t bytes);
    void (*barrier)(void *context);
    double (*max)(void *context, double value); /* over ranks */
    void (*touch)(void *context,
                  size_t bytes); /* reads what the call left and rewrites what it sends, as a program would between two calls */
} bench_maker;

enum { BENCH_BATCHES = 9 };

/* Seconds of `calls` calls, each on buffers that were used in between; only the calls are timed. */
static double bench_batch_touched(const bench_maker *m, bench_call call, size_t bytes, int calls)
{
    double total_s = 0;

    for (int i = 0; i < calls; i++) {
        double start_s;
        m->touch(m->context, bytes);
        m->barrier(m->context);
        start_s = bench_now_s();
        m->call(m->context, call, bytes);
        total_s += bench_now_s() - start_s;
    }
    return total_s;
}

static double bench_batch(const bench_maker *m, bench_call call, size_t bytes, int calls)
{
    double start_s;

    m->barrier(m->context);
    start_s = bench_now_s();
    for (int i = 0; i < calls; i++)
        m->call(m->context, call, bytes);
    return bench_now_s() - start_s;
}

/* Seconds of a call, median over batches. */
static double bench_time(const bench_maker *m, bench_call call, size_t bytes, int calls, int touched)
{
    double batches[BENCH_BATCHES];

    for (int b = 0; b < BENCH_BATCHES; b++)
        batches[b] = (touched ? bench_batch_touched : bench_batch)(m, call, bytes, calls) / calls;
    return bench_median(batches, BENCH_BATCHES);
}

/* As many calls as fill about `seconds`, the same on all ranks. */
static int bench_calibrate(const bench_maker *m, bench_call call, size_t bytes, double seconds)
{
    int calls = 3;
    double start_s, each_s, wanted;

    m->call(m->context, call, bytes);
    m->call(m->context, call, bytes);
    m->barrier(m->context);
    start_s = bench_now_s();
    for (int i = 0; i < calls; i++)
        m->call(m->context, call, bytes);
    each_s = m->max(m->context, (bench_now_s() - start_s) / calls);
    wanted = seconds / BENCH_BATCHES / each_s;
    return wanted < 3 ? 3 : wanted > 20000 ? 20000 : (int)wanted;
}

static void bench_run(const bench_maker *m, bench_call call, size_t bytes, double seconds, int touched)
{
    int calls = bench_calibrate(m, call, bytes, seconds);
    double each_s = m->max(m->context, bench_time(m, call, bytes, calls, touched));

    if (m->rank == 0) {
        printf("{\"bench\":\"collectives\",\"maker\":\"%s\",\"variant\":\"%s\",\"call\":\"%s\",\"touched\":%s,\"ranks\":%d,\"bytes\":%zu,"
               "\"us\":%.3f,\"gb_s\":%.3f,\"calls\":%d}\n",
               m->name, m->variant, bench_call_names[call], touched ? "true" : "false", m->size, bytes, each_s * 1e6,
               (double)bytes / each_s * 1e-9, calls * BENCH_BATCHES);
        fflush(stdout);
    }
}

/* --calls a,b  --bytes n,n  --seconds s  --touch: what every program of this family takes. */
typedef struct bench_plan {
    unsigned calls; /* bit per bench_call */
    size_t bytes[16];
    int n_bytes;
    size_t most_bytes;
    double seconds;
    int touched;
} bench_plan;

static inline void bench_plan_bytes(bench_plan *plan, const char *list)
{
    char *end;

    plan->n_bytes = 0;
    for (const char *at = list; *at && plan->n_bytes < 16; at = *end ? end + 1 : end)
        plan->bytes[plan->n_bytes++] = strtoull(at, &end, 10);
}

static inline void bench_plan_calls(bench_plan *plan, const char *list)
{
    plan->calls = 0;
    for (int c = 0; c < BENCH_CALLS; c++) {
        size_t length = strlen(bench_call_names[c]);
        for (const char *at = strstr(list, bench_call_names[c]); at; at = strstr(at + 1, bench_call_names[c]))
            if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length]))
                plan->calls |= 1u << c;
    }
}

/* Consumes argv[*i] if it is one of the common options. */
static inline int bench_plan_option(bench_plan *plan, int argc, char **argv, int *i)
{
    if (strcmp(argv[*i], "--touch") == 0) {
        plan->touched = 1;
        return 1;
    }
    if (*i + 1 >= argc)
        return 0;
    if (strcmp(argv[*i], "--calls") == 0)
        bench_plan_calls(plan, argv[*i + 1]);
    else if (strcmp(argv[*i], "--bytes") == 0)
        bench_plan_bytes(plan, argv[*i + 1]);
    else if (strcmp(argv[*i], "--seconds") == 0)
        plan->seconds = atof(argv[*i + 1]);
    else
        return 0;
    *i += 1;
    return 1;
}

static inline bench_plan bench_plan_default(void)
{
    bench_plan plan = {.calls = 1u << BENCH_ALL_REDUCE, .seconds = 0.5};

    bench_plan_bytes(&plan, "8,1024,4096,65536,1048576,16777216");
    return plan;
}

static inline size_t bench_plan_most(const bench_plan *plan)
{
    size_t most = 4096;

    for (int i = 0; i < plan->n_bytes; i++)
        most = plan->bytes[i] > most ? plan->bytes[i] : most;
    return most;
}

static inline void bench_plan_run(const bench_plan *plan, const bench_maker *maker)
{
    for (int c = 0; c < BENCH_CALLS; c++)
        for (int i = 0; (plan->calls >> c & 1) && i < (c == BENCH_BARRIER ? 1 : plan->n_bytes); i++)
            bench_run(maker, (bench_call)c, plan->bytes[i], plan->seconds, plan->touched);
}

#endif
