/* The functions of libcudnn that we call, found when it is opened at run time: a machine without it loads our module all the same. */
#ifndef LOOM_KERNELS_CUDA_CUDNN_LIBRARY_H
#define LOOM_KERNELS_CUDA_CUDNN_LIBRARY_H

#include <cudnn.h>

#include <stdbool.h>

#define LOOM_CUDNN_FUNCTIONS(X)                                                                                                            \
    X(GetVersion)                                                                                                                          \
    X(GetErrorString)                                                                                                                      \
    X(Create)                                                                                                                              \
    X(Destroy)                                                                                                                             \
    X(SetStream)                                                                                                                           \
    X(BackendCreateDescriptor)                                                                                                             \
    X(BackendDestroyDescriptor)                                                                                                            \
    X(BackendSetAttribute)                                                                                                                 \
    X(BackendGetAttribute)                                                                                                                 \
    X(BackendFinalize)                                                                                                                     \
    X(BackendExecute)

/* cudnn->Create is cudnnCreate, and so on. */
typedef struct loom_cudnn_library {
#define LOOM_CUDNN_POINTER(name) __typeof__(&cudnn##name) name;
    LOOM_CUDNN_FUNCTIONS(LOOM_CUDNN_POINTER)
#undef LOOM_CUDNN_POINTER
} loom_cudnn_library;

/* False: it is not there, or lacks a function; why[] says what the dynamic linker said. It stays open until the process ends. */
bool loom_cudnn_load(loom_cudnn_library *cudnn, char *why, size_t bytes);

#endif
