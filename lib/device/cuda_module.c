/* Finding and opening the CUDA module. */
#include "device/cuda_module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "core/settings.h"

static loom_status fail_with(loom_status status, const char *text)
{
    return loom_fail(status, "%s", text);
}

static const loom_cuda_host host = {.fail = fail_with, .last_error = loom_last_error, .clear_error = loom_clear_error};

static const char *linker_says(void)
{
    const char *words = dlerror();

    return words ? words : "no reason given";
}

/* Without a driver there is no use in loading 150 MB of libraries; a name that is not found costs 0.1 ms. */
static loom_status look_for_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!driver)
        return loom_fail(LOOM_E_UNSUPPORTED, "this machine has no NVIDIA driver (%s)", linker_says());
    dlclose(driver);
    return LOOM_OK;
}

/* The module beside the file that this code is part of: librankloom.so, or the program where the library is linked into it. */
static void *open_beside(void)
{
    char path[4096];
    Dl_info here;
    const char *slash;

    if (!dladdr((const void *)&host, &here) || !here.dli_fname || !(slash = strrchr(here.dli_fname, '/')))
        return NULL;
    if (snprintf(path, sizeof path, "%.*s/" LOOM_CUDA_MODULE_FILE, (int)(slash - here.dli_fname), here.dli_fname) >= (int)sizeof path)
        return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static loom_status open_named(const char *path, void **handle)
{
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*handle)
        return loom_fail(LOOM_E_UNSUPPORTED, "the CUDA module of RANKLOOM_CUDA_MODULE cannot be loaded: %s", linker_says());
    return LOOM_OK;
}

static loom_status open_found(void **handle)
{
    loom_status status = look_for_driver();

    if (status < 0)
        return status;
    *handle = open_beside();
    if (!*handle)
        *handle = dlopen(LOOM_CUDA_MODULE_FILE, RTLD_NOW | RTLD_LOCAL);
    if (!*handle)
        return loom_fail(LOOM_E_UNSUPPORTED, "there is a driver, but the CUDA module of this build cannot be loaded (%s); it is built where "
                                             "nvcc is found, or with -Dcuda=enabled, and RANKLOOM_CUDA_MODULE may name it",
                         linker_says());
    return LOOM_OK;
}

loom_status loom_cuda_module_load(const loom_cuda_module **module)
{
    const char *path;
    void *handle;
    loom_cuda_module_fn *entry;
    const loom_cuda_module *found;
    loom_status status = loom_setting_text(LOOM_SETTING_CUDA_MODULE, &path);

    if (status < 0 || (status = path ? open_named(path, &handle) : open_found(&handle)) < 0)
        return status;
    *(void **)&entry = dlsym(handle, LOOM_CUDA_MODULE_ENTRY); /* a handle more for every call: the linker counts, and it stays loaded */
    if (!entry)
        return loom_fail(LOOM_E_UNSUPPORTED, "the CUDA module is none of Rankloom's: %s", linker_says());
    found = entry(&host);
    if (!found)
        return LOOM_E_UNSUPPORTED; /* it has said why */
    if (strcmp(found->version, RANKLOOM_VERSION) != 0)
        return loom_fail(LOOM_E_UNSUPPORTED, "the CUDA module is of rankloom %s and this is rankloom %s; build both together", found->version,
                         RANKLOOM_VERSION);
    *module = found;
    return LOOM_OK;
}
