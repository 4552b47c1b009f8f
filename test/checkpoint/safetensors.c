/* Weight files: what is right loads, what is wrong is refused by rule and tensor, what is written is read. */
#include "check.h"

#include <rankloom/config.h>
#include <rankloom/safetensors.h>

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/loom-weights-XXXXXX";

/* A path in the test's folder; static, good for two calls. */
static const char *at(const char *name)
{
    static char paths[2][256];
    static int turn;

    snprintf(paths[turn ^= 1], sizeof paths[0], "%s/%s", folder, name);
    return paths[turn];
}

static loom_status open_case(const char *name)
{
    char path[128];
    loom_safetensors *file = NULL;

    snprintf(path, sizeof path, "cases/checkpoint/%s.safetensors", name);
    loom_status status = loom_safetensors_open(test_data(path), &file);
    loom_safetensors_close(file);
    return status;
}

/* A file with this header and so many bytes of data, all their own index. */
static loom_status open_made(const char *header, size_t data)
{
    uint64_t length = strlen(header);
    loom_safetensors *file = NULL;
    FILE *out = fopen(at("made.safetensors"), "wb");

    fwrite(&length, 8, 1, out);
    fwrite(header, 1, length, out);
    for (size_t i = 0; i < data; i++)
        fputc((int)i, out);
    fclose(out);
    loom_status status = loom_safetensors_open(at("made.safetensors"), &file);
    loom_safetensors_close(file);
    return status;
}

static void plain_and_padded_headers_load(void **state)
{
    static const char *const names[] = {"plain", "padded-header"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[128];
        float values[2];
        loom_safetensors *file;
        snprintf(path, sizeof path, "cases/checkpoint/F11-weight-file-length-field/%s.safetensors", names[i]);
        assert_ok(loom_safetensors_open(test_data(path), &file));
        const loom_tensor_view *a = loom_safetensors_find(file, "a");
        assert_int_equal(loom_safetensors_count(file), 1);
        assert_non_null(a);
        assert_true(a->count == 2 && loom_safetensors_at(file, 0) == a);
        assert_null(loom_safetensors_at(file, 1));
        assert_null(loom_safetensors_find(file, "b"));
        assert_ok(loom_tensor_to_f32(a, 0, 2, values));
        assert_true(values[0] == 1 && values[1] == 2);
        loom_safetensors_close(file);
    }
}

static void length_fields_are_checked_and_foreign_files_are_named(void **state)
{
    (void)state;
    assert_refused(open_case("F11-weight-file-length-field/header-length-126mb"), LOOM_E_INVALID, "above 100000000", "beyond the file");
    assert_refused(open_case("F11-weight-file-length-field/header-length-past-end"), LOOM_E_INVALID, "beyond the file");
    assert_refused(open_case("F11-weight-file-length-field/pointer-file"), LOOM_E_INVALID, "Git LFS pointer");
    assert_refused(open_case("F11-weight-file-length-field/zip-archive"), LOOM_E_INVALID, "zip archive");
    assert_refused(open_case("F11-weight-file-length-field/empty"), LOOM_E_INVALID, "is empty");
    assert_refused(open_case("F11-weight-file-length-field/seven-bytes"), LOOM_E_INVALID, "7 bytes");
    assert_refused(open_case("none"), LOOM_E_IO, "No such file");
}

static void ranges_are_checked_with_tensor_and_rule(void **state)
{
    (void)state;
    assert_refused(open_case("F12-weight-file-ranges/duplicate-name"), LOOM_E_INVALID, "key a is given twice");
    assert_refused(open_case("F12-weight-file-ranges/overlap"), LOOM_E_INVALID, "tensor b: its range overlaps that of a");
    assert_refused(open_case("F12-weight-file-ranges/hole"), LOOM_E_INVALID, "tensor b: bytes 4 to 8 before it belong to nobody");
    assert_refused(open_case("F12-weight-file-ranges/trailing-bytes"), LOOM_E_INVALID, "bytes after the last tensor");
    assert_refused(open_case("F12-weight-file-ranges/truncated"), LOOM_E_INVALID, "tensor a: its range ends at 16", "cut off");
    assert_refused(open_case("F12-weight-file-ranges/begin-after-end"), LOOM_E_INVALID, "tensor a: its range ends (0) before it begins (4)");
    assert_refused(open_case("F12-weight-file-ranges/size-against-shape"), LOOM_E_INVALID, "tensor a: 12 bytes by type and shape, 8 by data_offsets");
}

