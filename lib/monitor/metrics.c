/* The metrics file: one JSON object a line. */
#include "monitor/monitor.h"

#include "core/text.h"
#include "core/try.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static void add(loom_text *line, const char *key, double value)
{
    loom_text_add(line, ", \"%s\": ", key);
    loom_text_add_number(line, value);
}

static void add_times(loom_text *line, const loom_step_metrics *s)
{
    add(line, "step_time_s", s->step_time_s);
    add(line, "tokens_per_s", s->step_time_s > 0 ? (double)s->tokens / s->step_time_s : 0);
    for (int kind = 0; kind < LOOM_TIME_KINDS; kind++) {
        char key[32];
        snprintf(key, sizeof key, "%s_s", loom_time_kind_name((loom_time_kind)kind));
        add(line, key, s->seconds[kind]);
    }
}

static void add_ranks(loom_text *line, const loom_monitor *m)
{
    loom_text_add(line, ", \"slowest_rank\": %d", m->slowest_rank);
    add(line, "slowest_compute_s", m->slowest_compute_s);
    loom_text_add(line, ", \"data_rank\": %d", m->data_rank);
    add(line, "data_max_s", m->data_max_s);
}

loom_status loom_monitor_write(loom_monitor *m, const loom_step_metrics *s)
{
    loom_text line = {0};
    loom_status status = LOOM_OK;

    if (!m || !m->metrics)
        return LOOM_OK;
    loom_text_add(&line, "{\"step\": %" PRId64, s->step);
    add(&line, "loss", s->loss);
    add(&line, "grad_norm", s->grad_norm);
    add(&line, "lr", s->lr);
    loom_text_add(&line, ", \"tokens\": %" PRId64, s->tokens);
    add_times(&line, s);
    if (s->mfu > 0)
        add(&line, "mfu", s->mfu);
    add_ranks(&line, m);
    if (s->extra && *s->extra)
        loom_text_add(&line, ", %s", s->extra);
    loom_text_add(&line, "}\n");
    if (line.failed)
        status = loom_fail(LOOM_E_MEMORY, "no memory for a line of metrics");
    else if (fputs(line.at, m->metrics) < 0 || fflush(m->metrics) != 0)
        status = loom_fail(LOOM_E_IO, "%s: %s", m->metrics_path, strerror(errno));
    loom_text_drop(&line);
    return status;
}
