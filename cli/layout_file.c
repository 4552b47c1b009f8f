#include "layout_file.h"

#include <stdio.h>
#include <string.h>

typedef struct source {
    const char *path;
    loom_reader *reader;
    const loom_node *root;
    layout_file *file;
} source;

static bool ends_in(const char *path, const char *end)
{
    size_t length = strlen(path), tail = strlen(end);

    return length >= tail && strcmp(path + length - tail, end) == 0;
}

bool is_csv(const char *path)
{
    return ends_in(path, ".csv");
}

bool is_schedule(const char *path)
{
    return is_csv(path) || ends_in(path, ".order");
}

loom_status load_schedule(const char *path, loom_schedule **schedule)
{
    return is_csv(path) ? loom_schedule_load_csv(path, 0, 0, schedule) : loom_schedule_load_order(path, schedule);
}

/* Names files relative to the file that names them. */
static void read_model_file(source *s, const loom_node *map)
{
    const char *name, *slash = strrchr(s->path, '/');
    char path[4096];

    if (!loom_read_text(s->reader, map, "file", &name))
        return;
    snprintf(path, sizeof path, "%.*s%s", slash && name[0] != '/' ? (int)(slash - s->path + 1) : 0, s->path, name);
    if (loom_model_load(path, &s->file->model, NULL) < 0)
        loom_reader_problem(s->reader, loom_node_get(map, "file"), "%s", loom_last_error());
    else
        s->file->has_model = true;
}

static void read_model(source *s)
{
    const loom_node *map = loom_read_map(s->reader, s->root, "model");
    int before = loom_reader_problems(s->reader);

    if (!map || s->file->has_model) {
        if (map)
            loom_reader_allow_unknown(s->reader, map); /* --model goes before it */
        return;
    }
    if (loom_node_get(map, "file")) {
        read_model_file(s, map);
        return;
    }
    loom_model_read(s->reader, map, &s->file->model);
    s->file->has_model = loom_reader_problems(s->reader) == before;
}

/* `layout: auto` has no layout yet, and a file is judged by itself. */
static const loom_node *read_named_layout(source *s)
{
    const loom_node *node = loom_node_get(s->root, "layout");
    const char *name;

    loom_read_text(s->reader, s->root, "layout", &name);
    if (strcmp(name, "auto") == 0)
        loom_reader_problem(s->reader, node, "layout: auto is planned when the run starts; rankloom plan says what it would be");
    else
        loom_reader_problem(s->reader, node, "layout: the run's layout is in %s; name that file", name);
    return NULL;
}

/* What changes a run's memory beside its model and layout. */
static void read_options(source *s)
{
    const loom_node *data = loom_node_get(s->root, "data"), *moe = loom_node_get(s->root, "moe");
    loom_run_options *run = &s->file->run;
    const char *dispatch = loom_node_text(loom_node_get(moe, "dispatch"));

    run->packed = loom_node_get(data, "separator") != NULL;
    run->gathers_experts = dispatch && strcmp(dispatch, "allgather") == 0;
    loom_read_f64(s->reader, moe, "capacity_factor", 0, 1e6, &run->capacity_factor);
}

/* A run file: what concerns the layout is judged, the rest belongs to the trainer. */
static const loom_node *read_run(source *s)
{
    static const char *const others[] = {"data", "moe", "output"};
    static const char *const values[] = {"init", "device", "topology"};
    const loom_node *train = loom_read_map(s->reader, s->root, "train");
    loom_layout *l = &s->file->layout;
    const char *text;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const loom_node *map = loom_read_map(s->reader, s->root, others[i]);
        if (map)
            loom_reader_allow_unknown(s->reader, map);
    }
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        loom_read_text(s->reader, s->root, values[i], &text);
    read_options(s);
    read_model(s);
    loom_layout_default(s->file->has_model ? &s->file->model : NULL, l);
    s->file->train.precision = LOOM_F32; /* the trainer's */
    if (train)
        loom_reader_allow_unknown(s->reader, train);
    loom_read_i64(s->reader, train, "global_batch", 1, INT32_MAX, &l->global_batch);
    loom_read_i64(s->reader, train, "micro_batch", 1, INT32_MAX, &l->micro_batch);
    loom_read_i64(s->reader, train, "seq", 1, INT32_MAX, &l->seq);
    return loom_node_text(loom_node_get(s->root, "layout")) ? read_named_layout(s) : loom_read_map(s->reader, s->root, "layout");
}

static void start_from_train_shape(loom_layout *layout, const loom_train_shape *train)
{
    if (train->global_batch > 0)
        layout->global_batch = train->global_batch;
    if (train->micro_batch > 0)
        layout->micro_batch = train->micro_batch;
    if (train->seq > 0)
        layout->seq = train->seq;
}

static loom_status read_file(const loom_config *config, int world, source *s)
{
    loom_status status = loom_reader_open(config, &s->reader);
    const loom_node *layout = loom_config_root(config);

    if (status < 0)
        return status;
    s->root = layout;
    loom_layout_default(s->file->has_model ? &s->file->model : NULL, &s->file->layout);
    if (loom_node_get(layout, "layout") || loom_node_get(layout, "train"))
        layout = read_run(s);
    start_from_train_shape(&s->file->layout, &s->file->train);
    if (loom_reader_problems(s->reader) == 0 || layout)
        loom_layout_read(s->reader, layout, s->file->has_model ? &s->file->model : NULL, world, &s->file->layout);
    return loom_reader_finish(s->reader);
}

loom_status layout_file_load(const char *path, const char *model_path, int world, layout_file *file)
{
    source s = {.path = path, .file = file};
    loom_config *config;
    loom_status status;

    memset(file, 0, sizeof *file);
    file->train.precision = LOOM_BF16;
    if (model_path && (status = loom_model_load(model_path, &file->model, &file->train)) < 0)
        return status;
    file->has_model = model_path != NULL;
    if ((status = loom_config_load(path, &config)) < 0)
        return status;
    status = read_file(config, world, &s);
    loom_config_free(config);
    return status;
}

static loom_status load_line(const char *line, const char *model_path, int global_batch, layout_file *file, loom_plan_request *plan)
{
    loom_status status;

    if (!model_path)
        return loom_fail(LOOM_E_INVALID, "--model FILE is needed with a layout in one line");
    if ((status = loom_model_load(model_path, &file->model, &file->train)) < 0)
        return status;
    file->has_model = true;
    plan->train = file->train;
    plan->train.global_batch = global_batch > 0 ? global_batch : plan->train.global_batch;
    return loom_plan_layout(plan, line, &file->layout);
}

loom_status layout_file_for_plan(const char *operand, const char *model_path, int global_batch, layout_file *file, loom_plan_request *plan)
{
    loom_layout *layout = &file->layout;
    loom_status status;

    plan->model = &file->model;
    if (strchr(operand, '='))
        status = load_line(operand, model_path, global_batch, file, plan);
    else
        status = layout_file_load(operand, model_path, 0, file);
    if (status < 0)
        return status;
    if (!file->has_model)
        return loom_fail(LOOM_E_INVALID, "%s: says no model; --model FILE does", operand);
    layout->global_batch = global_batch > 0 ? global_batch : layout->global_batch;
    layout->seq = layout->seq > 0 ? layout->seq : file->model.seq;
    plan->run = file->run;
    plan->train = file->train;
    plan->train.global_batch = layout->global_batch;
    plan->train.seq = layout->seq;
    return loom_layout_check(layout, &file->model, 0);
}
