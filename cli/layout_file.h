/* Reading a layout for commands: a layout file, or the layout section of a run file with its model and train sections. */
#ifndef CLI_LAYOUT_FILE_H
#define CLI_LAYOUT_FILE_H

#include <rankloom/layout.h>

typedef struct layout_file {
    loom_layout layout; /* resolved */
    loom_model model;
    bool has_model;
} layout_file;

/* `model_path` (NULL: what the file says, if anything) also gives the batch when the file has none. `world` 0: any. All problems of the file come in
 * one message. */
loom_status layout_file_load(const char *path, const char *model_path, int world, layout_file *file);

/* Whether a path is to be read as a schedule. */
bool is_csv(const char *path);

#endif
