/* rankloom goodput --devices N: what failures cost, how often to save, what to pay. */
#include "options.h"
#include "quantity.h"

#include <rankloom/goodput.h>

#include <stdio.h>

static const char *const formats[] = {"text", "json", NULL};

typedef struct goodput_arguments {
    int devices, node_devices, format;
    double device_hours, tokens, tokens_per_s, price, spot_price, reclaims, risk;
    const char *record, *checkpoint, *write, *restart, *interval, *repair, *reserved, *notice, *replace;
} goodput_arguments;

#define FIELD(name) offsetof(goodput_arguments, name)
static const loom_option options[] = {
    {"devices", 'n', LOOM_OPTION_INT, FIELD(devices), .low = 1, .high = 1 << 24, .takes = "N", .help = "devices that train"},
    {"device-hours", 0, LOOM_OPTION_REAL, FIELD(device_hours), .low = 1e-3, .high = 1e12, .takes = "H", .help = "hours of one device between failures (Llama 3's, 50677)"},
    {"record", 0, LOOM_OPTION_TEXT, FIELD(record), .takes = "NAME", .help = "the failures of a published run instead: llama3, rsc1, bloom"},
    {"checkpoint", 0, LOOM_OPTION_TEXT, FIELD(checkpoint), .takes = "TIME", .help = "that a checkpoint stops training (40s)"},
    {"write", 0, LOOM_OPTION_TEXT, FIELD(write), .takes = "TIME", .help = "until a checkpoint is safe, under training (0s)"},
    {"restart", 0, LOOM_OPTION_TEXT, FIELD(restart), .takes = "TIME", .help = "from a failure until training goes on (10min)"},
    {"interval", 0, LOOM_OPTION_TEXT, FIELD(interval), .takes = "TIME", .help = "between checkpoints (the best one)"},
    {"node", 0, LOOM_OPTION_INT, FIELD(node_devices), .low = 1, .high = 1 << 20, .takes = "N", .help = "devices of a node, which leave together (8)"},
    {"repair", 0, LOOM_OPTION_TEXT, FIELD(repair), .takes = "TIME", .help = "until a failed node is back (24h)"},
    {"risk", 0, LOOM_OPTION_REAL, FIELD(risk), .low = 1e-9, .high = 0.99, .takes = "SHARE", .help = "of too few spares at a moment (0.01)"},
    {"tokens", 0, LOOM_OPTION_REAL, FIELD(tokens), .low = 1, .high = 1e30, .takes = "N", .help = "to train on: 15e12"},
    {"tokens-per-s", 0, LOOM_OPTION_REAL, FIELD(tokens_per_s), .low = 1e-9, .high = 1e30, .takes = "N", .help = "of all devices while nothing fails"},
    {"reserved", 0, LOOM_OPTION_TEXT, FIELD(reserved), .takes = "TIME", .help = "how long the devices are ours: 54d"},
    {"price", 0, LOOM_OPTION_REAL, FIELD(price), .low = 0, .high = 1e9, .takes = "P", .help = "of a device-hour"},
    {"spot-price", 0, LOOM_OPTION_REAL, FIELD(spot_price), .low = 0, .high = 1e9, .takes = "P", .help = "of a device-hour that may be taken away"},
    {"reclaims-per-hour", 0, LOOM_OPTION_REAL, FIELD(reclaims), .low = 0, .high = 1e6, .takes = "RATE", .help = "how often one device is taken away"},
    {"notice", 0, LOOM_OPTION_TEXT, FIELD(notice), .takes = "TIME", .help = "warning before that (0s)"},
    {"replace", 0, LOOM_OPTION_TEXT, FIELD(replace), .takes = "TIME", .help = "until another device takes its place (0s)"},
    {"format", 0, LOOM_OPTION_CHOICE, FIELD(format), .choices = formats, .takes = "FORMAT", .help = "text or json (text)"},
    {0},
};

static loom_status read_times(const goodput_arguments *a, loom_goodput_request *r)
{
    const struct {
        const char *text;
        double *seconds;
    } times[] = {{a->checkpoint, &r->checkpoint_s}, {a->write, &r->write_s},       {a->restart, &r->restart_s}, {a->interval, &r->interval_s},
                 {a->repair, &r->repair_s},         {a->reserved, &r->reserved_s}, {a->notice, &r->notice_s},   {a->replace, &r->replace_s}};
    loom_status status = LOOM_OK;

    for (size_t i = 0; i < sizeof times / sizeof *times && status == LOOM_OK; i++)
        if (times[i].text)
            status = loom_quantity_seconds(times[i].text, times[i].seconds);
    return status;
}

static loom_status read_request(const goodput_arguments *a, loom_goodput_request *r)
{
    loom_failure_record record;
    loom_status status;

    *r = (loom_goodput_request){.devices = a->devices,
                                .node_devices = a->node_devices,
                                .device_hours = a->device_hours,
                                .spare_risk = a->risk,
                                .tokens = a->tokens,
                                .tokens_per_s = a->tokens_per_s,
                                .price = a->price,
                                .spot_price = a->spot_price,
                                .reclaims_per_hour = a->reclaims};
    if (a->devices == 0)
        return loom_fail(LOOM_E_INVALID, "--devices N is needed");
    if (a->record) {
        if (a->device_hours > 0)
            return loom_fail(LOOM_E_INVALID, "--record and --device-hours both say how often devices fail; one of them does");
        if ((status = loom_failure_record_find(a->record, &record)) < 0)
            return status;
        r->device_hours = loom_failure_device_hours(&record);
    }
    return read_times(a, r);
}

static int run(const loom_command *self, int argc, char **argv)
{
    goodput_arguments arguments = {0};
    loom_goodput_request request;
    loom_goodput goodput;
    loom_operands operands;
    char *text = NULL;
    int exit_status;
    loom_status status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    status = read_request(&arguments, &request);
    if (status == LOOM_OK)
        status = loom_goodput_of(&request, &goodput);
    if (status == LOOM_OK)
        status = arguments.format ? loom_goodput_json(&request, &goodput, &text) : loom_goodput_describe(&request, &goodput, &text);
    if (status < 0)
        return loom_command_fail(self, status);
    fputs(text, stdout);
    loom_text_free(text);
    return 0;
}

const loom_command loom_command_goodput = {
    .name = "goodput",
    .summary = "what failures cost, how often to save, what a run costs",
    .operands = "",
    .about = "Times are written 40s, 15min, 2h, 54d. Status 2 when the tokens take longer than the reservation. The derivation is in docs/goodput.md.",
    .options = options,
    .run = run,
};
