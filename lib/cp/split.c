/* The zigzag cut of a sequence. */
#include "cp/cp.h"

void loom_cp_split(int64_t seq, int size, int rank, int32_t *positions_S)
{
    int64_t local = seq / size, chunk = local / 2;

    for (int64_t i = 0; i < local; i++) {
        if (size == 1)
            positions_S[i] = (int32_t)i;
        else if (i < chunk)
            positions_S[i] = (int32_t)(rank * chunk + i);
        else
            positions_S[i] = (int32_t)((2 * size - 1 - rank) * chunk + i - chunk);
    }
}
