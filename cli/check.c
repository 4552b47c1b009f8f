/* rankloom check FILE: every rule that a layout breaks, or what it is. */
#include "layout_file.h"
#include "options.h"

#include <stdio.h>

typedef struct check_arguments {
    int world;
    const char *model;
} check_arguments;

static const loom_option options[] = {
    {"world", 'n', LOOM_OPTION_INT, offsetof(check_arguments, world), .low = 1, .high = 1 << 24, .takes = "N",
     .help = "ranks there are; fills the degree that is auto (any number)"},
    {"model", 'm', LOOM_OPTION_TEXT, offsetof(check_arguments, model), .takes = "FILE", .help = "model to judge by (the model section of FILE)"},
    {0},
};

static void print_chunk(const loom_layout *l, int chunk)
{
    int64_t first = loom_layout_first_layer(l, chunk), count = l->chunk_layers[chunk];

    if (count > 0)
        printf(" %lld-%lld", (long long)first, (long long)(first + count - 1));
    else
        printf(" none");
    if (chunk == 0)
        printf(" with the embedding");
    if (chunk == l->n_chunks - 1)
        printf(" with the head");
}

static void print_stages(const loom_layout *l)
{
    for (int stage = 0; stage < l->pp; stage++) {
        const char *between = "";

        printf("stage %d: layers", stage);
        for (int chunk = 0; chunk < l->n_chunks; chunk++)
            if (loom_layout_stage_of_chunk(l, chunk) == stage) {
                printf("%s", between);
                print_chunk(l, chunk);
                between = ",";
            }
        putchar('\n');
    }
}

static void print_layout(const char *path, const layout_file *file)
{
    const loom_layout *l = &file->layout;
    char line[256];

    printf("%s: legal: %s, %d rank%s", path, loom_layout_describe(l, line, sizeof line), loom_layout_world(l), loom_layout_world(l) == 1 ? "" : "s");
    if (l->global_batch > 0)
        printf(", %lld micro-batches of %lld a step on each dp rank", (long long)loom_layout_micro_batches(l), (long long)l->micro_batch);
    putchar('\n');
    if (file->has_model)
        print_stages(l);
    else
        printf("no model was given: rules of heads, layers, experts and vocabulary were not looked at (--model)\n");
}

static int run(const loom_command *self, int argc, char **argv)
{
    check_arguments arguments = {0};
    loom_operands operands;
    int exit_status;
    layout_file file;
    loom_status status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    status = layout_file_load(operands.at[0], arguments.model, arguments.world, &file);
    if (status < 0)
        return loom_command_fail(self, status);
    print_layout(operands.at[0], &file);
    return 0;
}

const loom_command loom_command_check = {
    .name = "check",
    .summary = "judge a layout by every rule",
    .operands = "RUN.yaml|LAYOUT.yaml",
    .least = 1,
    .most = 1,
    .about = "Prints every broken rule with the values and the nearest legal ones and ends with status 2, or says what the layout is and ends with 0.\n"
             "The same checker serves the planner and the engine.",
    .options = options,
    .run = run,
};
