#include "run.h"
#include "try.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* What the sections need besides the reader: where relative paths start, and which values came from the command line. */
typedef struct run_reader {
    loom_reader *reader;
    const loom_node *root;
    const char *folder; /* of the file, "" or ending in a slash */
    const char *const *assignments;
    int n_assignments;
    int world, node_ranks;
    gpt_run *run;
    const loom_model *model; /* of the run, once it was read without a problem: judging a layout by half a model only confuses */
} run_reader;

static bool assigned(const run_reader *r, const char *section, const char *key)
{
    char prefix[128];

    snprintf(prefix, sizeof prefix, "%s%s%s=", section, *section ? "." : "", key);
    for (int i = 0; i < r->n_assignments; i++)
        if (strncmp(r->assignments[i], prefix, strlen(prefix)) == 0)
            return true;
    return false;
}

static void read_path(run_reader *r, const loom_node *map, const char *section, const char *key, char path[GPT_PATH_BYTES])
{
    const char *text;

    if (!loom_read_text(r->reader, map, key, &text))
        return;
    if (snprintf(path, GPT_PATH_BYTES, "%s%s", text[0] == '/' || assigned(r, section, key) ? "" : r->folder, text) >= GPT_PATH_BYTES)
        loom_reader_problem(r->reader, loom_node_get(map, key), "%s: a path of more than %d bytes", key, GPT_PATH_BYTES - 1);
}

static void read_model(run_reader *r)
{
    const loom_node *map = loom_read_map(r->reader, r->root, "model");
    char path[GPT_PATH_BYTES] = "";

    if (!loom_node_get(map, "file")) {
        loom_model_read(r->reader, map, &r->run->model);
        return;
    }
    read_path(r, map, "model", "file", path);
    if (path[0] && loom_model_load(path, &r->run->model, NULL) < 0)
        loom_reader_problem(r->reader, loom_node_get(map, "file"), "%s", loom_last_error());
}

static void read_separator(run_reader *r, const loom_node *map)
{
    int64_t separator, most = r->run->model.vocab > 0 ? r->run->model.vocab - 1 : INT32_MAX;

    r->run->data.packed = loom_read_i64(r->reader, map, "separator", 0, most, &separator);
    if (r->run->data.packed)
        r->run->data.separator = (int32_t)separator;
}

static void read_data(run_reader *r)
{
    static const char *const tokenizers[] = {"bytes", "uint16", NULL}, *const orders[] = {"sequential", "golden", NULL};
    const loom_node *map = loom_read_map(r->reader, r->root, "data");
    int tokenizer = GPT_BYTES, order = GPT_SEQUENTIAL;

    loom_require(r->reader, r->root, "data");
    if (map)
        loom_require(r->reader, map, "path");
    read_path(r, map, "data", "path", r->run->data.path);
    loom_read_choice(r->reader, map, "tokenizer", tokenizers, &tokenizer);
    loom_read_choice(r->reader, map, "order", orders, &order);
    r->run->data.tokenizer = (gpt_tokenizer)tokenizer;
    r->run->data.order = (gpt_order)order;
    read_separator(r, map);
}

static void read_adamw(run_reader *r, const loom_node *map)
{
    loom_adamw_config *adamw = &r->run->train.adamw;
    double betas[2];
    size_t count = 0;

    *adamw = (loom_adamw_config){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};
    loom_read_f64(r->reader, map, "weight_decay", 0, 1, &adamw->weight_decay);
    loom_read_f64(r->reader, map, "eps", 0, 1, &adamw->eps);
    loom_read_f64(r->reader, map, "clip", 0, 1e30, &adamw->clip);
    if (!loom_read_f64_list(r->reader, map, "betas", 0, 1, 2, betas, &count))
        return;
    if (count != 2) {
        loom_reader_problem(r->reader, loom_node_get(map, "betas"), "betas has %zu numbers; AdamW has two, such as [0.9, 0.95]", count);
        return;
    }
    adamw->beta1 = betas[0];
    adamw->beta2 = betas[1];
}

