/* A proof to be told: how few buffers a schedule needs, and the verdict as JSON. */
#include <rankloom/schedule.h>

#include "core/text.h"

/* More buffers never hurt, so halving finds the fewest; all messages of a channel are enough. */
int loom_schedule_least_buffers(const loom_schedule *schedule)
{
    int low = 0, high = 2 * schedule->micro_batches * schedule->chunks_per_stage;

    while (low < high) {
        int middle = low + (high - low) / 2;
        if (loom_schedule_verify(schedule, middle, NULL) == LOOM_OK)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void add_integers(loom_text *out, const char *name, const int *values, int count)
{
    loom_text_add(out, ",\"%s\":[", name);
    for (int i = 0; i < count; i++)
        loom_text_add(out, i ? ",%d" : "%d", values[i]);
    loom_text_add(out, "]");
}

static void add_facts(loom_text *out, const loom_schedule *s, const loom_schedule_facts *facts)
{
    loom_text_add(out, ",\"least_buffers\":%d", loom_schedule_least_buffers(s));
    add_integers(out, "peak_in_flight", facts->peak_in_flight, s->stages);
    add_integers(out, "peak_before_input", facts->peak_before_input, s->stages);
    add_integers(out, "peak_receives", facts->peak_receives, s->stages);
}

loom_status loom_schedule_verdict_json(const char *source, const loom_layout *layout, const loom_schedule *s, int buffers,
                                       const loom_schedule_facts *facts, const char *reason, char **text)
{
    loom_text out = {0};
    char line[256];

    loom_text_add(&out, "{\"schema\":1,\"source\":");
    loom_text_add_json(&out, source);
    loom_text_add(&out, ",\"layout\":");
    loom_text_add_json(&out, layout ? loom_layout_describe(layout, line, sizeof line) : NULL);
    loom_text_add(&out, ",\"stages\":%d,\"chunks_per_stage\":%d,\"micro_batches\":%d,\"comm\":%s,\"buffers\":", s->stages,
                  s->chunks_per_stage, s->micro_batches, s->has_comm ? "true" : "false");
    loom_text_add(&out, buffers < 0 ? "null" : "%d", buffers);
    loom_text_add(&out, ",\"proved\":%s,\"reason\":", facts ? "true" : "false");
    loom_text_add_json(&out, facts ? NULL : reason);
    if (layout) {
        loom_text_add(&out, ",");
        loom_text_add_field(&out, "ideal_idle",
                            loom_schedule_ideal_idle(layout->schedule, s->stages, s->chunks_per_stage, s->micro_batches), "");
    }
    if (facts)
        add_facts(&out, s, facts);
    loom_text_add(&out, "}\n");
    return loom_text_take(&out, text);
}
