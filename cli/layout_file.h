/* Reading for commands: a layout from a layout file or from a run file with its model and train sections, and schedules. */
#ifndef CLI_LAYOUT_FILE_H
#define CLI_LAYOUT_FILE_H

#include <rankloom/planner.h>
#include <rankloom/schedule.h>

typedef struct layout_file {
    loom_layout layout; /* resolved */
    loom_model model;
    bool has_model;
    loom_run_options run;   /* of a run file */
    loom_train_shape train; /* of the model's file; a run trains in f32. The batch and the sequence are in `layout` */
} layout_file;

/* `model_path` (NULL: what the file says, if anything) also gives the batch when the file has none. `world` 0: any. All problems of the file come in
 * one message. */
loom_status layout_file_load(const char *path, const char *model_path, int world, layout_file *file);

/* The layout of a file, or "tp=8,pp=4" in one line, with its model, as a request of the planner: fills `file` and, in `plan`, model and train; the
 * topology of `plan` is there already. `global_batch` 0: as the files say. */
loom_status layout_file_for_plan(const char *operand, const char *model_path, int global_batch, layout_file *file, loom_plan_request *plan);

/* Schedules by the end of their name: .csv is torch's, .order Megatron's. */
bool is_csv(const char *path);
bool is_schedule(const char *path);
loom_status load_schedule(const char *path, loom_schedule **schedule);

#endif
