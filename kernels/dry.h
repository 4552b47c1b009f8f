#ifndef LOOM_KERNELS_DRY_H
#define LOOM_KERNELS_DRY_H

#include <rankloom/kernels.h>

loom_status loom_dry_open(loom_device *device, loom_kernels **kernels);
void loom_dry_close(loom_kernels *kernels);

#endif
