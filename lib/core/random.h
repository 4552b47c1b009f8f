/* Counter-based randomness: a number is a function of (seed, what, which element), never of who asks or when. */
#ifndef LOOM_CORE_RANDOM_H
#define LOOM_CORE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Philox4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011). */
void loom_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t output[4]);

/* FNV-1a, 64 bits. */
uint64_t loom_fnv1a64(const void *data, size_t bytes);

/* Near-normal z of element `index` of the thing whose name hashes to `name` (loom_fnv1a64 of its UTF-8 bytes): the sum of the eight 16-bit
 * halves of one Philox block, centred and scaled to variance 1; |z| <= 4.9. Integer arithmetic and one multiplication, so it is the
 * same bits everywhere. */
double loom_near_normal(uint64_t seed, uint64_t name, uint64_t index);

#endif
