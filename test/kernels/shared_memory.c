/* A device with less shared memory than the smallest tiles take: attention says what it needs and what there is. */
#include "harness.h"
#include "shim_maker.h"

static void check_refused(loom_gpu_math math, int64_t head_dim, const char *forward_bytes, const char *backward_bytes)
{
    enum { S = 3, HEAD_MAX = 256 };
    float x[S * HEAD_MAX] = {0}, lse[S] = {0}, out[4][S * HEAD_MAX];
    loom_attention_args a = {.q_BSHK = x, .k_BSGK = x, .v_BSGK = x, .o_BSHK = out[0], .lse_BHS = lse, .batch = 1, .heads = 1, .kv_heads = 1, .q_seq = S, .k_seq = S,
                             .head_dim = head_dim};
    loom_attention_backward_args b = {.forward = a, .do_BSHK = x, .dq_BSHK = out[1], .dk_BSGK = out[2], .dv_BSGK = out[3]};

    open_one_cuda_maker(5, (loom_cuda_choice){.own_gemm = true, .math = math}, "little shared memory");
    assert_refused(makers->kernels->attention(makers->kernels, &a, makers->stream), LOOM_E_UNSUPPORTED, "attention: head_dim", forward_bytes, "50000");
    assert_refused(makers->kernels->attention_backward(makers->kernels, &b, makers->stream), LOOM_E_UNSUPPORTED, "attention_backward: head_dim", backward_bytes,
                   "50000");
    close_makers(NULL);
}

/* Of the smallest tiles for the head, or for a larger one. */
static void what_does_not_fit_is_refused_with_both_sizes(void **state)
{
    (void)state;
    setenv("LOOM_DOUBLE_SHARED", "50000", 1);
    check_refused(LOOM_GPU_F32, 64, "takes 52224 bytes", "takes 69120 bytes");
    check_refused(LOOM_GPU_F32, 256, "takes 71168 bytes", "takes 69120 bytes");
    check_refused(LOOM_GPU_TF32, 64, "takes 52224 bytes", "takes 52224 bytes");
    check_refused(LOOM_GPU_TF32, 128, "takes 99840 bytes", "takes 101376 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_does_not_fit_is_refused_with_both_sizes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
