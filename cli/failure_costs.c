/* How often devices fail and what that costs. */
#include "failure_costs.h"
#include "quantity.h"

static loom_status read_rate(const failure_costs *c, loom_goodput_request *request)
{
    loom_failure_record record;

    request->device_hours = c->device_hours;
    if (!c->record)
        return LOOM_OK;
    if (c->device_hours > 0)
        return loom_fail(LOOM_E_INVALID, "--record and --device-hours both say how often devices fail; one of them does");
    loom_status status = loom_failure_record_find(c->record, &record);
    if (status == LOOM_OK)
        request->device_hours = loom_failure_device_hours(&record);
    return status;
}

loom_status failure_costs_read(const failure_costs *c, loom_goodput_request *request)
{
    const quantity_seconds times[] = {{c->checkpoint, &request->checkpoint_s}, {c->write, &request->write_s},
                                      {c->detect, &request->detect_s},         {c->restart, &request->restart_s},
                                      {c->interval, &request->interval_s},     {c->repair, &request->repair_s}};
    loom_status status = read_rate(c, request);

    return status < 0 ? status : quantity_read_seconds(times, (int)(sizeof times / sizeof *times));
}
