/* Spans as NVTX ranges, for Nsight Systems and the like. Where no tool looks on, a range is a test of a pointer. */
#include "cuda/module.h"

#include <nvtx3/nvToolsExt.h>

void loom_cuda_range_begin(const char *name)
{
    nvtxRangePushA(name);
}

void loom_cuda_range_end(void)
{
    nvtxRangePop();
}