static void every_wrong_tensor_of_a_file_is_reported(void **state)
{
    (void)state;
    assert_refused(open_made("{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]},"
                             "\"c\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]},\"d\":{\"dtype\":\"F32\",\"shape\":[1]},\"e\":5,"
                             "\"f\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,4]},\"__metadata__\":{\"x\":[1]},"
                             "\"g\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,4]},\"h\":{\"shape\":[1,1,1,1,1,1,1,1,1],\"dtype\":\"F32\",\"data_offsets\":[0,4]}}",
                             4),
                   LOOM_E_INVALID, "tensor a: dtype is F31", "tensor b: a dimension", "tensor c: the shape has more elements", "tensor d: data_offsets must be",
                   "tensor e: its entry is no map", "tensor f: the shape gives no whole number of bytes", "__metadata__: x is no text", "tensor g: the shape gives no whole",
                   "tensor h: shape must be a list of at most 8");
    assert_refused(open_made("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}", 4), LOOM_E_INVALID, "made.safetensors:1:");
    assert_refused(open_made("[]", 0), LOOM_E_INVALID, "does not begin with '{'");
    assert_refused(open_made("{\"__metadata__\":5}", 0), LOOM_E_INVALID, "__metadata__ must be a map");
    assert_ok(open_made("{}", 0));
    assert_ok(open_made("{\"s\":{\"dtype\":\"I16\",\"shape\":[],\"data_offsets\":[0,2]},\"z\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[2,2]}}", 2));
}

/* A header whose length begins with the bytes of another format is none of it. */
static void a_length_that_looks_like_a_pickle_is_a_length(void **state)
{
    char header[0x280 + 1] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";

    (void)state;
    memset(header + strlen(header), ' ', 0x280 - strlen(header));
    assert_ok(open_made(header, 4));
}

static void fixtures_load_with_their_exact_values(void **state)
{
    loom_safetensors *file;
    float first[4];

    (void)state;
    assert_ok(loom_safetensors_open(test_data("fixtures/llama_tiny/weights.safetensors"), &file));
    int64_t total = 0;
    for (size_t i = 0; i < loom_safetensors_count(file); i++) {
        const loom_tensor_view *t = loom_safetensors_at(file, i);
        assert_int_equal(t->dtype, LOOM_BF16);
        assert_string_equal(t->type, "BF16");
        assert_true(i == 0 || strcmp(loom_safetensors_at(file, i - 1)->name, t->name) < 0);
        assert_ptr_equal(loom_safetensors_find(file, t->name), t);
        total += t->count;
    }
    assert_int_equal(total, 131648);
    const loom_tensor_view *k = loom_safetensors_find(file, "model.layers.1.self_attn.k_proj.weight");
    assert_true(k && k->dims == 2 && k->shape[0] == 16 && k->shape[1] == 64 && k->bytes == 2048);
    assert_ok(loom_tensor_to_f32(k, 1020, 4, first));
    for (int i = 0; i < 4; i++) {
        uint16_t bits;
        memcpy(&bits, (const char *)k->data + 2 * (1020 + i), 2);
        assert_true(first[i] == loom_f32_from_bf16(bits));
    }
    assert_refused(loom_tensor_to_f32(k, 1021, 4, first), LOOM_E_INVALID, "1024 elements");
    assert_refused(loom_tensor_to_f32(k, -1, 1, first), LOOM_E_INVALID, "not all there");
    assert_refused(loom_tensor_to_f32(k, INT64_MAX, INT64_MAX, first), LOOM_E_INVALID, "not all there");
    loom_safetensors_close(file);
    assert_refused(loom_safetensors_open(test_data("fixtures/llama_tiny"), &file), LOOM_E_INVALID, "exactly one .safetensors file");
}

