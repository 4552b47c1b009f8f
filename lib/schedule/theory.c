/* What the papers say a schedule wastes, for equal stages, F = 1, B = 2 (I = W = 1) and messages that take no time. */
#include <rankloom/schedule.h>

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Units in which a stage idles until the last stage is done; a micro-batch keeps it busy for 3 units a chunk. */
static double idle_units(loom_schedule_kind kind, int p, int v, int m)
{
    switch (kind) {
    case LOOM_SCHEDULE_GPIPE: /* with fewer micro-batches than stages the next chunk also waits for the first to come round */
        return 3.0 * (p - 1 + (v - 1) * (m < p ? p - m : 0));
    case LOOM_SCHEDULE_1F1B:
    case LOOM_SCHEDULE_INTERLEAVED:
        return 3.0 * (p - 1);
    case LOOM_SCHEDULE_ZB_H1: /* 2(p-1) (F + I, then W fills one unit for each micro-batch kept back) */
        return 2.0 * (p - 1) - (least(m, p) - 1);
    case LOOM_SCHEDULE_ZB_V: /* the last stage starts p - 1 late and never waits */
        return p - 1;
    case LOOM_SCHEDULE_KINDS:
        break;
    }
    return 0;
}

double loom_schedule_ideal_bubble(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches)
{
    return idle_units(kind, stages, chunks_per_stage, micro_batches) / (3.0 * chunks_per_stage * micro_batches);
}

double loom_schedule_ideal_idle(loom_schedule_kind kind, int stages, int chunks_per_stage, int micro_batches)
{
    double bubble = loom_schedule_ideal_bubble(kind, stages, chunks_per_stage, micro_batches);

    return bubble / (1 + bubble);
}

int loom_schedule_micro_batches_for(loom_schedule_kind kind, int stages, int chunks_per_stage, double idle)
{
    const int step = kind == LOOM_SCHEDULE_INTERLEAVED ? stages : 1, most = 1 << 20;
    int m = step;

    while (m < most && !(loom_schedule_ideal_idle(kind, stages, chunks_per_stage, m) <= idle + 1e-12))
        m += step;
    return m;
}
