#include "harness.h"
#include "shim_maker.h"

#include "core/random.h"

#include <stdio.h>

maker makers[MAKERS_MAX];
int n_makers;
bool makers_are_slow;
static loom_device *devices[2];

static void open_configured(loom_device *device, const loom_kernels_config *config)
{
    maker *m = &makers[n_makers];
    loom_status status = loom_kernels_open(device, config, &m->kernels);

    if (status == LOOM_E_UNSUPPORTED)
        return;
    assert_int_equal(status, LOOM_OK);
    assert_int_equal(loom_stream_open(device, LOOM_STREAM_INLINE, "test", &m->stream), LOOM_OK);
    m->close = loom_kernels_close;
    snprintf(m->name, sizeof m->name, "%s/%s/%d threads", m->kernels->isa, m->kernels->gemm_library, loom_device_threads(device));
    n_makers++;
}

static void open_maker(loom_device *device, const char *isa, const char *gemm)
{
    open_configured(device, &(loom_kernels_config){.isa = isa, .gemm_library = gemm});
}

static void open_shim_maker(loom_device *device, uint64_t seed, loom_cuda_choice choice, const char *name)
{
    maker *m = &makers[n_makers];
    loom_status status = open_shim(device, seed, choice, &m->kernels);

    if (status == LOOM_E_UNSUPPORTED)
        return;
    assert_int_equal(status, LOOM_OK);
    assert_int_equal(loom_stream_open(device, LOOM_STREAM_INLINE, "test", &m->stream), LOOM_OK);
    snprintf(m->name, sizeof m->name, "CUDA on the host, %s", name);
    m->close = close_shim;
    makers_are_slow = true;
    n_makers++;
}

static void open_host(void)
{
    assert_int_equal(loom_device_open(LOOM_CPU, &(loom_device_config){.threads = 1}, &devices[0]), LOOM_OK);
}

/* The CUDA kernels on the host, with the threads of a block in an order of their own, beside one of the CPU's; a second time with products by the double of
 * cuBLASLt where `products` are what is tested. */
static void open_cuda_on_the_host(bool products)
{
    const uint64_t seed = 0x9e3779b97f4a7c15u;

    open_host();
    open_maker(devices[0], "portable", "own");
    open_shim_maker(devices[0], seed, (loom_cuda_choice){.own_gemm = true}, "own gemm");
    if (products)
        open_shim_maker(devices[0], seed, (loom_cuda_choice){0}, "cuBLASLt's gemm");
}

static void open_device(void)
{
    if (loom_device_open(LOOM_CUDA, NULL, &devices[1]) != LOOM_OK)
        fail_msg("%s", loom_last_error());
}

static void open_cuda_on_a_device(bool products)
{
    open_host();
    open_maker(devices[0], "portable", "own");
    open_device();
    open_maker(devices[1], NULL, "own");
    if (products)
        open_maker(devices[1], NULL, "cublaslt");
}

static bool makers_asked_for(const char *kind)
{
    const char *only = getenv("LOOM_TEST_MAKERS");

    return only && strncmp(only, kind, strlen(kind)) == 0;
}

void open_one_cuda_maker(uint64_t seed, loom_cuda_choice choice, const char *name)
{
    static const char *const math[] = {[LOOM_GPU_F32] = "f32", [LOOM_GPU_TF32] = "tf32", [LOOM_GPU_BF16] = "bf16", [LOOM_GPU_FP8] = "fp8"};

    if (makers_asked_for("cuda device")) {
        open_device();
        open_configured(devices[1], &(loom_kernels_config){.gemm_library = choice.own_gemm ? "own" : "cublaslt", .cuda_math = math[choice.math]});
    } else {
        open_host();
        open_shim_maker(devices[0], seed, choice, name);
    }
    assert_int_equal(n_makers, 1);
}

int open_makers(void **state)
{
    static const int threads[2] = {1, 3};
    (void)state;
    if (makers_asked_for("cuda device")) {
        open_cuda_on_a_device(makers_asked_for("cuda device products"));
        return 0;
    }
    if (makers_asked_for("cuda")) {
        open_cuda_on_the_host(makers_asked_for("cuda products"));
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(loom_device_open(LOOM_CPU, &(loom_device_config){.threads = threads[i]}, &devices[i]), LOOM_OK);
        open_maker(devices[i], "portable", "own");
        open_maker(devices[i], "avx2", "own");
        open_maker(devices[i], "avx512", "own");
        open_maker(devices[i], NULL, "onednn");
        open_maker(devices[i], NULL, "openblas");
    }
    return 0;
}

int close_makers(void **state)
{
    (void)state;
    for (int i = 0; i < n_makers; i++) {
        loom_stream_close(makers[i].stream);
        makers[i].close(makers[i].kernels);
    }
    for (int i = 0; i < 2; i++) {
        loom_device_close(devices[i]);
        devices[i] = NULL;
    }
    n_makers = 0;
    return 0;
}

/* --- data --- */

enum { SHIFT = 1 }; /* floats between the allocation and the data */

float *zero_floats(int64_t count)
{
    float *floats = calloc((size_t)(count + SHIFT), sizeof *floats);

    assert_non_null(floats);
    return floats + SHIFT;
}

float *random_floats(int64_t count, double scale, uint64_t seed)
{
    float *floats = zero_floats(count);

    for (int64_t i = 0; i < count; i++)
        floats[i] = (float)(scale * loom_near_normal(seed, 1, (uint64_t)i));
    return floats;
}