/* --- writing ------------------------------------------------------------------------------------------------------------ */

static const loom_tensor_spec specs[] = {
    {"layers.1.w", LOOM_F32, 2, {3, 5}},   {"layers.0.w", LOOM_BF16, 2, {2, 4}}, {"empty", LOOM_F32, 2, {0, 7}},  {"name \"quoted\" \xc3\xa4", LOOM_F16, 1, {6}},
    {"double", LOOM_F64, 1, {3}},          {"ids", LOOM_I64, 1, {2}},            {"eight", LOOM_F8E4M3, 1, {5}},  {"scalar", LOOM_F8E5M2, 0, {0}},
};
enum { SPECS = sizeof specs / sizeof specs[0] };
static const loom_metadata metadata[] = {{"format", "pt"}, {"note", "a \"b\""}};

static int64_t count_of(const loom_tensor_spec *s)
{
    int64_t count = 1;

    for (int d = 0; d < s->dims; d++)
        count *= s->shape[d];
    return count;
}

/* Multiples of 1/4 below 16: exact in every type. */
static float value_of(size_t tensor, int64_t i)
{
    return (float)((tensor * 7 + (size_t)i) % 13) / 4 - 1.5f;
}

static loom_status write_all(loom_safetensors_writer *w)
{
    for (size_t t = 0; t < SPECS; t++) {
        float values[16];
        int64_t ids[2] = {INT64_MAX, -5};
        for (int64_t i = 0; i < count_of(&specs[t]); i++)
            values[i] = value_of(t, i);
        loom_status status = specs[t].dtype == LOOM_I64 ? loom_safetensors_write(w, ids, sizeof ids) : loom_safetensors_write_f32(w, values, (size_t)count_of(&specs[t]));
        if (status < 0)
            return status;
    }
    return LOOM_OK;
}

static void check_all(const char *path)
{
    loom_safetensors *file;

    assert_ok(loom_safetensors_open(path, &file));
    assert_int_equal(loom_safetensors_count(file), SPECS);
    assert_string_equal(loom_safetensors_metadata(file, "note"), "a \"b\"");
    assert_null(loom_safetensors_metadata(file, "none"));
    for (size_t t = 0; t < SPECS; t++) {
        const loom_tensor_view *v = loom_safetensors_find(file, specs[t].name);
        assert_true(v && v->dtype == specs[t].dtype && v->dims == specs[t].dims && v->count == count_of(&specs[t]));
        assert_memory_equal(v->shape, specs[t].shape, (size_t)v->dims * sizeof v->shape[0]);
        float values[16];
        if (v->dtype == LOOM_I64) {
            int64_t ids[2];
            memcpy(ids, v->data, sizeof ids);
            assert_true(ids[0] == INT64_MAX && ids[1] == -5);
            assert_refused(loom_tensor_to_f32(v, 0, 1, values), LOOM_E_INVALID, "I64");
            continue;
        }
        assert_ok(loom_tensor_to_f32(v, 0, v->count, values));
        for (int64_t i = 0; i < v->count; i++)
            assert_true(values[i] == value_of(t, i));
    }
    loom_safetensors_close(file);
}

static void what_is_written_is_read(void **state)
{
    loom_safetensors_writer *w;
    uint64_t length;

    (void)state;
    assert_ok(loom_safetensors_create(at("model.safetensors"), specs, SPECS, metadata, 2, 0, &w));
    assert_ok(write_all(w));
    assert_int_equal(access(at("model.safetensors"), F_OK), -1); /* not before the commit */
    assert_ok(loom_safetensors_commit(w));
    check_all(at("model.safetensors"));
    check_all(folder);
    FILE *in = fopen(at("model.safetensors"), "rb");
    assert_int_equal(fread(&length, 8, 1, in), 1);
    fclose(in);
    assert_int_equal(length % 8, 0);
}

