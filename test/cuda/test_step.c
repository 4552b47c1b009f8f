/* The end of a step on the double: all of it is enqueued before the device has got to its beginning, so nothing of it waits for the host. */
#include "check.h"
#include "harness/mesh.h"
#include "harness/on_ranks.h"

#include <rankloom/dp.h>

#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

static const rank_options on_cuda = {.device = LOOM_CUDA, .deadline_s = 100, .comm_deadline_s = 60};

enum { PARAMS = 3, COUNT = 4096 }; /* each is a bucket of its own, so an update */

static int zero;
static atomic_bool held; /* the device stands still */
static int enqueued;     /* updates that were handed over meanwhile */
static loom_adamw_fn *adamw;

static loom_status stand_still(void *argument)
{
    (void)argument;
    for (int i = 0; i < 20000 && atomic_load(&held); i++)
        usleep(1000);
    return atomic_load(&held) ? loom_fail(LOOM_E_IO, "the host waited for the device in the middle of a step") : LOOM_OK;
}

static loom_status counted_adamw(loom_kernels *kernels, const loom_adamw_args *args, loom_stream *stream)
{
    loom_status status = adamw(kernels, args, stream);

    enqueued += atomic_load(&held);
    if (enqueued == PARAMS)
        atomic_store(&held, false);
    return status;
}

static loom_dp *open_dp(loom_mesh *mesh, loom_param p[PARAMS], loom_kernels *kernels, loom_stream *stream)
{
    loom_dp_config config = {.bucket_bytes = 64, .kernels = kernels, .adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1}};
    loom_param *list[PARAMS];
    loom_dp *dp;

    for (int i = 0; i < PARAMS; i++) {
        p[i] = (loom_param){.shard = {.dims = 1, .shape = {COUNT}, .split_dim = -1, .holders = 1, .init = {LOOM_INIT_NORMAL, 0.02}}, .unit = i};
        snprintf(p[i].shard.name, sizeof p[i].shard.name, "p%d", i);
        list[i] = &p[i];
    }
    assert_ok(loom_dp_open(mesh, &(loom_param_list){.at = list, .count = PARAMS}, &config, stream, &dp));
    assert_ok(loom_dp_init(dp, 3));
    return dp;
}

/* Gradients of 1 in the last parameter. */
static void one_step(loom_dp *dp, loom_param p[PARAMS], loom_kernels *kernels, int64_t step, loom_stream *stream, loom_dp_result *result)
{
    assert_ok(loom_dp_begin(dp));
    for (int i = PARAMS - 1; i >= 0; i--) {
        loom_param *done[] = {&p[i]};
        assert_ok(loom_dp_gather_weights(dp, i));
        assert_ok(loom_dp_begin_gradients(dp, i));
        if (i == PARAMS - 1)
            assert_ok(kernels->fill(kernels, &(loom_fill_args){.y = p[i].gradient, .value = 1, .count = COUNT}, stream));
        assert_ok(loom_dp_scatter_gradients(dp, i));
        assert_ok(loom_dp_ready(dp, done, 1));
    }
    assert_ok(loom_dp_finish(dp, 2, 1e-3, step, result));
}

static void step_behind_a_device_that_stands_still(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.dp = 2, .zero = zero}, NULL);
    loom_param p[PARAMS];
    loom_dp_result result;
    loom_kernels *kernels;

    assert_ok(loom_kernels_open(loom_comm_device(world), NULL, &kernels));
    loom_dp *dp = open_dp(mesh, p, kernels, stream);
    one_step(dp, p, kernels, 1, stream, &result); /* comms meet in their first calls */
    adamw = kernels->adamw;
    kernels->adamw = counted_adamw;
    atomic_store(&held, true);
    assert_ok(loom_stream_run(stream, stand_still, NULL));
    one_step(dp, p, kernels, 2, stream, &result);
    assert_int_equal(enqueued, PARAMS);
    assert_true(fabs(result.grad_norm - sqrt(COUNT)) < 1e-9); /* (1 + 1) / 2 of each of COUNT weights */
    loom_dp_close(dp);
    loom_kernels_close(kernels);
    loom_mesh_close(mesh);
}

static void nothing_in_a_step_waits_for_the_host(void **state)
{
    (void)state;
    for (zero = 0; zero <= 3; zero++)
        on_ranks_with(&on_cuda, 2, step_behind_a_device_that_stands_still);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_in_a_step_waits_for_the_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
