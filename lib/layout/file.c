/* A layout file: read from YAML, written back. */
#include <rankloom/layout.h>

#include <assert.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"


/* A degree or "auto". Returns whether the key is there. */
static bool read_degree(loom_reader *reader, const loom_node *map, loom_axis axis, loom_layout *layout, int *degree)
{
    const char *key = loom_axis_name(axis), *text = loom_node_text(loom_node_get(map, key));

    if (text && strcmp(text, "auto") == 0) {
        loom_read_text(reader, map, key, &text); /* so that the reader knows the key was asked for */
        *degree = 0;
        return true;
    }
    if (!loom_read_int(reader, map, key, 1, 1 << 24, degree))
        return loom_node_get(map, key) != NULL;
    layout->given |= 1u << axis;
    return true;
}

static void read_degrees(loom_reader *reader, const loom_node *map, loom_layout *l)
{
    bool has_dp;

    read_degree(reader, map, LOOM_AXIS_TP, l, &l->tp);
    read_degree(reader, map, LOOM_AXIS_CP, l, &l->cp);
    read_degree(reader, map, LOOM_AXIS_PP, l, &l->pp);
    has_dp = read_degree(reader, map, LOOM_AXIS_DP, l, &l->dp);
    if (!has_dp) /* what is left of the world, unless another degree takes that */
        l->dp = l->tp == 0 || l->cp == 0 || l->pp == 0;
    if (loom_read_int(reader, map, "ep", 1, 1 << 24, &l->ep))
        l->given |= 1u << LOOM_AXIS_EP;
    if (loom_read_int(reader, map, "etp", 1, 1 << 24, &l->etp))
        l->given |= 1u << LOOM_AXIS_ETP;
    loom_read_int(reader, map, "vpp", 1, LOOM_MAX_STAGES, &l->vpp);
}

enum { MOST_NAMES = 8 };

/* Reads one of the words that `name` gives for 0 .. count - 1. Returns whether it was there and right. */
static bool read_word(loom_reader *reader, const loom_node *map, const char *key, const char *(*name)(int), int count, int *value)
{
    const char *names[MOST_NAMES + 1] = {0};

    assert(count <= MOST_NAMES);
    for (int i = 0; i < count; i++)
        names[i] = name(i);
    return loom_read_choice(reader, map, key, names, value);
}

static const char *schedule_word(int value) { return loom_schedule_kind_name((loom_schedule_kind)value); }
static const char *recompute_word(int value) { return loom_recompute_name((loom_recompute)value); }
static const char *cp_kind_word(int value) { return loom_cp_kind_name((loom_cp_kind)value); }

static void read_words(loom_reader *reader, const loom_node *map, loom_layout *l)
{
    int schedule = l->schedule, recompute = l->recompute, cp_kind = l->cp_kind;

    if (!read_word(reader, map, "schedule", schedule_word, LOOM_SCHEDULE_KINDS, &schedule) && l->vpp > 1 && schedule == LOOM_SCHEDULE_1F1B)
        schedule = LOOM_SCHEDULE_INTERLEAVED; /* what 1F1B becomes with several chunks a stage, when nobody named one */
    read_word(reader, map, "recompute", recompute_word, LOOM_RECOMPUTE_FULL + 1, &recompute);
    read_word(reader, map, "cp_kind", cp_kind_word, LOOM_CP_AUTO + 1, &cp_kind);
    loom_read_int(reader, map, "cp_inner", 0, 1 << 24, &l->cp_inner);
    l->schedule = (loom_schedule_kind)schedule;
    l->recompute = (loom_recompute)recompute;
    l->cp_kind = (loom_cp_kind)cp_kind;
}

static void read_order(loom_reader *reader, const loom_node *map, loom_layout *l)
{
    const loom_node *list = loom_read_list(reader, map, "order");

    if (!list)
        return;
    if (loom_node_count(list) != 4) {
        loom_reader_problem(reader, list, "order has %zu entries; it names tp, cp, dp and pp once each, fastest first", loom_node_count(list));
        return;
    }
    for (int i = 0; i < 4; i++) {
        const char *text = loom_node_text(loom_node_at(list, (size_t)i));
        int axis = LOOM_AXIS_TP;

        while (axis <= LOOM_AXIS_PP && (!text || strcmp(text, loom_axis_name((loom_axis)axis)) != 0))
            axis++;
        if (axis <= LOOM_AXIS_PP)
            l->order[i] = (loom_axis)axis;
        else
            loom_reader_problem(reader, loom_node_at(list, (size_t)i), "'%s' is no axis of the rank order; tp, cp, dp and pp are", text ? text : "");
    }
}