float *copy_floats(const float *from, int64_t count)
{
    float *floats = zero_floats(count);

    memcpy(floats, from, (size_t)count * sizeof *floats);
    return floats;
}

void free_floats(float *floats)
{
    free(floats - SHIFT);
}

double *doubles(int64_t count)
{
    double *d = calloc((size_t)(count ? count : 1), sizeof *d);

    assert_non_null(d);
    return d;
}

int64_t random_int(uint64_t *state, int64_t least, int64_t most)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return least + (int64_t)((*state >> 33) % (uint64_t)(most - least + 1));
}

/* --- comparison --- */

/* An element may be off by ELEMENT times what the whole may be off relatively, measured by the largest element. */
enum { ELEMENT = 4 };

void assert_rows_near(const char *name, const char *what, const float *got, int64_t ld, const double *expected, int64_t rows, int64_t cols,
                      double rel_l2)
{
    double squares = 0, difference = 0, largest = 0;

    for (int64_t i = 0; i < rows * cols; i++)
        if (!isnan(expected[i]) && !isinf(expected[i])) {
            squares += expected[i] * expected[i];
            largest = fmax(largest, fabs(expected[i]));
        }
    if (largest == 0)
        largest = 1, squares = (double)(rows * cols); /* a sum that cancels wholly: what went in was of order one */
    for (int64_t i = 0; i < rows * cols; i++) {
        double e = expected[i], g = got[i / cols * ld + i % cols];
        if (isnan(e) ? !isnan(g) : isinf(e) ? g != e : !(fabs(g - e) <= ELEMENT * rel_l2 * largest + 1e-30))
            fail_msg("%s: %s[%lld][%lld] is %.9g, expected %.9g (largest %.3g)", name, what, (long long)(i / cols), (long long)(i % cols),
                     g, e, largest);
        if (!isnan(e) && !isinf(e))
            difference += (g - e) * (g - e);
    }
    if (!(sqrt(difference) <= rel_l2 * sqrt(squares) + 1e-30))
        fail_msg("%s: %s: relative L2 distance %.3g, limit %.3g", name, what, sqrt(difference / squares), rel_l2);
}

void assert_near(const char *name, const char *what, const float *got, const double *expected, int64_t count, double rel_l2)
{
    assert_rows_near(name, what, got, count, expected, count > 0, count, rel_l2);
}

static const float MARK = 1.2345e33f;

float *guarded_rows(int64_t rows, int64_t cols, int64_t ld)
{
    float *matrix = zero_floats(rows * ld + GUARD);

    for (int64_t i = 0; i < rows * ld + GUARD; i++)
        if (i >= rows * ld || i % ld >= cols)
            matrix[i] = MARK;
    return matrix;
}

void assert_guards(const char *name, const char *what, const float *matrix, int64_t rows, int64_t cols, int64_t ld)
{
    for (int64_t i = 0; i < rows * ld + GUARD; i++)
        if ((i >= rows * ld || i % ld >= cols) && matrix[i] != MARK)
            fail_msg("%s: %s: wrote beside its rows, at %lld (%lld rows of %lld, %lld apart)", name, what, (long long)i, (long long)rows,
                     (long long)cols, (long long)ld);
}

/* --- fixtures: the few fields that are needed, found by their names --- */

static char *read_file(const char *name)
{
    FILE *file = fopen(test_data(name), "rb");

    if (!file)
        fail_msg("cannot open %s", test_data(name));
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    char *text = calloc((size_t)bytes + 1, 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), bytes);
    fclose(file);
    return text; /* kept until the test program ends */
}

static const void *fixture_bytes(const char *name, int64_t *count)
{
    static char *file;
    char key[128];
    long long from = 0, to = 0;
    uint64_t header;

    if (!file)
        file = read_file("fixtures/ops.safetensors");
    memcpy(&header, file, sizeof header);
    snprintf(key, sizeof key, "\"%s\"", name);
    const char *entry = strstr(file + 8, key), *offsets = entry ? strstr(entry, "\"data_offsets\"") : NULL;
    if (!offsets || sscanf(offsets, "\"data_offsets\" : [ %lld , %lld", &from, &to) != 2)
        fail_msg("no %s in ops.safetensors", name);
    *count = (to - from) / 4;
    return file + 8 + header + from;
}

const float *fixture(const char *name, int64_t *count)
{
    return fixture_bytes(name, count);
}

const int32_t *fixture_ints(const char *name, int64_t *count)
{
    return fixture_bytes(name, count);
}

double *fixture_doubles(const char *name, int64_t *count)
{
    const float *values = fixture(name, count);
    double *wide = doubles(*count);

    for (int64_t i = 0; i < *count; i++)
        wide[i] = values[i];
    return wide;
}

double fixture_distance(const char *operation, const char *output)
{
    static char *file;
    char key[64];
    double distance = 0;

    if (!file)
        file = read_file("fixtures/ops.json");
    snprintf(key, sizeof key, "\"%s\": {", operation);
    const char *at = strstr(file, key);
    at = at ? strstr(at, "\"float32_distance\"") : NULL;
    snprintf(key, sizeof key, "\"%s\": {", output);
    at = at ? strstr(at, key) : NULL;
    at = at ? strstr(at, "\"rel_l2\":") : NULL;
    if (!at || sscanf(at, "\"rel_l2\": %lf", &distance) != 1)
        fail_msg("no distance of %s %s in ops.json", operation, output);
    return distance;
}