static void a_large_set_is_split_with_an_index(void **state)
{
    loom_safetensors_writer *w;
    loom_safetensors *file;

    (void)state;
    assert_ok(loom_safetensors_create(at("model.safetensors"), specs, SPECS, metadata, 2, 64, &w));
    assert_ok(write_all(w));
    assert_ok(loom_safetensors_commit(w));
    assert_int_equal(access(at("model.safetensors"), F_OK), -1); /* the file of the test before would be loaded in place of the index */
    assert_int_equal(access(at("model-00001-of-00003.safetensors"), F_OK), 0);
    check_all(at("model.safetensors.index.json"));
    check_all(folder);

    assert_int_equal(unlink(at("model-00002-of-00003.safetensors")), 0);
    assert_refused(loom_safetensors_open(folder, &file), LOOM_E_IO, "model-00002-of-00003");
    assert_int_equal(link(at("model-00001-of-00003.safetensors"), at("model-00002-of-00003.safetensors")), 0);
    assert_refused(loom_safetensors_open(folder, &file), LOOM_E_INVALID, "are not in the files it names", "model-00002-of-00003.safetensors");

    assert_ok(loom_safetensors_create(at("model.safetensors"), specs, SPECS, metadata, 2, 0, &w));
    assert_ok(write_all(w));
    assert_ok(loom_safetensors_commit(w));
    assert_int_equal(access(at("model.safetensors.index.json"), F_OK), -1);
    check_all(folder);
}

static void pieces_of_the_stream_have_any_size(void **state)
{
    const loom_tensor_spec two[] = {{"a", LOOM_U8, 1, {5}}, {"none", LOOM_U8, 1, {0}}, {"b", LOOM_U8, 1, {6}}};
    loom_safetensors_writer *w;
    loom_safetensors *file;

    (void)state;
    for (size_t piece = 1; piece <= 11; piece++) {
        assert_ok(loom_safetensors_create(at("p.safetensors"), two, 3, NULL, 0, 0, &w));
        for (size_t i = 0; i < 11; i += piece)
            assert_ok(loom_safetensors_write(w, "hello world" + i, i + piece < 11 ? piece : 11 - i));
        assert_ok(loom_safetensors_commit(w));
        assert_ok(loom_safetensors_open(at("p.safetensors"), &file));
        assert_memory_equal(loom_safetensors_find(file, "a")->data, "hello", 5);
        assert_memory_equal(loom_safetensors_find(file, "b")->data, " world", 6);
        loom_safetensors_close(file);
    }
}

static void an_unfinished_or_failed_save_leaves_the_old_file(void **state)
{
    loom_safetensors_writer *w;
    float values[20] = {0};

    (void)state;
    assert_ok(loom_safetensors_create(at("model.safetensors"), specs, SPECS, metadata, 2, 0, &w));
    assert_ok(loom_safetensors_write_f32(w, values, 15));
    assert_refused(loom_safetensors_commit(w), LOOM_E_INVALID, "tensor layers.0.w has 0 of its 16 bytes");
    assert_ok(loom_safetensors_create(at("model.safetensors"), specs, SPECS, metadata, 2, 0, &w));
    assert_refused(loom_safetensors_write_f32(w, values, 16), LOOM_E_INVALID, "run over the end of tensor layers.1.w");
    assert_int_equal(loom_safetensors_commit(w), LOOM_E_INVALID);
    assert_ok(loom_safetensors_create(at("model.safetensors"), specs, 1, NULL, 0, 0, &w));
    assert_refused(loom_safetensors_write(w, values, 64), LOOM_E_INVALID, "4 bytes more");
    loom_safetensors_abandon(w);
    loom_safetensors_abandon(NULL);
    check_all(at("model.safetensors"));
}

