/* A schedule of anybody, as torch's CSV or as Megatron's order: it is refused with a reason, or it can be judged; and what is proved runs: lowered
 * without any buffer, and in virtual time. */
#include "fuzz.h"

#include <rankloom/schedule.h>

static double unit_cost(void *context, int stage, const loom_action *action)
{
    (void)context, (void)stage, (void)action;
    return 1;
}

static void judge(loom_schedule *schedule)
{
    const loom_schedule_costs costs = {.action_us = unit_cost};
    loom_timeline line;

    loom_schedule_verify(schedule, 0, NULL);
    loom_schedule_verify(schedule, 1, NULL);
    if (loom_schedule_verify(schedule, -1, NULL) == LOOM_OK) {
        PROMISE(loom_schedule_simulate(schedule, &costs, &line) == LOOM_OK);
        loom_timeline_free(&line);
        PROMISE(schedule->has_comm || (loom_schedule_add_comm(schedule) == LOOM_OK && loom_schedule_verify(schedule, 0, NULL) == LOOM_OK));
    }
    loom_schedule_free(schedule);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    loom_schedule *schedule;

    if (loom_schedule_parse_csv("f.csv", (const char *)data, size, 0, 0, &schedule) == LOOM_OK)
        judge(schedule);
    if (loom_schedule_parse_order("f.order", (const char *)data, size, &schedule) == LOOM_OK)
        judge(schedule);
    return 0;
}
