/* CUDA_VISIBLE_DEVICES, as the runtime reads it: which GPUs, in which order, and where the list ends. */
#include <rankloom/host.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { ENTRY_BYTES = 96 };

/* Copies the next entry without blanks; returns what follows its comma, NULL at the end of the list. */
static const char *next_entry(const char *list, char entry[ENTRY_BYTES])
{
    size_t length = 0;

    while (isspace((unsigned char)*list))
        list++;
    for (; *list && *list != ','; list++)
        if (length + 1 < ENTRY_BYTES)
            entry[length++] = *list;
    while (length && isspace((unsigned char)entry[length - 1]))
        length--;
    entry[length] = '\0';
    return *list == ',' ? list + 1 : NULL;
}

static int gpu_by_number(const char *entry, const loom_gpu *gpus, int count)
{
    char *end;
    long number = strtol(entry, &end, 10);

    for (int i = 0; isdigit((unsigned char)*entry) && *end == '\0' && i < count; i++)
        if (gpus[i].parent < 0 && gpus[i].index == number)
            return i;
    return -1;
}

/* A whole id, or a beginning that fits only one. */
static int gpu_by_id(const char *entry, const loom_gpu *gpus, int count)
{
    int found = -1;

    for (int i = 0; i < count; i++) {
        if (strncasecmp(gpus[i].uuid, entry, strlen(entry)) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

static bool is_partition(const char *entry)
{
    return strncasecmp(entry, "MIG-", 4) == 0;
}

static bool listed_before(const loom_visible *visible, int gpu)
{
    for (int i = 0; i < visible->count; i++)
        if (visible->gpu[i] == gpu)
            return true;
    return false;
}

/* One partition is all that a process gets. Ids of partitions that the list of GPUs does not have are taken on trust. */
static void take_partition(const char *entry, const char *rest, const loom_gpu *gpus, int count, loom_visible *visible)
{
    visible->gpu[0] = gpu_by_id(entry, gpus, count);
    visible->count = 1;
    visible->partitioned = true;
    if (rest)
        snprintf(visible->notice, sizeof visible->notice,
                 "a process opens one GPU partition only, the first: each further rank needs a process environment with its own "
                 "CUDA_VISIBLE_DEVICES");
}

static void take_entries(const char *list, const loom_gpu *gpus, int count, loom_visible *visible)
{
    char entry[ENTRY_BYTES];

    for (const char *rest = list; rest && visible->count <= count;) {
        rest = next_entry(rest, entry);
        if (is_partition(entry)) {
            if (visible->count == 0)
                take_partition(entry, rest, gpus, count, visible);
            return;
        }
        int gpu = strncasecmp(entry, "GPU-", 4) == 0 ? gpu_by_id(entry, gpus, count) : gpu_by_number(entry, gpus, count);
        if (gpu < 0 || listed_before(visible, gpu)) {
            if (*entry)
                snprintf(visible->notice, sizeof visible->notice, "\"%s\" %s: the list of visible devices ends before it", entry,
                         gpu < 0 ? "names no GPU here" : "was there before");
            return;
        }
        visible->gpu[visible->count++] = gpu;
    }
}

loom_status loom_visible_devices(const char *list, const loom_gpu *gpus, int count, loom_visible *visible)
{
    loom_visible made = {.gpu = malloc(((size_t)count + 1) * sizeof(int))};

    if (!made.gpu)
        return loom_fail(LOOM_E_MEMORY, "no memory for a list of %d GPUs", count);
    if (!list) {
        for (int i = 0; i < count; i++)
            if (gpus[i].parent < 0)
                made.gpu[made.count++] = i;
    } else {
        take_entries(list, gpus, count, &made);
    }
    *visible = made;
    return LOOM_OK;
}

void loom_visible_clear(loom_visible *visible)
{
    free(visible->gpu);
    *visible = (loom_visible){0};
}
