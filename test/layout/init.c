/* Starting values against the initial weights of the fixtures: every tensor of four models, whole and put together from every cut, has the hash
 * that stands in expected.json. */
#include <rankloom/config.h>
#include <rankloom/dtype.h>
#include <rankloom/shard.h>

#include <math.h>

#include "check.h"
#include "core/file.h"
#include "core/random.h"

enum { MOST_ELEMENTS = 128 * 192 };

/* What of config.json the starting values depend on. */
typedef struct fixture {
    loom_config *config, *expected, *header;
    double std, jitter, layers;
    uint64_t seed;
} fixture;

static double number(const loom_config *config, const char *name, const char *other_name)
{
    const loom_node *node = loom_node_get(loom_config_root(config), name);
    double value = 0;

    assert_true(loom_node_as_f64(node ? node : loom_node_get(loom_config_root(config), other_name), &value));
    return value;
}

static loom_config *json_of(const char *model, const char *file)
{
    char path[256];
    loom_config *config;

    snprintf(path, sizeof path, "fixtures/%s/%s", model, file);
    assert_ok(loom_config_load(test_data(path), &config));
    return config;
}

/* The header of a safetensors file: eight bytes of length, then JSON. */
static loom_config *header_of(const char *model)
{
    char path[256], *data;
    size_t bytes;
    uint64_t length;
    loom_config *config;

    snprintf(path, sizeof path, "fixtures/%s/weights.safetensors", model);
    assert_ok(loom_file_read(test_data(path), 16 << 20, &data, &bytes));
    memcpy(&length, data, sizeof length);
    assert_true(length + 8 <= bytes);
    assert_ok(loom_config_parse(path, data + 8, length, &config));
    free(data);
    return config;
}

static fixture open_fixture(const char *model)
{
    fixture f = {json_of(model, "config.json"), json_of(model, "expected.json"), header_of(model)};

    f.std = number(f.config, "initializer_range", "initializer_range");
    f.layers = number(f.config, "num_hidden_layers", "n_layer");
    assert_true(loom_node_as_f64(loom_node_get(loom_node_get(loom_config_root(f.config), "rankloom"), "init_jitter"), &f.jitter));
    f.seed = (uint64_t)number(f.expected, "init_seed", "init_seed");
    return f;
}

static void close_fixture(fixture *f)
{
    loom_config_free(f->config);
    loom_config_free(f->expected);
    loom_config_free(f->header);
}

static bool ends_in(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);

    return length >= tail && strcmp(name + length - tail, end) == 0;
}

/* Matrices that write into the residual stream are scaled down with depth. */
static bool writes_residual(const char *name)
{
    return ends_in(name, "c_proj.weight") || ends_in(name, "o_proj.weight") || ends_in(name, "down_proj.weight") || ends_in(name, "w2.weight");
}

static loom_init init_of(const fixture *f, const char *name, int dims)
{
    if (dims > 1)
        return (loom_init){LOOM_INIT_NORMAL, writes_residual(name) ? f->std / sqrt(2 * f->layers) : f->std};
    return (loom_init){ends_in(name, "bias") ? LOOM_INIT_ZEROS : LOOM_INIT_ONES, f->jitter};
}

static uint64_t hash_as_bf16(const float *value, int64_t count)
{
    static uint16_t bits[MOST_ELEMENTS];

    assert_true(count <= MOST_ELEMENTS);
    for (int64_t i = 0; i < count; i++)
        bits[i] = loom_bf16_from_f32(value[i]);
    return loom_fnv1a64(bits, (size_t)count * sizeof *bits); /* little-endian machine, as the files are */
}

typedef struct gather {
    const float *part;
    float *whole;
} gather;

static loom_status put_back(void *context, int64_t local, int64_t global, int64_t count)
{
    const gather *g = context;

    memcpy(g->whole + global, g->part + local, sizeof(float) * (size_t)count);
    return LOOM_OK;
}

/* Fills the parts of a tensor cut along `dim` in `blocks` equal blocks (several: fused q, k, v), each block over `parts` ranks. */
static void fill_in_parts(const loom_shard *whole, uint64_t seed, int dim, int blocks, int parts, float *value)
{
    static float part[MOST_ELEMENTS + 4096];

    for (int rank = 0; rank < parts; rank++) {
        loom_shard shard = *whole;
        gather g = {part, value};

        shard.split_dim = dim;
        shard.split_axis = LOOM_AXIS_TP;
        shard.n_ranges = blocks;
        for (int b = 0; b < blocks; b++) {
            loom_range cut = loom_cut(whole->shape[dim] / blocks, parts, rank);
            shard.ranges[b] = (loom_range){cut.begin + b * whole->shape[dim] / blocks, cut.end + b * whole->shape[dim] / blocks};
        }
        shard.padding = rank % 2;
        loom_init_fill(&shard, seed, part);
        assert_ok(loom_shard_visit(&shard, put_back, &g));
    }
}

static void check_tensor(const fixture *f, const char *name, const loom_node *entry, uint64_t expected)
{
    static float value[MOST_ELEMENTS];
    const loom_node *shape = loom_node_get(entry, "shape");
    loom_shard shard = {.dims = (int)loom_node_count(shape), .split_dim = -1};

    snprintf(shard.name, sizeof shard.name, "%s", name);
    for (int d = 0; d < shard.dims; d++)
        assert_true(loom_node_as_i64(loom_node_at(shape, (size_t)d), &shard.shape[d]));
    shard.init = init_of(f, name, shard.dims);
    loom_init_fill(&shard, f->seed, value);
    if (hash_as_bf16(value, loom_shard_global_count(&shard)) != expected)
        fail_msg("%s starts with other values", name);
    for (int dim = 0; dim < shard.dims; dim++)
        for (int blocks = 1; blocks <= 3; blocks += 2)
            for (int parts = 2; parts <= 5 && shard.shape[dim] % blocks == 0; parts++) {
                memset(value, 0, sizeof value);
                fill_in_parts(&shard, f->seed, dim, blocks, parts, value);
                if (hash_as_bf16(value, loom_shard_global_count(&shard)) != expected)
                    fail_msg("%s in %d parts of %d blocks along %d starts with other values", name, parts, blocks, dim);
            }
}

static int check_model(const char *model)
{
    fixture f = open_fixture(model);
    const loom_node *hashes = loom_node_get(loom_config_root(f.expected), "weights_fnv1a64");
    int tensors = (int)loom_node_count(hashes);

    for (int i = 0; i < tensors; i++) {
        const char *name = loom_node_key_at(hashes, (size_t)i);
        check_tensor(&f, name, loom_node_get(loom_config_root(f.header), name), strtoull(loom_node_text(loom_node_at(hashes, (size_t)i)), NULL, 16));
    }
    close_fixture(&f);
    return tensors;
}

static void all_tensors_of_the_fixtures_start_right_from_every_cut(void **state)
{
    assert_int_equal(check_model("gpt2_tiny") + check_model("llama_tiny") + check_model("mixtral_tiny") + check_model("deepseek_tiny"), 238);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_tensors_of_the_fixtures_start_right_from_every_cut)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
