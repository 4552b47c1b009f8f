/* One way out of a function that builds something: `status` and a label `fail:` belong to the caller. */
#ifndef LOOM_CORE_TRY_H
#define LOOM_CORE_TRY_H

#include <rankloom/status.h>

#define LOOM_TRY(call)                                                                                                                     \
    do {                                                                                                                                   \
        if ((status = (call)) < 0)                                                                                                         \
            goto fail;                                                                                                                     \
    } while (0)

#endif