static void wrong_specs_are_refused(void **state)
{
    const loom_tensor_spec twice[] = {{"a", LOOM_U8, 1, {5}}, {"b", LOOM_U8, 1, {5}}, {"a", LOOM_U8, 1, {5}}};
    const loom_tensor_spec reserved = {"__metadata__", LOOM_U8, 1, {5}}, negative = {"a", LOOM_U8, 1, {-5}}, huge = {"a", LOOM_F64, 2, {INT64_MAX / 2, 4}},
                           deep = {"a", LOOM_U8, 9, {1}};
    loom_safetensors_writer *w;

    (void)state;
    assert_refused(loom_safetensors_create(at("x.safetensors"), twice, 3, NULL, 0, 0, &w), LOOM_E_INVALID, "two tensors are called a");
    assert_refused(loom_safetensors_create(at("x.safetensors"), &reserved, 1, NULL, 0, 0, &w), LOOM_E_INVALID, "__metadata__");
    assert_refused(loom_safetensors_create(at("x.safetensors"), &negative, 1, NULL, 0, 0, &w), LOOM_E_INVALID, "no size");
    assert_refused(loom_safetensors_create(at("x.safetensors"), &huge, 1, NULL, 0, 0, &w), LOOM_E_INVALID, "no size");
    assert_refused(loom_safetensors_create(at("x.safetensors"), &deep, 1, NULL, 0, 0, &w), LOOM_E_INVALID, "9 dimensions");
    assert_refused(loom_safetensors_create(at("x.bin"), twice, 1, NULL, 0, 0, &w), LOOM_E_INVALID, "NAME.safetensors");
    assert_refused(loom_safetensors_create(at("no/x.safetensors"), twice, 1, NULL, 0, 0, &w), LOOM_E_IO, "No such file");
}

/* Names of 1 MB: escaped, twenty of them might not fit one header. */
static void a_header_never_exceeds_its_limit(void **state)
{
    enum { TENSORS = 20, NAME = 1 << 20 };
    static loom_tensor_spec many[TENSORS];
    loom_safetensors_writer *w;
    loom_safetensors *file;

    (void)state;
    for (int i = 0; i < TENSORS; i++) {
        char *name = malloc(NAME + 1);
        memset(name, 'x', NAME);
        sprintf(name + NAME - 4, "%04d", i);
        many[i] = (loom_tensor_spec){name, LOOM_U8, 1, {1}};
    }
    assert_ok(loom_safetensors_create(at("long.safetensors"), many, TENSORS, NULL, 0, 0, &w)); /* so two files */
    for (int i = 0; i < TENSORS; i++)
        assert_ok(loom_safetensors_write(w, &i, 1));
    assert_ok(loom_safetensors_commit(w));
    assert_ok(loom_safetensors_open(at("long.safetensors.index.json"), &file));
    for (int i = 0; i < TENSORS; i++) {
        assert_int_equal(*(const uint8_t *)loom_safetensors_find(file, many[i].name)->data, i);
        free((char *)many[i].name);
    }
    loom_safetensors_close(file);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[300];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_and_padded_headers_load),
        cmocka_unit_test(length_fields_are_checked_and_foreign_files_are_named),
        cmocka_unit_test(ranges_are_checked_with_tensor_and_rule),
        cmocka_unit_test(every_wrong_tensor_of_a_file_is_reported),
        cmocka_unit_test(a_length_that_looks_like_a_pickle_is_a_length),
        cmocka_unit_test(fixtures_load_with_their_exact_values),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(a_large_set_is_split_with_an_index),
        cmocka_unit_test(pieces_of_the_stream_have_any_size),
        cmocka_unit_test(an_unfinished_or_failed_save_leaves_the_old_file),
        cmocka_unit_test(wrong_specs_are_refused),
        cmocka_unit_test(a_header_never_exceeds_its_limit),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
