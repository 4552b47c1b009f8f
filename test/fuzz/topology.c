/* Any bytes as a topology file, of every form: either a topology that can be asked, told and saved, or a message. */
#include "fuzz.h"

#include <rankloom/text.h>
#include <rankloom/topology.h>

#include <string.h>

/* What is written reads back equal. */
static void round_trip(const loom_topology *t)
{
    loom_topology *back = NULL;
    char *text = NULL;

    PROMISE(loom_topology_write(t, &text) == LOOM_OK);
    PROMISE(loom_topology_parse("written", text, strlen(text), &back) == LOOM_OK);
    PROMISE(loom_topology_equal(t, back));
    loom_text_free(text);
    loom_topology_free(back);
}

static void tell(const loom_topology *t)
{
    loom_status (*const tellers[])(const loom_topology *, char **) = {loom_topology_line, loom_topology_tree, loom_topology_matrix,
                                                                      loom_topology_svg};

    for (size_t i = 0; i < sizeof tellers / sizeof *tellers; i++) {
        char *text = NULL;
        PROMISE(tellers[i](t, &text) == LOOM_OK);
        loom_text_free(text);
    }
}

static void ask(const loom_topology *t)
{
    int ranks = loom_topology_ranks(t);
    loom_group_link all = loom_topology_axis(t, ranks, 1), pair = loom_topology_axis(t, ranks > 1 ? 2 : 1, ranks / 2 > 0 ? ranks / 2 : 1);

    PROMISE(all.ranks == ranks && pair.ranks <= 2);
    loom_topology_link(t, 0, ranks - 1);
    loom_topology_pattern_s(t, LOOM_PATTERN_ALL_REDUCE, &all, 1e6);
    loom_topology_gemm_s(t, 0, LOOM_MATH_16, 64, 64, 64);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    loom_topology *t = NULL;

    if (memmem(data, size, "<topology", strlen("<topology")))
        return 0; /* hwloc's parser, not ours, and it opens its plug-ins anew each time */
    loom_status status = loom_topology_parse("fuzz", (const char *)data, size, &t);

    PROMISE((status == LOOM_OK) == (t != NULL));
    if (status != LOOM_OK) {
        PROMISE(loom_last_error()[0] != '\0');
        return 0;
    }
    if (loom_topology_ranks(t) <= 4096) { /* larger ones are legal, and slow under a sanitizer */
        ask(t);
        tell(t);
        round_trip(t);
    }
    loom_topology_free(t);
    return 0;
}
