/* The one thing that the module shows. */
#include "cuda/module.h"

#include "comm/transport.h"
#include "cuda/transport.h"
#include "kernels/cuda/operations.h"

static const loom_cuda_module module = {
    .version = RANKLOOM_VERSION,
    .backend = &loom_cuda_backend,
    .enter = loom_cuda_enter,
    .kernels = &loom_cuda_operations_table,
    .nccl = &loom_transport_nccl,
};

__attribute__((visibility("default"))) loom_cuda_module_fn loom_cuda_module_open;

const loom_cuda_module *loom_cuda_module_open(const loom_cuda_host *host)
{
    if (loom_cuda_set_host(host))
        return &module;
    host->fail(LOOM_E_UNSUPPORTED, "the CUDA module is in use by another copy of the library in this process");
    return NULL;
}
