/* Bounded reading and atomic writing. */
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static loom_status system_refused(const char *path, const char *doing)
{
    return loom_fail(LOOM_E_IO, "%s: cannot %s: %s", path, doing, strerror(errno));
}

/* Reads until the end of `file`, growing; a pipe has no size to ask for. */
static loom_status read_all(int file, const char *path, size_t limit, char **data, size_t *bytes)
{
    size_t capacity = 65536, length = 0;
    struct stat info;

    if (fstat(file, &info) == 0 && info.st_size > 0)
        capacity = (size_t)info.st_size < limit ? (size_t)info.st_size + 2 : limit + 2; /* one byte more shows the end in one go */
    char *at = malloc(capacity);
    while (at) {
        ssize_t got = read(file, at + length, capacity - length - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            free(at);
            return system_refused(path, "read");
        }
        length += (size_t)got;
        if (length > limit) {
            free(at);
            return loom_fail(LOOM_E_INVALID, "%s: larger than %zu bytes, the most that is read here", path, limit);
        }
        if (got == 0) {
            at[length] = '\0';
            *data = at;
            *bytes = length;
            return LOOM_OK;
        }
        if (capacity - length > 1)
            continue;
        char *more = realloc(at, capacity *= 2);
        if (!more)
            free(at);
        at = more;
    }
    return loom_fail(LOOM_E_MEMORY, "%s: no memory for its %zu bytes", path, length);
}

loom_status loom_file_read(const char *path, size_t limit, char **data, size_t *bytes)
{
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC);

    if (file < 0)
        return system_refused(path, "open");
    loom_status status = fstat(file, &info) == 0 && S_ISDIR(info.st_mode) ? loom_fail(LOOM_E_INVALID, "%s is a directory, not a file", path)
                                                                          : read_all(file, path, limit, data, bytes);
    close(file);
    return status;
}

struct loom_file_writer {
    int file;
    char *path, *temporary;
};

loom_status loom_file_create(const char *path, loom_file_writer **writer)
{
    loom_file_writer *w = calloc(1, sizeof *w);

    if (!w)
        return loom_fail(LOOM_E_MEMORY, "%s: no memory to write it", path);
    w->file = -1;
    w->path = strdup(path);
    if (asprintf(&w->temporary, "%s.tmp.%ld", path, (long)getpid()) < 0)
        w->temporary = NULL;
    if (!w->path || !w->temporary) {
        loom_file_abandon(w);
        return loom_fail(LOOM_E_MEMORY, "%s: no memory to write it", path);
    }
    w->file = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->file < 0) {
        loom_status status = system_refused(w->temporary, "create");
        loom_file_abandon(w);
        return status;
    }
    *writer = w;
    return LOOM_OK;
}

loom_status loom_file_write(loom_file_writer *writer, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes) {
        ssize_t wrote = write(writer->file, at, bytes < 1u << 30 ? bytes : 1u << 30); /* one call writes at most 2 GiB */
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return system_refused(writer->path, "write");
        at += wrote;
        bytes -= (size_t)wrote;
    }
    return LOOM_OK;
}

/* Makes the rename itself survive a power cut. A file system that cannot sync a folder is no reason to fail. */
static void sync_folder_of(char *path)
{
    int folder = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (folder < 0)
        return;
    fsync(folder);
    close(folder);
}

loom_status loom_file_commit(loom_file_writer *writer)
{
    loom_status status = LOOM_OK;
    int file = writer->file;

    writer->file = -1;
    if (fsync(file) < 0 && errno != EINVAL) /* EINVAL: a special file, nothing to sync */
        status = system_refused(writer->path, "sync");
    if (close(file) < 0 && status == LOOM_OK)
        status = system_refused(writer->path, "close");
    if (status == LOOM_OK && rename(writer->temporary, writer->path) < 0)
        status = system_refused(writer->path, "rename into place");
    if (status == LOOM_OK) {
        free(writer->temporary); /* nothing left to remove */
        writer->temporary = NULL;
        sync_folder_of(writer->path);
    }
    loom_file_abandon(writer);
    return status;
}

void loom_file_abandon(loom_file_writer *writer)
{
    if (!writer)
        return;
    if (writer->file >= 0)
        close(writer->file);
    if (writer->temporary)
        unlink(writer->temporary);
    free(writer->temporary);
    free(writer->path);
    free(writer);
}

loom_status loom_file_replace(const char *path, const void *data, size_t bytes)
{
    loom_file_writer *writer;
    loom_status status = loom_file_create(path, &writer);

    if (status < 0)
        return status;
    status = loom_file_write(writer, data, bytes);
    if (status < 0) {
        loom_file_abandon(writer);
        return status;
    }
    return loom_file_commit(writer);
}
