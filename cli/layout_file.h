/* Reading for commands: a layout from a layout file or from a run file with its model and train sections, and schedules. */
#ifndef CLI_LAYOUT_FILE_H
#define CLI_LAYOUT_FILE_H

#include <rankloom/schedule.h>

typedef struct layout_file {
    loom_layout layout; /* resolved */
    loom_model model;
    bool has_model;
} layout_file;

/* `model_path` (NULL: what the file says, if anything) also gives the batch when the file has none. `world` 0: any. All problems of the file come in
 * one message. */
loom_status layout_file_load(const char *path, const char *model_path, int world, layout_file *file);

/* Schedules by the end of their name: .csv is torch's, .order Megatron's. */
bool is_csv(const char *path);
bool is_schedule(const char *path);
loom_status load_schedule(const char *path, loom_schedule **schedule);

#endif
