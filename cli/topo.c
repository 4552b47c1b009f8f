/* rankloom topo [FILE] [--matrix] [--svg OUT.svg] [-o OUT.yaml] */
#include "options.h"
#include "write_text.h"

#include <rankloom/host.h>
#include <rankloom/text.h>

#include <stdio.h>

typedef struct topo_arguments {
    bool matrix, line;
    const char *svg, *output, *gpu;
    int ranks;
} topo_arguments;

static const loom_option options[] = {
    {"matrix", 'm', LOOM_OPTION_FLAG, offsetof(topo_arguments, matrix), .help = "the device matrix, as nvidia-smi topo -m prints it"},
    {"line", 0, LOOM_OPTION_FLAG, offsetof(topo_arguments, line), .help = "one line"},
    {"svg", 0, LOOM_OPTION_TEXT, offsetof(topo_arguments, svg), .takes = "FILE", .help = "write a picture"},
    {"output", 'o', LOOM_OPTION_TEXT, offsetof(topo_arguments, output), .takes = "FILE",
     .help = "write the topology in its exact form, to edit or to plan with"},
    {"gpu", 0, LOOM_OPTION_TEXT, offsetof(topo_arguments, gpu), .takes = "NAME",
     .help = "what the cards are, for a FILE that does not name them"},
    {"ranks", 'n', LOOM_OPTION_INT, offsetof(topo_arguments, ranks), .low = 1, .high = 256, .takes = "N",
     .help = "without FILE and without GPUs: so many CPU ranks (one a NUMA node)"},
    {0},
};

static loom_status print_text(loom_status (*tell)(const loom_topology *, char **), const loom_topology *topology)
{
    char *text = NULL;
    loom_status status = tell(topology, &text);

    if (status == LOOM_OK)
        fputs(text, stdout);
    loom_text_free(text);
    return status;
}

static loom_status write_picture(const loom_topology *topology, const char *path)
{
    char *text = NULL;
    loom_status status = loom_topology_svg(topology, &text);

    if (status == LOOM_OK)
        status = write_text(text, path);
    loom_text_free(text);
    return status;
}

static loom_status show(const loom_topology *topology, const topo_arguments *arguments)
{
    loom_status status = LOOM_OK;

    if (arguments->svg)
        status = write_picture(topology, arguments->svg);
    if (arguments->output && status == LOOM_OK)
        status = loom_topology_save(topology, arguments->output);
    if (status != LOOM_OK || ((arguments->svg || arguments->output) && !arguments->matrix && !arguments->line))
        return status;
    status = print_text(arguments->matrix ? loom_topology_matrix : arguments->line ? loom_topology_line : loom_topology_tree, topology);
    if (arguments->line && !arguments->matrix)
        putchar('\n');
    return status;
}

static int run(const loom_command *self, int argc, char **argv)
{
    topo_arguments arguments = {0};
    loom_operands operands;
    loom_topology *topology = NULL;
    int exit_status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    loom_status status =
        operands.count ? loom_topology_load(operands.at[0], &topology) : loom_topology_this_host(arguments.ranks, &topology);
    if (status == LOOM_OK && arguments.gpu)
        status = loom_topology_name_chips(topology, arguments.gpu);
    if (status == LOOM_OK)
        status = show(topology, &arguments);
    loom_topology_free(topology);
    return status == LOOM_OK ? 0 : loom_command_fail(self, status);
}

const loom_command loom_command_topo = {
    .name = "topo",
    .summary = "show a cluster file, or this host: what there is and what joins it",
    .operands = "[FILE]",
    .least = 0,
    .most = 1,
    .about = "FILE is a cluster file (YAML or JSON), hwloc's XML, NCCL's topology XML, or the output of nvidia-smi topo -m. Without\n"
             "FILE this host is looked at, with hwloc and NVML. Every figure is printed with where it comes from: assumed (the\n"
             "catalogue), read (the machine), given (a file), measured (rankloom probe); what nobody knows is printed as unknown.",
    .options = options,
    .run = run,
};
