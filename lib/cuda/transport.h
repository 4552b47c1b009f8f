/* The transport that this module brings. */
#ifndef LOOM_CUDA_TRANSPORT_H
#define LOOM_CUDA_TRANSPORT_H

extern const struct loom_transport loom_transport_nccl; /* nccl.c, or a stub that says that the build has no NCCL */

#endif
