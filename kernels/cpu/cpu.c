/* The CPU's table: checks the arguments, waits for the stream, and calls the maker of the instruction set. */
#include "kernels/cpu/cpu.h"

#include "core/settings.h"
#include "core/try.h"
#include "kernels/check.h"
#include "kernels/run.h"

#include <stdlib.h>
#include <string.h>

/* --- the operations --- */

#define LOOM_CPU_KERNEL(name, args)                                                                                                        \
    static loom_status cpu_##name(loom_kernels *kernels, const args *a, loom_stream *stream)                                               \
    {                                                                                                                                      \
        loom_cpu *cpu = (loom_cpu *)kernels;                                                                                               \
        loom_status status = loom_check_##name(a);                                                                                         \
                                                                                                                                           \
        if (status == LOOM_OK)                                                                                                             \
            status = loom_kernel_begin(stream);                                                                                            \
        return status == LOOM_OK ? cpu->ops->name(cpu, a) : status;                                                                        \
    }
LOOM_KERNEL_LIST(LOOM_CPU_KERNEL)

/* `a` by the library, and then what no library does: the value before GELU and the one after. */
static loom_status library_product(loom_cpu *cpu, const loom_gemm_args *a)
{
    loom_gemm_args product = *a;

    product.gelu_MN = NULL;
    product.gelu_input_MN = NULL;
    loom_status status = cpu->gemm_library->run(cpu, cpu->gemm_state, &product);
    if (status == LOOM_OK)
        cpu->ops->gemm_gelu(cpu, a);
    return status;
}

static loom_status library_gemm(loom_kernels *kernels, const loom_gemm_args *a, loom_stream *stream)
{
    loom_cpu *cpu = (loom_cpu *)kernels;
    loom_status status = loom_check_gemm(a);

    if (status == LOOM_OK)
        status = loom_kernel_begin(stream);
    return status == LOOM_OK ? library_product(cpu, a) : status;
}

loom_gemm_args loom_cpu_product_of_group(const loom_grouped_gemm_args *a, int64_t group)
{
    int64_t first = a->offset_G1[group], rows = a->offset_G1[group + 1] - first, lda = or_tight(a->lda, a->ragged_k ? a->m : a->k);
    int64_t ldb = or_tight(a->ldb, a->transpose_b ? a->k : a->n), ldc = or_tight(a->ldc, a->n);

    if (a->ragged_k)
        return (loom_gemm_args){.c_MN = a->c + group * a->stride_c,
                                .a_MK = a->a + first * lda,
                                .b_KN = a->b + first * ldb,
                                .m = a->m,
                                .n = a->n,
                                .k = rows,
                                .lda = lda,
                                .ldb = ldb,
                                .ldc = ldc,
                                .transpose_a = true,
                                .accumulate = a->accumulate};
    return (loom_gemm_args){.c_MN = a->c + first * ldc,
                            .a_MK = a->a + first * lda,
                            .b_KN = a->b + group * a->stride_b,
                            .m = rows,
                            .n = a->n,
                            .k = a->k,
                            .lda = lda,
                            .ldb = ldb,
                            .ldc = ldc,
                            .transpose_b = a->transpose_b,
                            .accumulate = a->accumulate};
}

/* Products of so many multiplications and more a library makes faster one by one, each by all threads; of smaller ones each thread had better take
 * its own. A library keeps what it made for a shape, and ragged groups come in any size: whole blocks of rows and a rest keep the shapes few. */
enum { LARGE_PRODUCT = 4 << 20, ROWS_BLOCK = 64 };

static bool one_by_one(const loom_cpu *cpu, const loom_grouped_gemm_args *a)
{
    int64_t rows = a->groups ? (a->offset_G1[a->groups] - a->offset_G1[0]) / a->groups : 0;

    return cpu->threads == 1 || rows * a->n * (a->ragged_k ? a->m : a->k) >= LARGE_PRODUCT;
}

