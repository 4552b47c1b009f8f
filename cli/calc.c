/* rankloom calc mfu|tokens|time|memory: one line of arithmetic each, with its formula. */
#include "options.h"
#include "quantity.h"

#include <rankloom/goodput.h>

#include <stdio.h>
#include <string.h>

typedef struct calc_arguments {
    const char *model, *device, *precision, *period;
    int devices, seq, format;
    double tokens, tokens_per_s, mfu, goodput, device_hours, flop, money, price;
} calc_arguments;

static const char *const formats[] = {"text", "json", NULL};

#define FIELD(name) offsetof(calc_arguments, name)
static const loom_option options[] = {
    {"model", 'm', LOOM_OPTION_TEXT, FIELD(model), .takes = "FILE", .help = "model YAML or config.json"},
    {"seq", 0, LOOM_OPTION_INT, FIELD(seq), .low = 1, .high = 1 << 30, .takes = "N", .help = "tokens of a sequence (train.seq of the file, or the model's)"},
    {"devices", 'n', LOOM_OPTION_INT, FIELD(devices), .low = 1, .high = 1 << 24, .takes = "N", .help = "how many (1)"},
    {"device", 0, LOOM_OPTION_TEXT, FIELD(device), .takes = "NAME", .help = "kind of device: H100, MI300X, \"TPU v5p\""},
    {"precision", 0, LOOM_OPTION_TEXT, FIELD(precision), .takes = "TYPE", .help = "of products: bf16, fp8, f32 (bf16)"},
    {"tokens-per-s", 0, LOOM_OPTION_REAL, FIELD(tokens_per_s), .low = 1e-9, .high = 1e30, .takes = "N", .help = "of all devices together"},
    {"tokens", 0, LOOM_OPTION_REAL, FIELD(tokens), .low = 1, .high = 1e30, .takes = "N", .help = "to train on"},
    {"mfu", 0, LOOM_OPTION_REAL, FIELD(mfu), .low = 1e-6, .high = 1, .takes = "SHARE", .help = "attention square counted whole"},
    {"goodput", 0, LOOM_OPTION_REAL, FIELD(goodput), .low = 1e-6, .high = 1, .takes = "SHARE", .help = "of the time that counts (1); rankloom goodput says it"},
    {"period", 0, LOOM_OPTION_TEXT, FIELD(period), .takes = "TIME", .help = "budget: 30d"},
    {"device-hours", 0, LOOM_OPTION_REAL, FIELD(device_hours), .low = 1e-9, .high = 1e15, .takes = "H", .help = "budget"},
    {"flop", 0, LOOM_OPTION_REAL, FIELD(flop), .low = 1, .high = 1e40, .takes = "N", .help = "budget"},
    {"money", 0, LOOM_OPTION_REAL, FIELD(money), .low = 1e-9, .high = 1e15, .takes = "N", .help = "budget, with --price"},
    {"price", 0, LOOM_OPTION_REAL, FIELD(price), .low = 1e-9, .high = 1e9, .takes = "P", .help = "of a device-hour"},
    {"format", 0, LOOM_OPTION_CHOICE, FIELD(format), .choices = formats, .takes = "FORMAT", .help = "text or json (text)"},
    {0},
};

static loom_status read_math(const char *name, loom_math *math)
{
    *math = LOOM_MATH_16;
    for (int i = 0; name && i < LOOM_MATHS; i++)
        if (strcmp(loom_math_name(i), name) == 0) {
            *math = i;
            return LOOM_OK;
        }
    return name ? loom_fail(LOOM_E_INVALID, "no precision is called %s; f32, tf32, bf16, fp8 and fp4 are", name) : LOOM_OK;
}

static loom_status read_peak(const calc_arguments *a, double *peak)
{
    loom_chip chip;
    loom_math math;
    loom_status status;

    if (!a->device)
        return LOOM_OK;
    if ((status = loom_chip_find(a->device, &chip)) < 0 || (status = read_math(a->precision, &math)) < 0)
        return status;
    if (!loom_known(chip.peak[math]))
        return loom_fail(LOOM_E_INVALID, "the %s peak of %s is not known", loom_math_name(math), chip.name);
    *peak = chip.peak[math].value;
    return LOOM_OK;
}

static loom_status read_calculation(const calc_arguments *a, loom_model *model, loom_calculation *c)
{
    loom_train_shape train = {0};
    loom_status status;

    if (!a->model)
        return loom_fail(LOOM_E_INVALID, "--model FILE is needed");
    if ((status = loom_model_load(a->model, model, &train)) < 0)
        return status;
    *c = (loom_calculation){.model = model,
                            .seq = a->seq > 0 ? a->seq : train.seq,
                            .devices = a->devices,
                            .mfu = a->mfu,
                            .goodput = a->goodput,
                            .tokens = a->tokens,
                            .tokens_per_s = a->tokens_per_s,
                            .device_hours = a->device_hours,
                            .flop = a->flop,
                            .money = a->money,
                            .price = a->price};
    if (a->period && (status = loom_quantity_seconds(a->period, &c->seconds)) < 0)
        return status;
    return read_peak(a, &c->peak);
}

static loom_status calculate(const char *what, const loom_calculation *c, bool json, char **text)
{
    double value[4];

    if (strcmp(what, "mfu") == 0)
        return json ? loom_calculate_mfu_json(c, text) : loom_calculate_mfu(c, &value[0], &value[1], text);
    if (strcmp(what, "tokens") == 0)
        return json ? loom_calculate_tokens_json(c, text) : loom_calculate_tokens(c, value, text);
    if (strcmp(what, "time") == 0)
        return json ? loom_calculate_time_json(c, text) : loom_calculate_time(c, value, text);
    if (strcmp(what, "memory") == 0)
        return json ? loom_calculate_memory_json(c, text) : loom_calculate_memory(c, value, text);
    return loom_fail(LOOM_E_INVALID, "nothing to work out is called %s; mfu, tokens, time and memory are", what);
}

static int run(const loom_command *self, int argc, char **argv)
{
    calc_arguments arguments = {0};
    loom_calculation calculation;
    loom_model model;
    loom_operands operands;
    char *text = NULL;
    int exit_status;
    loom_status status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    status = read_calculation(&arguments, &model, &calculation);
    if (status == LOOM_OK)
        status = calculate(operands.at[0], &calculation, arguments.format != 0, &text);
    if (status < 0)
        return loom_command_fail(self, status);
    fputs(text, stdout);
    loom_text_free(text);
    return 0;
}

const loom_command loom_command_calc = {
    .name = "calc",
    .summary = "daily arithmetic: MFU, tokens for a budget, time for tokens, memory of a model",
    .operands = "mfu|tokens|time|memory",
    .least = 1,
    .most = 1,
    .about = "mfu takes --tokens-per-s and --device. tokens takes a budget: --flop, --device-hours, --period or --money, and --device with --mfu.\n"
             "time takes --tokens, and --tokens-per-s or --device with --mfu. memory takes --devices. rankloom collective has the bytes of a collective.",
    .options = options,
    .run = run,
};
