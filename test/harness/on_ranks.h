/* Runs a test on several ranks.
 *
 * on_ranks() forks `size` processes; each opens a CPU device and the world and calls the function. The first failed assertion of a rank
 * ends that rank; the harness then ends the others, prints what the failing ones said and fails the test. Nothing outlives the call. Each
 * rank has a deadline; one that passes it is made to say where it stands (a backtrace) and is killed.
 *
 * Fork before the first parallel region: a child of a process that ran OpenMP hangs in its own. A test program that uses on_ranks()
 * computes only inside ranks. */
#ifndef LOOM_TEST_ON_RANKS_H
#define LOOM_TEST_ON_RANKS_H

#include <rankloom/comm.h>

typedef void rank_fn(loom_comm *world, loom_stream *stream);

typedef struct rank_options {
    double deadline_s;      /* of the whole run; 0: 60 */
    double comm_deadline_s; /* of every wait inside comm; 0: 20 */
    const char *transport;  /* NULL: auto */
    int threads;            /* of a rank's kernels; 0: 1 */
    uint64_t heap_bytes;    /* 0: the default */
    loom_device_kind device; /* LOOM_CPU if left out; all ranks on CUDA take device 0 */
    unsigned long doomed;   /* bit r: rank r is meant to be killed by a signal, and must be */
} rank_options;

void on_ranks(int size, rank_fn *fn);
void on_ranks_with(const rank_options *options, int size, rank_fn *fn);

/* The same with ranks as threads of this process, so that a thread sanitizer sees all of them. A failed assertion ends the program. */
void on_threads(int size, rank_fn *fn);
void on_threads_with(const rank_options *options, int size, rank_fn *fn);

/* A dry world in this process: rank `rank` of `size`, on a dry device. */
void on_dry_rank(int rank, int size, rank_fn *fn);

#endif
