/* Runs a fuzz target on every file of a folder, and on every beginning of each: what crashes there crashes here. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads `path` into memory of exactly its size, so that a sanitizer sees a read behind the end. */
static uint8_t *read_file(const char *path, size_t *bytes)
{
    FILE *in = fopen(path, "rb");

    if (!in)
        return NULL;
    fseek(in, 0, SEEK_END);
    *bytes = (size_t)ftell(in);
    rewind(in);
    uint8_t *data = malloc(*bytes ? *bytes : 1);
    if (data && fread(data, 1, *bytes, in) != *bytes) {
        free(data);
        data = NULL;
    }
    fclose(in);
    return data;
}

/* The first `length` bytes in memory of their own. */
static void run_beginning(const uint8_t *data, size_t length)
{
    uint8_t *copy = malloc(length ? length : 1);

    if (!copy)
        return;
    memcpy(copy, data, length);
    LLVMFuzzerTestOneInput(copy, length);
    free(copy);
}

int main(int argc, char **argv)
{
    DIR *folder = argc > 1 ? opendir(argv[1]) : NULL;
    int files = 0;

    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[4096];
        size_t bytes;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        uint8_t *data = read_file(path, &bytes);
        if (!data) {
            fprintf(stderr, "%s cannot be read\n", path);
            return 1;
        }
        for (size_t length = 0; length <= bytes; length++)
            run_beginning(data, length);
        free(data);
        files++;
    }
    closedir(folder);
    printf("%d files\n", files);
    return files ? 0 : 1; /* no seeds: nothing was tested */
}
