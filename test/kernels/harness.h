/* What the kernel tests share: the makers that this machine has, random data, comparison with f64, guards around outputs. */
#ifndef TEST_KERNELS_HARNESS_H
#define TEST_KERNELS_HARNESS_H

#include "check.h"

#include <rankloom/kernels.h>

#include <math.h>

/* One maker under test: an instruction set, a GEMM library, a count of threads. */
typedef struct maker {
    char name[64];
    loom_kernels *kernels;
    loom_stream *stream;
    void (*close)(loom_kernels *kernels);
} maker;

/* Opens each instruction set that this machine has (with our own GEMM) and each GEMM library of the build, one and three threads; with
 * LOOM_TEST_MAKERS=cuda the CUDA kernels on the host (kernels/cuda/shim) beside one of these; "cuda products": also with cuBLASLt's double; "cuda device":
 * on CUDA device 0 instead, with products of our own; "cuda device products": and with cuBLASLt's. Tests hand over their own memory, which that device
 * has to reach ("Addressing Mode : HMM" or "ATS" in nvidia-smi -q).
 * Group set-up and tear-down for cmocka; *state is NULL, the makers are in `makers`. */
enum { MAKERS_MAX = 16 };
extern maker makers[MAKERS_MAX];
extern int n_makers;
extern bool makers_are_slow; /* a test of many random shapes takes fewer */
int open_makers(void **state);
int close_makers(void **state);

#define FOR_EACH_MAKER(m) for (const maker *m = makers; m < makers + n_makers; m++)

/* Calls an operation of the maker, waits for it and requires success. */
#define CALL(m, operation, ...)                                                                                                            \
    do {                                                                                                                                   \
        loom_status call_status = (m)->kernels->operation((m)->kernels, __VA_ARGS__, (m)->stream);                                         \
        if (call_status == LOOM_OK)                                                                                                        \
            call_status = loom_stream_wait((m)->stream);                                                                                   \
        if (call_status != LOOM_OK)                                                                                                        \
            fail_msg("%s: %s: %s", (m)->name, #operation, loom_last_error());                                                              \
    } while (0)

/* Near-normal numbers times `scale`, the same in every run; exact size, and off every vector's alignment, so that a read beyond the end is
 * one beyond the allocation. Freed by free_floats(). */
float *random_floats(int64_t count, double scale, uint64_t seed);
float *zero_floats(int64_t count);
float *copy_floats(const float *from, int64_t count);
void free_floats(float *floats);
double *doubles(int64_t count);
int64_t random_int(uint64_t *state, int64_t least, int64_t most);

/* Requires the relative L2 distance of got from expected to be at most rel_l2, and no element further off than max_of times that share of
 * the largest. Not a number counts as too far, except where one is expected. */
void assert_near(const char *maker, const char *what, const float *got, const double *expected, int64_t count, double rel_l2);
/* The same for rows `ld` apart, expected tight. */
void assert_rows_near(const char *maker, const char *what, const float *got, int64_t ld, const double *expected, int64_t rows, int64_t cols,
                      double rel_l2);

/* A rows x cols matrix with its rows ld >= cols apart, the gaps and the space behind filled with a mark that must stay. */
enum { GUARD = 7 };
float *guarded_rows(int64_t rows, int64_t cols, int64_t ld);
void assert_guards(const char *maker, const char *what, const float *matrix, int64_t rows, int64_t cols, int64_t ld);

/* Tensors of test/data/fixtures/ops.safetensors ("layernorm.in.x"), and how far f32 PyTorch lands from f64 (ops.json): relative L2. */
const float *fixture(const char *name, int64_t *count);
const int32_t *fixture_ints(const char *name, int64_t *count);
double *fixture_doubles(const char *name, int64_t *count);
double fixture_distance(const char *operation, const char *output);

#endif
