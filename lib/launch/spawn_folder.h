/* The temporary folder of a run: FOLDER/attempt_A/R/error.json, where rank R may leave why it failed. */
#ifndef LAUNCH_SPAWN_FOLDER_H
#define LAUNCH_SPAWN_FOLDER_H

#include <rankloom/status.h>

enum { LOOM_FOLDER_BYTES = 512, LOOM_ERROR_FILE_BYTES = 640 };

loom_status loom_folder_make(char folder[LOOM_FOLDER_BYTES]);
loom_status loom_folder_add_rank(const char *folder, int attempt, int rank, char error_file[LOOM_ERROR_FILE_BYTES]);
void loom_folder_remove(const char *folder); /* with all that is in it */

/* What the error file says, in one line, and when (seconds since 1970, 0: it does not tell). False: there is none. */
bool loom_folder_read_error(const char *error_file, char *message, size_t capacity, int64_t *timestamp);

#endif
