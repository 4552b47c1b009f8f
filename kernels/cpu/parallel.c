/* Threads through OpenMP, whose team the GEMM library shares. Without OpenMP one thread does it all. */
#include "kernels/cpu/parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

void loom_parallel_spans(int threads, int64_t count, int64_t grain, loom_span_fn *span, const void *context)
{
    int64_t grains = (count + grain - 1) / grain;

    if (grains < threads)
        threads = (int)grains;
    if (threads <= 1) {
        if (count > 0)
            span(context, 0, count);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static, 1)
#endif
    for (int t = 0; t < threads; t++) {
        int64_t from = grains * t / threads * grain, to = grains * (t + 1) / threads * grain;

        span(context, from, to < count ? to : count);
    }
}

void loom_parallel_tasks(int threads, int64_t count, loom_task_fn *task, const void *context)
{
    if (count < threads)
        threads = (int)count;
    if (threads <= 1) {
        for (int64_t i = 0; i < count; i++)
            task(context, i, 0);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++)
        task(context, i, omp_get_thread_num());
#else
    for (int64_t i = 0; i < count; i++)
        task(context, i, 0);
#endif
}

int loom_parallel_team(int threads)
{
#ifdef _OPENMP
    int before = omp_get_max_threads();

    if (before != threads)
        omp_set_num_threads(threads);
    return before;
#else
    return threads;
#endif
}
