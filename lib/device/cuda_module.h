/* The CUDA module: one shared object that holds everything that links CUDA, cuBLAS and NCCL. The library opens it at run time, so that one build
 * serves machines with and without a driver. */
#ifndef LOOM_DEVICE_CUDA_MODULE_H
#define LOOM_DEVICE_CUDA_MODULE_H

#include "device/backend.h"

/* What the module gets of the library that opened it: messages are kept per thread, and there must be one place for them. */
typedef struct loom_cuda_host {
    loom_status (*fail)(loom_status status, const char *text);
    const char *(*last_error)(void);
    void (*clear_error)(void);
} loom_cuda_host;

struct loom_cuda_operations; /* kernels/cuda.h */
struct loom_transport;       /* comm/transport.h */

typedef struct loom_cuda_module {
    const char *version; /* RANKLOOM_VERSION of its build: structures are shared, so it has to be the library's own */
    const loom_backend *backend;
    loom_status (*enter)(const loom_device *device); /* makes it the current device of this thread, as launches need */
    const struct loom_cuda_operations *kernels;
    const struct loom_transport *nccl; /* built without NCCL: a stub that says so */
} loom_cuda_module;

/* The only symbol that the module shows. Every call of a process passes the same host. */
typedef const loom_cuda_module *loom_cuda_module_fn(const loom_cuda_host *host);
#define LOOM_CUDA_MODULE_ENTRY "loom_cuda_module_open"
#define LOOM_CUDA_MODULE_FILE "librankloom_cuda.so"

/* The module that RANKLOOM_CUDA_MODULE names, else the one beside this library, else where the dynamic linker looks (the program's run
 * path, LD_LIBRARY_PATH, the system's folders). LOOM_E_UNSUPPORTED says what is missing: the driver, the module, or what the module needs. It
 * stays loaded until the process ends. */
loom_status loom_cuda_module_load(const loom_cuda_module **module);

#endif
