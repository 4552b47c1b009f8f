/* What every CPU operation does first: wait until the stream has nothing left that the operation would have to follow. */
#ifndef LOOM_KERNELS_RUN_H
#define LOOM_KERNELS_RUN_H

#include "device/stream.h"

static inline loom_status loom_kernel_begin(loom_stream *stream)
{
    return loom_stream_sync_for_compute(stream);
}

#endif
