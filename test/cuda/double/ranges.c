/* NVTX ranges. Apart from the runtime, because the real one is all in its header. */
#include <nvtx3/nvToolsExt.h>

#include <stdio.h>
#include <stdlib.h>

static _Thread_local int open_ranges;

/* A line a range, indented as they nest, for tests to read. */
int nvtxRangePushA(const char *message)
{
    const char *path = getenv("LOOM_DOUBLE_RANGES");
    FILE *file = path ? fopen(path, "a") : NULL;

    if (file) {
        fprintf(file, "%*s%s\n", open_ranges, "", message);
        fclose(file);
    }
    return open_ranges++;
}

int nvtxRangePop(void)
{
    if (open_ranges == 0) {
        fprintf(stderr, "double: a range ends that nobody began\n");
        abort();
    }
    return --open_ranges;
}
