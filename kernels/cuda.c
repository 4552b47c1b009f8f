/* The table of a CUDA device: each operation is checked here as on every device, and enqueued by the module. */
#include "kernels/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "core/settings.h"
#include "device/cuda_module.h"
#include "device/graph.h"
#include "device/stream.h"
#include "kernels/check.h"

typedef struct cuda_table {
    loom_kernels table; /* first: the caller sees this */
    const loom_cuda_operations *operations;
    loom_cuda_kernels *state;
} cuda_table;

static loom_status check_stream(const loom_kernels *kernels, const loom_stream *stream, const char *operation)
{
    loom_status status = loom_graph_check(kernels->device);

    if (status < 0)
        return status;
    if (stream->device != kernels->device)
        return loom_fail(LOOM_E_INVALID, "%s: the stream belongs to another device than the kernels", operation);
    return kernels->device->cuda->enter(kernels->device);
}

#define CUDA_KERNEL(name, args)                                                                                                            \
    static loom_status cuda_##name(loom_kernels *kernels, const args *a, loom_stream *stream)                                              \
    {                                                                                                                                      \
        const cuda_table *t = (const cuda_table *)kernels;                                                                                 \
        loom_status status = loom_check_##name(a);                                                                                         \
                                                                                                                                           \
        if (status < 0 || (status = check_stream(kernels, stream, #name)) < 0)                                                             \
            return status;                                                                                                                 \
        return t->operations->name(t->state, a, stream->backend);                                                                          \
    }
LOOM_KERNEL_LIST(CUDA_KERNEL)

/* --- how to multiply --- */

static const char *configured(const char *text)
{
    return text && strcmp(text, "auto") != 0 ? text : NULL;
}

static loom_status choose_gemm(const char *wanted, loom_cuda_choice *choice)
{
    const char *set;
    loom_status status = loom_setting_text(LOOM_SETTING_GEMM, &set);

    if (status < 0)
        return status;
    if (!wanted) {
        choice->own_gemm = set && strcmp(set, "own") == 0; /* the others but cublaslt are about CPUs */
        return LOOM_OK;
    }
    choice->own_gemm = strcmp(wanted, "own") == 0;
    if (!choice->own_gemm && strcmp(wanted, "cublaslt") != 0)
        return loom_fail(LOOM_E_UNSUPPORTED, "kernels: no GEMM library \"%s\" on CUDA; cublaslt and own are known", wanted);
    return LOOM_OK;
}

static loom_status choose_math(const char *wanted, loom_cuda_choice *choice)
{
    static const char *const names[] = {"f32", "tf32", "bf16", "fp8"}; /* the order of loom_gpu_math and of the setting's row */
    int set;
    loom_status status = loom_setting_choice(LOOM_SETTING_CUDA_MATH, &set);

    if (status < 0)
        return status;
    choice->math = set < 0 ? LOOM_GPU_F32 : (loom_gpu_math)set;
    if (!wanted)
        return LOOM_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(wanted, names[i]) == 0) {
            choice->math = (loom_gpu_math)i;
            return LOOM_OK;
        }
    return loom_fail(LOOM_E_UNSUPPORTED, "kernels: cuda_math \"%s\"; f32, tf32, bf16 and fp8 are known", wanted);
}

static loom_status choose_attention(loom_cuda_choice *choice)
{
    int set; /* the order of loom_gpu_attention_maker and of the setting's row */
    loom_status status = loom_setting_choice(LOOM_SETTING_CUDA_ATTENTION, &set);

    if (status < 0)
        return status;
    choice->attention = set < 0 ? LOOM_GPU_ATTENTION_AUTO : (loom_gpu_attention_maker)set;
    if (choice->attention == LOOM_GPU_ATTENTION_CUDNN && choice->math != LOOM_GPU_BF16)
        return loom_fail(LOOM_E_UNSUPPORTED, "kernels: RANKLOOM_CUDA_ATTENTION=cudnn takes bf16 only; RANKLOOM_CUDA_MATH=bf16 goes with it");
    return LOOM_OK;
}

loom_status loom_cuda_open(loom_device *device, const loom_kernels_config *config, loom_kernels **kernels)
{
    loom_cuda_choice choice;
    cuda_table *t;
    loom_status status;

    if ((status = choose_gemm(configured(config->gemm_library), &choice)) < 0 || (status = choose_math(configured(config->cuda_math), &choice)) < 0 ||
        (status = choose_attention(&choice)) < 0)
        return status;
    t = malloc(sizeof *t);
    if (!t)
        return loom_fail(LOOM_E_MEMORY, "kernels: no memory for the table itself");
    *t = (cuda_table){.table = {.isa = "cuda",
                                .gemm_library = choice.own_gemm ? "own" : "cublaslt",
                                .device = device,
#define CUDA_ENTRY(name, args) .name = cuda_##name,
                                LOOM_KERNEL_LIST(CUDA_ENTRY)
#undef CUDA_ENTRY
                      },
                      .operations = device->cuda->kernels};
    if ((status = device->cuda->enter(device)) < 0 || (status = t->operations->open(device, &choice, &t->state)) < 0) {
        free(t);
        return status;
    }
    *kernels = &t->table;
    return LOOM_OK;
}

void loom_cuda_close(loom_kernels *kernels)
{
    cuda_table *t = (cuda_table *)kernels;

    if (kernels->device->cuda->enter(kernels->device) >= 0)
        t->operations->close(t->state);
    free(t);
}
