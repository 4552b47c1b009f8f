/* Philox4x32-10, FNV-1a-64 and the near-normal that initial weights are made of. */
#include "core/random.h"

#include <math.h>

static void philox_round(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t c1 = c[1], c3 = c[3];

    c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c[1] = (uint32_t)p1;
    c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c[3] = (uint32_t)p0;
}

void loom_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t output[4])
{
    uint32_t k0 = key[0], k1 = key[1];

    for (int i = 0; i < 4; i++)
        output[i] = counter[i];
    for (int round = 0; round < 10; round++) {
        philox_round(output, k0, k1);
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
}

uint64_t loom_fnv1a64(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

double loom_near_normal(uint64_t seed, uint64_t name, uint64_t index)
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)name, (uint32_t)(name >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    /* mean 8 * 65535/2 and variance 8 * (65536^2 - 1)/12 of a sum of eight uniform 16-bit numbers */
    const double scale = 1.0 / sqrt(8.0 * (65536.0 * 65536.0 - 1.0) / 12.0);
    uint32_t word[4];
    int64_t sum = 0;

    loom_philox4x32_10(counter, key, word);
    for (int i = 0; i < 4; i++)
        sum += (int64_t)(word[i] & 0xffff) + (int64_t)(word[i] >> 16);
    return (double)(sum - 262140) * scale;
}
