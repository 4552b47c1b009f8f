#include "kernels/cuda/trial.h"

#include "kernels/cuda/cublaslt.h"

static float least(const float *ms)
{
    return ms[0] < ms[2] ? ms[0] : ms[2];
}

/* The first call of each may load code: the faster of its two counts. */
static void decide(loom_trial *t)
{
    float ms[LOOM_TRIAL_CALLS];

    for (int i = 0; i < LOOM_TRIAL_CALLS; i++)
        if (!loom_gpu_event_ms(t->begin[i], t->end[i], &ms[i]))
            return; /* the device is not there yet */
    t->verdict = least(ms) <= least(ms + 1) ? LOOM_TRIAL_FIRST : LOOM_TRIAL_SECOND;
    loom_trial_free(t);
}

loom_trial_maker loom_trial_next(loom_trial *t, const loom_gpu *gpu)
{
    if (t->verdict != LOOM_TRIAL_UNDECIDED)
        return t->verdict;
    if (t->calls == LOOM_TRIAL_CALLS)
        decide(t);
    if (t->calls == LOOM_TRIAL_CALLS || loom_gpu_is_capturing(gpu->stream))
        return t->verdict == LOOM_TRIAL_SECOND ? LOOM_TRIAL_SECOND : LOOM_TRIAL_FIRST;
    t->begin[t->calls] = loom_gpu_event_record(gpu->stream);
    return t->calls % 2 ? LOOM_TRIAL_SECOND : LOOM_TRIAL_FIRST;
}

void loom_trial_over(loom_trial *t, const loom_gpu *gpu)
{
    if (t->verdict == LOOM_TRIAL_UNDECIDED && t->calls < LOOM_TRIAL_CALLS && t->begin[t->calls])
        t->end[t->calls++] = loom_gpu_event_record(gpu->stream);
}

void loom_trial_free(loom_trial *t)
{
    for (int i = 0; i < LOOM_TRIAL_CALLS; i++) {
        loom_gpu_event_free(t->begin[i]);
        loom_gpu_event_free(t->end[i]);
        t->begin[i] = t->end[i] = NULL;
    }
}
