/* The textbook's arithmetic of one collective: what each rank sends, and how long that takes on a ring. */
#include <math.h>

#include "core/text.h"
#include "planner/cost.h"

typedef struct lesson {
    double factor;       /* sent by a rank over the buffer, for n ranks */
    double many;         /* the same for very many ranks */
    const char *formula; /* in n and S */
    const char *buffer;  /* what S is */
} lesson;

static lesson lesson_of(loom_pattern pattern, double n)
{
    switch (pattern) {
    case LOOM_PATTERN_ALL_REDUCE:
        return (lesson){2 * (n - 1) / n, 2, "2 (n-1)/n S", "the reduced buffer"};
    case LOOM_PATTERN_REDUCE_SCATTER:
        return (lesson){(n - 1) / n, 1, "(n-1)/n S", "the buffer before it is scattered"};
    case LOOM_PATTERN_ALL_GATHER:
        return (lesson){(n - 1) / n, 1, "(n-1)/n S", "the gathered buffer"};
    case LOOM_PATTERN_ALL_TO_ALL:
        return (lesson){(n - 1) / n, 1, "(n-1)/n S", "all that one rank has to hand out"};
    default:
        return (lesson){1, 1, "S", "the message"};
    }
}

static int steps_of(loom_pattern pattern, int ranks)
{
    if (pattern == LOOM_PATTERN_SEND)
        return 1;
    return pattern == LOOM_PATTERN_ALL_REDUCE ? 2 * (ranks - 1) : ranks - 1;
}

loom_status loom_plan_collective(loom_pattern pattern, double bytes, int ranks, double bandwidth, double latency_s,
                                 loom_collective_cost *cost)
{
    if (ranks < 2)
        return loom_fail(LOOM_E_INVALID, "a collective of %d ranks moves nothing; 2 or more do", ranks);
    if (!(bytes > 0) || !(bandwidth > 0) || !(latency_s >= 0) || isinf(bytes))
        return loom_fail(LOOM_E_INVALID, "bytes and bandwidth have to be above 0 and latency not below: %g B, %g B/s, %g s", bytes,
                         bandwidth, latency_s);
    lesson l = lesson_of(pattern, ranks);

    cost->volume_factor = l.factor;
    cost->sent_per_rank = cost->received_per_rank = l.factor * bytes;
    cost->seconds = cost->sent_per_rank / bandwidth + steps_of(pattern, ranks) * latency_s;
    return LOOM_OK;
}

/* 28 GB, 640 ms: three digits and the unit that keeps them before the point. */
static void add_amount(loom_text *out, double value, const char *const *units)
{
    int i = 0;

    while (units[i + 1] && value >= 1000) {
        value /= 1000;
        i++;
    }
    loom_text_add(out, "%.4g %s", value, units[i]);
}

static void add_bytes(loom_text *out, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", NULL};
    add_amount(out, bytes, units);
}

static void add_seconds(loom_text *out, double seconds)
{
    static const char *const units[] = {"us", "ms", "s", NULL};
    add_amount(out, seconds * 1e6, units);
}

loom_status loom_plan_collective_text(loom_pattern pattern, double bytes, int ranks, double bandwidth, double latency_s, char **text)
{
    loom_text out = {0};
    loom_collective_cost cost;
    loom_status status = loom_plan_collective(pattern, bytes, ranks, bandwidth, latency_s, &cost);

    if (status < 0)
        return status;
    lesson l = lesson_of(pattern, ranks);
    loom_text_add(&out, "%s of S = ", loom_pattern_name(pattern));
    add_bytes(&out, bytes);
    loom_text_add(&out, " (%s) over n = %d ranks at W = ", l.buffer, ranks);
    add_bytes(&out, bandwidth);
    loom_text_add(&out, "/s\n  sent by each rank      %s = %.4g S = ", l.formula, l.factor);
    add_bytes(&out, cost.sent_per_rank);
    loom_text_add(&out, "; it receives as much\n  time                   sent / W%s = ", latency_s > 0 ? " + steps * latency" : "");
    add_seconds(&out, cost.seconds);
    loom_text_add(&out, "\n  with very many ranks   %.4g S = ", l.many);
    add_bytes(&out, l.many * bytes);
    loom_text_add(&out, ", ");
    add_seconds(&out, l.many * bytes / bandwidth);
    loom_text_add(&out, "\n");
    return loom_text_take(&out, text);
}

loom_status loom_plan_collective_json(loom_pattern pattern, double bytes, int ranks, double bandwidth, double latency_s, char **text)
{
    loom_text out = {0};
    loom_collective_cost cost;
    loom_status status = loom_plan_collective(pattern, bytes, ranks, bandwidth, latency_s, &cost);

    if (status < 0)
        return status;
    loom_text_add(&out, "{\"schema\":1,\"collective\":\"%s\",\"ranks\":%d,", loom_pattern_name(pattern), ranks);
    loom_text_add_field(&out, "bytes", bytes, ",");
    loom_text_add_field(&out, "sent_per_rank", cost.sent_per_rank, ",");
    loom_text_add_field(&out, "received_per_rank", cost.received_per_rank, ",");
    loom_text_add_field(&out, "volume_factor", cost.volume_factor, ",");
    loom_text_add_field(&out, "seconds", cost.seconds, ",\"formula\":");
    loom_text_add_json(&out, lesson_of(pattern, ranks).formula);
    loom_text_add(&out, "}\n");
    return loom_text_take(&out, text);
}