/* Rows [first, first + rows) of a group. */
static loom_status multiply_rows(loom_cpu *cpu, const loom_grouped_gemm_args *a, int64_t group, int64_t first, int64_t rows)
{
    loom_gemm_args product = loom_cpu_product_of_group(a, group);

    if (rows == 0)
        return LOOM_OK;
    product.a_MK += first * product.lda;
    if (a->ragged_k) {
        product.b_KN += first * product.ldb;
        product.k = rows;
        product.accumulate |= first > 0;
    } else {
        product.c_MN += first * product.ldc;
        product.m = rows;
    }
    return cpu->gemm_library->run(cpu, cpu->gemm_state, &product);
}

/* Of no rows the sum is 0. */
static loom_status multiply_nothing(loom_cpu *cpu, const loom_grouped_gemm_args *a, int64_t group)
{
    loom_gemm_args product = loom_cpu_product_of_group(a, group);

    return a->ragged_k ? cpu->ops->gemm(cpu, &product) : LOOM_OK;
}

static loom_status multiply_group(loom_cpu *cpu, const loom_grouped_gemm_args *a, int64_t group)
{
    int64_t rows = a->offset_G1[group + 1] - a->offset_G1[group], blocks = rows - rows % ROWS_BLOCK;
    loom_status status = rows == 0 ? multiply_nothing(cpu, a, group) : multiply_rows(cpu, a, group, 0, blocks);

    return status < 0 ? status : multiply_rows(cpu, a, group, blocks, rows - blocks);
}

static loom_status library_grouped_gemm(loom_kernels *kernels, const loom_grouped_gemm_args *a, loom_stream *stream)
{
    loom_cpu *cpu = (loom_cpu *)kernels;
    loom_status status = loom_check_grouped_gemm(a);

    if (status == LOOM_OK)
        status = loom_kernel_begin(stream);
    if (status == LOOM_OK && !one_by_one(cpu, a))
        return cpu->ops->grouped_gemm(cpu, a);
    for (int64_t g = 0; status == LOOM_OK && g < a->groups; g++)
        status = multiply_group(cpu, a, g);
    return status;
}

loom_status loom_cpu_gemm_bias(loom_cpu *cpu, const loom_gemm_args *a)
{
    loom_status status = LOOM_OK;

    if (!a->bias_N)
        return LOOM_OK;
    for (int64_t i = 0; status == LOOM_OK && i < (a->batch ? a->batch : 1); i++)
        status = cpu->ops->bias(
            cpu, &(loom_bias_args){.y_TN = a->c_MN + i * a->stride_c, .bias_N = a->bias_N, .tokens = a->m, .width = a->n, .ldy = a->ldc});
    return status;
}

loom_status loom_cpu_check_rows(const char *operation, const int32_t *rows, int64_t count, int64_t table_rows)
{
    for (int64_t i = 0; rows && i < count; i++)
        if (rows[i] < 0 || rows[i] >= table_rows)
            return loom_fail(LOOM_E_INVALID, "%s: token %lld wants row %d of a table of %lld", operation, (long long)i, rows[i],
                             (long long)table_rows);
    return LOOM_OK;
}

loom_status loom_cpu_workspace(loom_cpu *cpu, size_t bytes, void **workspace)
{
    if (bytes > cpu->workspace_bytes) {
        loom_status status;

        loom_free(cpu->table.device, cpu->workspace);
        cpu->workspace = NULL;
        cpu->workspace_bytes = 0;
        if ((status = loom_alloc(cpu->table.device, bytes, LOOM_MEM_KERNELS, &cpu->workspace)) < 0)
            return status;
        cpu->workspace_bytes = bytes;
    }
    *workspace = cpu->workspace;
    return LOOM_OK;
}

/* --- which maker --- */

typedef struct instruction_set {
    const char *name;
    const loom_cpu_ops *ops; /* NULL: not compiled for this kind of processor */
    bool (*here)(void);
} instruction_set;

static bool always(void)
{
    return true;
}

#ifdef LOOM_HAVE_X86
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); /* f16c came with them */
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

