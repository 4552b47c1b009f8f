/* This build has no oneDNN. */
#include "kernels/cpu/cpu.h"

static loom_status absent_open(void **state)
{
    (void)state;
    return loom_fail(LOOM_E_UNSUPPORTED, "kernels: this build has no oneDNN; install libdnnl-dev and configure again");
}

static void absent_close(void *state)
{
    (void)state;
}

const loom_gemm_library loom_gemm_onednn = {"onednn", absent_open, absent_close, NULL};