static void read_fields(loom_reader *reader, const loom_node *map, loom_layout *l)
{
    size_t count = 0;

    loom_read_int(reader, map, "zero", 0, 3, &l->zero);
    loom_read_bool(reader, map, "sequence_parallel", &l->sequence_parallel);
    read_words(reader, map, l);
    loom_read_i64(reader, map, "micro_batch", 1, INT32_MAX, &l->micro_batch);
    loom_read_i64(reader, map, "global_batch", 1, INT32_MAX, &l->global_batch);
    loom_read_i64(reader, map, "seq", 1, INT32_MAX, &l->seq);
    if (loom_read_i64_list(reader, map, "layers_per_stage", 0, INT32_MAX, LOOM_MAX_STAGES, l->chunk_layers, &count))
        l->n_chunks = (int)count;
    read_order(reader, map, l);
}

void loom_layout_read(loom_reader *reader, const loom_node *node, const loom_model *model, int world, loom_layout *layout)
{
    enum { MOST = 32 };
    loom_rule_breach breaches[MOST];
    int before = loom_reader_problems(reader), count;

    read_degrees(reader, node, layout);
    read_fields(reader, node, layout);
    if (loom_reader_problems(reader) > before)
        return; /* the rules would judge values that nobody wrote */
    count = loom_layout_resolve(layout, model, world, breaches, MOST);
    for (int i = 0; i < count && i < MOST; i++)
        loom_reader_problem(reader, node, "%s", breaches[i].text);
}

static loom_status load(const loom_config *config, const loom_model *model, int world, loom_layout *layout)
{
    loom_reader *reader;
    const loom_node *root = loom_config_root(config), *section;
    loom_status status = loom_reader_open(config, &reader);

    if (status < 0)
        return status;
    section = loom_node_get(root, "layout") ? loom_read_map(reader, root, "layout") : NULL;
    if (section)
        loom_reader_allow_unknown(reader, root); /* a run file: its other sections are for others */
    loom_layout_read(reader, section ? section : root, model, world, layout);
    return loom_reader_finish(reader);
}

loom_status loom_layout_load(const char *path, const loom_model *model, int world, loom_layout *layout)
{
    loom_config *config;
    loom_status status = loom_config_load(path, &config);

    if (status < 0)
        return status;
    status = load(config, model, world, layout);
    loom_config_free(config);
    return status;
}

static void write_layers(loom_text *text, const loom_layout *l)
{
    int64_t sum = 0;

    for (int c = 0; c < l->n_chunks; c++)
        sum += l->chunk_layers[c];
    if (sum == 0)
        return; /* resolved without a model: even, whatever the model will be */
    for (int c = 0; c < l->n_chunks; c++)
        loom_text_add(text, "%s%lld", c ? ", " : "layers_per_stage: [", (long long)l->chunk_layers[c]);
    loom_text_add(text, "]%s\n", l->vpp > 1 ? " # of each chunk, in model order" : "");
}

static void write_fields(loom_text *text, const loom_layout *l)
{
    loom_text_add(text, "tp: %d\ncp: %d\npp: %d\nvpp: %d\ndp: %d\nep: %d\netp: %d\nzero: %d\n", l->tp, l->cp, l->pp, l->vpp, l->dp, l->ep,
                  l->etp, l->zero);
    loom_text_add(text, "sequence_parallel: %s\nschedule: %s\nmicro_batch: %lld\n", l->sequence_parallel ? "true" : "false",
                  loom_schedule_kind_name(l->schedule), (long long)l->micro_batch);
    if (l->global_batch > 0)
        loom_text_add(text, "global_batch: %lld\n", (long long)l->global_batch);
    if (l->seq > 0)
        loom_text_add(text, "seq: %lld\n", (long long)l->seq);
    write_layers(text, l);
    loom_text_add(text, "recompute: %s\ncp_kind: %s\norder: [%s, %s, %s, %s] # of ranks, fastest first\n", loom_recompute_name(l->recompute),
                  loom_cp_kind_name(l->cp_kind), loom_axis_name(l->order[0]), loom_axis_name(l->order[1]), loom_axis_name(l->order[2]),
                  loom_axis_name(l->order[3]));
    if (l->cp_inner > 0)
        loom_text_add(text, "cp_inner: %d\n", l->cp_inner);
}

loom_status loom_layout_yaml(const loom_layout *layout, char **text)
{
    loom_text yaml = {0};

    write_fields(&yaml, layout);
    return loom_text_take(&yaml, text);
}

loom_status loom_layout_save(const loom_layout *layout, const char *path)
{
    char *text;
    loom_status status = loom_layout_yaml(layout, &text);

    if (status < 0)
        return status;
    status = loom_file_replace(path, text, strlen(text));
    loom_text_free(text);
    return status;
}