static void read_train(run_reader *r)
{
    const loom_node *map = loom_read_map(r->reader, r->root, "train");
    gpt_run *run = r->run;
    bool graphs = true;

    run->train.steps = 100;
    run->train.global_batch = 8;
    run->train.micro_batch = 1;
    run->train.seq = run->model.seq;
    run->train.seed = 1;
    run->train.lr = 3e-4;
    loom_read_i64(r->reader, map, "steps", 0, INT64_C(1) << 40, &run->train.steps);
    loom_read_i64(r->reader, map, "global_batch", 1, INT64_C(1) << 40, &run->train.global_batch);
    loom_read_i64(r->reader, map, "micro_batch", 1, INT64_C(1) << 31, &run->train.micro_batch);
    loom_read_i64(r->reader, map, "seq", 1, INT64_C(1) << 31, &run->train.seq);
    loom_read_i64(r->reader, map, "seed", 0, INT64_MAX, &run->train.seed);
    loom_read_i64(r->reader, map, "warmup", 0, INT64_C(1) << 40, &run->train.warmup);
    loom_read_f64(r->reader, map, "lr", 0, 1e6, &run->train.lr);
    run->train.min_lr = run->train.lr / 10;
    loom_read_f64(r->reader, map, "min_lr", 0, 1e6, &run->train.min_lr);
    loom_read_bool(r->reader, map, "graphs", &graphs);
    run->train.eager = !graphs;
    read_adamw(r, map);
    if (run->model.positions == LOOM_LEARNED && run->model.seq > 0 && run->train.seq > run->model.seq)
        loom_reader_problem(r->reader, loom_node_get(map, "seq"), "seq %lld: the model has %lld learned positions",
                            (long long)run->train.seq, (long long)run->model.seq);
}

/* A value that the train section and a layout file both have: they must say the same, and the file fills in what train left out. */
static void agree(run_reader *r, const loom_node *node, const char *path, const char *key, int64_t planned, int64_t *trained)
{
    bool said = loom_node_get(loom_node_get(r->root, "train"), key) != NULL;

    if (said && planned != *trained)
        loom_reader_problem(r->reader, node, "%s is a layout for %s %lld, and train.%s is %lld", path, key, (long long)planned, key, (long long)*trained);
    *trained = planned;
}

/* A layout in a file of its own. Its micro-batch is part of it; the batch and the sequence are the training's. */
static void read_layout_file(run_reader *r, const loom_node *node)
{
    gpt_run *run = r->run;
    char path[GPT_PATH_BYTES] = "";

    read_path(r, r->root, "", "layout", path);
    if (!path[0] || !r->model)
        return;
    if (loom_layout_load(path, r->model, r->world, &run->layout) < 0) {
        loom_reader_problem(r->reader, node, "%s", loom_last_error());
        return;
    }
    agree(r, node, path, "global_batch", run->layout.global_batch, &run->train.global_batch);
    agree(r, node, path, "seq", run->layout.seq, &run->train.seq);
    run->train.micro_batch = run->layout.micro_batch;
}

/* `layout:` is a section, the word auto, or a file. */
static void read_layout(run_reader *r)
{
    const loom_node *node = loom_node_get(r->root, "layout");
    const char *text = loom_node_text(node);
    loom_layout *layout = &r->run->layout;

    loom_layout_default(r->model, layout);
    layout->dp = 0; /* absent: what is left of the world */
    layout->micro_batch = r->run->train.micro_batch;
    layout->global_batch = r->run->train.global_batch;
    layout->seq = r->run->train.seq;
    layout->pad_seq = true;
    layout->fast_ranks = r->node_ranks;
    read_path(r, r->root, "", "topology", r->run->topology);
    r->run->planned = text && strcmp(text, "auto") == 0;
    if (r->run->planned)
        loom_read_text(r->reader, r->root, "layout", &text); /* so that the reader knows the key was asked for */
    else if (text)
        read_layout_file(r, node);
    else
        loom_layout_read(r->reader, loom_read_map(r->reader, r->root, "layout"), r->model, r->world, layout);
}