/* Best first. */
static const instruction_set instruction_sets[] = {
#ifdef LOOM_HAVE_X86
    {"avx512", &loom_cpu_ops_avx512, has_avx512},
    {"avx2", &loom_cpu_ops_avx2, has_avx2},
#endif
    {"portable", &loom_cpu_ops_portable, always},
};
enum { INSTRUCTION_SETS = sizeof instruction_sets / sizeof instruction_sets[0] };

static bool is_auto(const char *wanted)
{
    return !wanted || strcmp(wanted, "auto") == 0;
}

static loom_status choose_instruction_set(const char *wanted, loom_cpu *cpu)
{
    for (int i = 0; i < INSTRUCTION_SETS; i++) {
        const instruction_set *set = &instruction_sets[i];

        if ((is_auto(wanted) || strcmp(wanted, set->name) == 0) && set->here()) {
            cpu->ops = set->ops;
            cpu->table.isa = set->name;
            return LOOM_OK;
        }
    }
    return loom_fail(LOOM_E_UNSUPPORTED,
                     "kernels: instruction set \"%s\" is not on this machine or not in this build; \"auto\" takes the best of it", wanted);
}

/* Preferred first. */
static const loom_gemm_library *const gemm_libraries[] = {&loom_gemm_onednn, &loom_gemm_openblas};
enum { GEMM_LIBRARIES = sizeof gemm_libraries / sizeof gemm_libraries[0] };

static loom_status choose_gemm_library(const char *wanted, loom_cpu *cpu)
{
    for (int i = 0; i < GEMM_LIBRARIES; i++) {
        const loom_gemm_library *library = gemm_libraries[i];
        loom_status status;

        if (!is_auto(wanted) && strcmp(wanted, library->name) != 0)
            continue;
        status = library->open(&cpu->gemm_state);
        if (status == LOOM_OK) {
            cpu->gemm_library = library;
            cpu->table.gemm_library = library->name;
            cpu->table.gemm = library_gemm;
            cpu->table.grouped_gemm = library_grouped_gemm;
            return LOOM_OK;
        }
        if (!is_auto(wanted) || status != LOOM_E_UNSUPPORTED)
            return status;
    }
    if (!is_auto(wanted) && strcmp(wanted, "own") != 0)
        return loom_fail(LOOM_E_UNSUPPORTED, "kernels: no GEMM library \"%s\"; onednn, openblas and own are known", wanted);
    loom_clear_error(); /* of libraries that are not there: our own serves */
    cpu->table.gemm_library = "own";
    return LOOM_OK;
}

/* --- the handle --- */

static loom_status asked_for(const char *configured, loom_setting setting, const char **wanted)
{
    if (configured) {
        *wanted = configured;
        return LOOM_OK;
    }
    return loom_setting_text(setting, wanted);
}

loom_status loom_cpu_open(loom_device *device, const loom_kernels_config *config, loom_kernels **kernels)
{
    loom_status status;
    const char *isa, *gemm;
    loom_cpu *cpu = calloc(1, sizeof *cpu);

    if (!cpu)
        return loom_fail(LOOM_E_MEMORY, "kernels: no memory for the table itself");
    cpu->table = (loom_kernels){.device = device,
#define LOOM_CPU_TABLE(name, args) .name = cpu_##name,
                                LOOM_KERNEL_LIST(LOOM_CPU_TABLE)
#undef LOOM_CPU_TABLE
    };
    cpu->threads = loom_device_threads(device);
    LOOM_TRY(asked_for(config->isa, LOOM_SETTING_ISA, &isa));
    LOOM_TRY(asked_for(config->gemm_library, LOOM_SETTING_GEMM, &gemm));
    LOOM_TRY(choose_instruction_set(isa, cpu));
    LOOM_TRY(choose_gemm_library(gemm, cpu));
    *kernels = &cpu->table;
    return LOOM_OK;

fail:
    loom_cpu_close(&cpu->table);
    return status;
}

void loom_cpu_close(loom_kernels *kernels)
{
    loom_cpu *cpu = (loom_cpu *)kernels;

    if (cpu->gemm_library)
        cpu->gemm_library->close(cpu->gemm_state);
    loom_free(kernels->device, cpu->workspace);
    free(cpu);
}
