/* rankloom goodput --devices N: what failures cost, how often to save, what to pay. */
#include "failure_costs.h"
#include "options.h"
#include "quantity.h"

#include <rankloom/goodput.h>

#include <stdio.h>

static const char *const formats[] = {"text", "json", NULL};

typedef struct goodput_arguments {
    int devices, node_devices, format;
    failure_costs costs;
    double tokens, tokens_per_s, price, spot_price, reclaims, risk;
    const char *reserved, *notice, *replace;
} goodput_arguments;

#define FIELD(name) offsetof(goodput_arguments, name)
static const loom_option options[] = {
    {"devices", 'n', LOOM_OPTION_INT, FIELD(devices), .low = 1, .high = 1 << 24, .takes = "N", .help = "devices that train"},
    FAILURE_COSTS_OPTIONS(FIELD(costs)),
    {"node", 0, LOOM_OPTION_INT, FIELD(node_devices), .low = 1, .high = 1 << 20, .takes = "N", .help = "devices of a node, which leave together (8)"},
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

static loom_status read_request(const goodput_arguments *a, loom_goodput_request *r)
{
    const quantity_seconds times[] = {{a->reserved, &r->reserved_s}, {a->notice, &r->notice_s}, {a->replace, &r->replace_s}};
    loom_status status;

    *r = (loom_goodput_request){.devices = a->devices,
                                .node_devices = a->node_devices,
                                .spare_risk = a->risk,
                                .tokens = a->tokens,
                                .tokens_per_s = a->tokens_per_s,
                                .price = a->price,
                                .spot_price = a->spot_price,
                                .reclaims_per_hour = a->reclaims};
    if (a->devices == 0)
        return loom_fail(LOOM_E_INVALID, "--devices N is needed");
    status = failure_costs_read(&a->costs, r);
    return status < 0 ? status : quantity_read_seconds(times, (int)(sizeof times / sizeof *times));
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