static void read_experts(run_reader *r)
{
    const char *const dispatchers[] = {loom_ep_dispatcher_name(LOOM_EP_ALLTOALL), loom_ep_dispatcher_name(LOOM_EP_ALLGATHER), NULL};
    const loom_node *map = loom_read_map(r->reader, r->root, "moe");
    loom_ep_config *experts = &r->run->experts;
    int dispatcher = LOOM_EP_ALLTOALL;

    loom_read_choice(r->reader, map, "dispatch", dispatchers, &dispatcher);
    loom_read_f64(r->reader, map, "capacity_factor", 0, 1e6, &experts->capacity_factor);
    experts->dispatcher = (loom_ep_dispatcher)dispatcher;
    if (map && r->model && r->model->moe.experts == 0)
        loom_reader_problem(r->reader, map, "moe: %s has no experts", r->model->name);
}

static void read_output(run_reader *r)
{
    const loom_node *map = loom_read_map(r->reader, r->root, "output");
    gpt_run *run = r->run;

    run->output.sample = 200;
    run->output.save = true;
    read_path(r, map, "output", "dir", run->output.dir);
    read_path(r, map, "output", "metrics", run->output.metrics);
    read_path(r, map, "output", "trace", run->output.trace);
    read_path(r, map, "output", "plot", run->output.plot);
    loom_read_bool(r->reader, map, "save", &run->output.save);
    loom_read_i64(r->reader, map, "sample", 0, 1 << 20, &run->output.sample);
}

static void read_run(run_reader *r)
{
    static const char *const devices[] = {"cpu", "cuda", "auto", NULL};
    enum { AUTO = 2 };
    int device = LOOM_CPU;

    read_model(r);
    if (loom_reader_problems(r->reader) == 0)
        r->model = &r->run->model;
    read_path(r, r->root, "", "init", r->run->init);
    read_data(r);
    read_train(r);
    read_experts(r);
    read_layout(r);
    read_output(r);
    loom_read_choice(r->reader, r->root, "device", devices, &device);
    r->run->device_auto = device == AUTO;
    r->run->device = device == AUTO ? LOOM_CUDA : (loom_device_kind)device;
}

static void folder_of(const char *path, char folder[GPT_PATH_BYTES])
{
    const char *slash = strrchr(path, '/');

    snprintf(folder, GPT_PATH_BYTES, "%.*s", slash ? (int)(slash - path + 1) : 0, path);
}

/* A legal layout that this trainer can run. */
static loom_status check_layout(gpt_run *run, int world)
{
    TRY(loom_layout_check(&run->layout, &run->model, world));
    return loom_engine_check_layout(&run->layout);
}

static loom_status load(loom_config *config, const char *path, const char *const *assignments, int count, int world, int node_ranks,
                        gpt_run *run)
{
    char folder[GPT_PATH_BYTES];
    run_reader reader = {.root = loom_config_root(config), .folder = folder, .assignments = assignments, .n_assignments = count,
                         .world = world, .node_ranks = node_ranks, .run = run};

    folder_of(path, folder);
    TRY(loom_reader_open(config, &reader.reader));
    read_run(&reader);
    TRY(loom_reader_finish(reader.reader));
    TRY(loom_engine_check_model(&run->model));
    return run->planned ? LOOM_OK : check_layout(run, world);
}

loom_status gpt_run_load(const char *path, const char *const *assignments, int count, int world, int node_ranks, gpt_run *run)
{
    loom_config *config;
    loom_status status = LOOM_OK;

    memset(run, 0, sizeof *run);
    TRY(loom_config_load(path, &config));
    for (int i = 0; i < count && status == LOOM_OK; i++)
        status = loom_config_override(config, assignments[i]);
    if (status == LOOM_OK)
        status = load(config, path, assignments, count, world, node_ranks, run);
    loom_config_free(config);
    return status;
}
