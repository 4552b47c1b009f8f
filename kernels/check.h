/* Whether the arguments of an operation can be right: one function each, the same for every device. */
#ifndef LOOM_KERNELS_CHECK_H
#define LOOM_KERNELS_CHECK_H

#include <rankloom/kernels.h>

#define LOOM_DECLARE_CHECK(name, args) loom_status loom_check_##name(const args *a);
LOOM_KERNEL_LIST(LOOM_DECLARE_CHECK)
#undef LOOM_DECLARE_CHECK

#endif
