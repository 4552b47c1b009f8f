/* libcudnn.so.9, opened when it is first needed. */
#include "kernels/cuda/cudnn_library.h"

#include <dlfcn.h>
#include <stdio.h>

static bool find(void *library, const char *name, void **function)
{
    *function = dlsym(library, name);
    return *function != NULL;
}

bool loom_cudnn_load(loom_cudnn_library *cudnn, char *why, size_t bytes)
{
    void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    bool found = library != NULL;

#define LOOM_CUDNN_FIND(name) found = found && find(library, "cudnn" #name, (void **)&cudnn->name);
    LOOM_CUDNN_FUNCTIONS(LOOM_CUDNN_FIND)
#undef LOOM_CUDNN_FIND
    if (!found)
        snprintf(why, bytes, "%s", dlerror());
    return found;
}
