/* Launcher variables of anybody: lines "NAME=value". */
#include "fuzz.h"

#include <rankloom/launch.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *get(void *context, const char *name)
{
    size_t length = strlen(name);

    for (const char *line = context; *line; line += strlen(line) + 1)
        if (strncmp(line, name, length) == 0 && line[length] == '=')
            return line + length + 1;
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *lines = calloc(1, size + 2);
    loom_launch launch;

    if (!lines)
        return 0;
    for (size_t i = 0; i < size; i++)
        lines[i] = data[i] == '\n' ? '\0' : (char)data[i];
    if (loom_launch_from(get, lines, &launch) == LOOM_OK) {
        assert(launch.rank >= 0 && launch.rank < launch.size);
        assert(launch.local_size >= 0 && launch.local_rank >= -1 && (launch.local_size == 0 || launch.local_rank < launch.local_size));
        assert(launch.size == 1 || launch.master_addr[0]);
    }
    free(lines);
    return 0;
}
