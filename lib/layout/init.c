/* Starting values: a function of the seed, the parameter's name and the global index alone, so every rank fills its own part without a word
 * to the others, and the start does not depend on the layout. */
#include <rankloom/shard.h>

#include <assert.h>
#include <string.h>

#include "core/random.h"

typedef struct filler {
    loom_init init;
    uint64_t seed, name;
    float *value;
} filler;

static loom_status fill_run(void *context, int64_t local, int64_t global, int64_t count)
{
    const filler *f = context;
    double centre = f->init.kind == LOOM_INIT_ONES ? 1.0 : 0.0;

    for (int64_t i = 0; i < count; i++) /* without jitter norms and biases need no random numbers */
        f->value[local + i] = (float)(f->init.std == 0 ? centre : centre + f->init.std * loom_near_normal(f->seed, f->name, (uint64_t)(global + i)));
    return LOOM_OK;
}

void loom_init_fill(const loom_shard *shard, uint64_t seed, float *value)
{
    filler f = {shard->init, seed, loom_fnv1a64(shard->name, strlen(shard->name)), value};
    loom_status status;

    memset(value, 0, sizeof *value * (size_t)loom_shard_local_count(shard)); /* padding stays 0 */
    status = loom_shard_visit(shard, fill_run, &f);
    assert(status == LOOM_OK); /* fill_run cannot fail */
    (void)status;
}
