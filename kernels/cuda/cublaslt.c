/* Matrix products by cuBLASLt, with a cache of what its heuristics chose for each shape. */
#include "kernels/cuda/cublaslt.h"

#include <cublasLt.h>

#include <stdlib.h>
#include <string.h>
