/* Whole files in, and files out that exist completely or not at all. */
#ifndef LOOM_CORE_FILE_H
#define LOOM_CORE_FILE_H

#include <rankloom/status.h>

/* Reads all of `path` (a file or a pipe), at most `limit` bytes; a zero is put behind it that `bytes` does not count. The caller frees *data.
 * LOOM_E_IO when the system refuses, LOOM_E_INVALID when it is a directory or larger than the limit. */
loom_status loom_file_read(const char *path, size_t limit, char **data, size_t *bytes);

/* A file under way: written as "PATH.tmp.PID" beside its place, renamed into it by loom_file_commit() after fsync; the folder is synced too. Until
 * then, and after any failure, what was at `path` before is untouched. */
typedef struct loom_file_writer loom_file_writer;
loom_status loom_file_create(const char *path, loom_file_writer **writer);
loom_status loom_file_write(loom_file_writer *writer, const void *data, size_t bytes);
loom_status loom_file_commit(loom_file_writer *writer);  /* frees the writer, also on failure */
void loom_file_abandon(loom_file_writer *writer);        /* removes the temporary file; accepts NULL */

/* All three in one. */
loom_status loom_file_replace(const char *path, const void *data, size_t bytes);

#endif
