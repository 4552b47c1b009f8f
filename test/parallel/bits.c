/* Two runs of one layout agree to the last bit, and what ranks hold in common stays equal to the bit for 100 steps. Gradients are the same bits whether a
 * backward is whole or in halves. */
#include "check.h"
#include "harness/on_ranks.h"
#include "trainer.h"
#include "truth.h"

#include <sys/mman.h>

enum { STEPS = 100 };

static truth expected;
static gpt_run *run;
static uint64_t *hashes; /* [run][rank], shared with the ranks */
static int this_run;

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

typedef bool select_fn(const loom_shard *shard);

static bool any(const loom_shard *shard)
{
    (void)shard;
    return true;
}

static bool whole(const loom_shard *shard)
{
    return shard->split_dim < 0;
}

static bool dense(const loom_shard *shard)
{
    return !shard->expert;
}

static bool of_expert(const loom_shard *shard)
{
    return shard->expert;
}

static uint64_t hash_params(const gpt_trainer *t, select_fn *select)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (int i = 0; i < t->stage->params.count; i++) {
        const loom_param *param = t->stage->params.at[i];

        if (select(&param->shard))
            hash = hash_bytes(hash, param->value, (size_t)loom_shard_local_count(&param->shard) * sizeof(float));
    }
    return hash;
}

static void check_same(loom_comm *comm, uint64_t hash, loom_stream *stream, int step)
{
    int64_t mine = (int64_t)hash, most, least;

    assert_ok(loom_all_reduce(comm, &mine, &most, 1, LOOM_I64, LOOM_MAX, stream));
    assert_ok(loom_all_reduce(comm, &mine, &least, 1, LOOM_I64, LOOM_MIN, stream));
    assert_ok(loom_stream_wait(stream));
    if (most != least)
        fail_msg("after step %d weights that are the same on all ranks of %s differ", step, loom_comm_name(comm));
}

/* tp ranks hold some weights in common, dp x cp ranks all but experts, and those edp ranks. */
static void check_replicas(const gpt_trainer *t, loom_stream *stream, int step)
{
    check_same(t->mesh->axis[LOOM_AXIS_TP], hash_params(t, whole), stream, step);
    check_same(t->mesh->gradient, hash_params(t, dense), stream, step);
    check_same(t->mesh->axis[LOOM_AXIS_EDP], hash_params(t, of_expert), stream, step);
}

static void train(loom_comm *world, loom_stream *stream)
{
    gpt_trainer *t;
    gpt_step result;
    uint64_t hash;

    assert_ok(gpt_trainer_open(run, world, &t));
    for (int step = 0; step < STEPS; step++) {
        assert_ok(gpt_trainer_step(t, step, &result));
        check_replicas(t, stream, step);
    }
    hash = hash_bytes(hash_params(t, any), &result.loss, sizeof result.loss);
    hashes[this_run * 8 + loom_comm_rank(world)] = hash_bytes(hash, &result.grad_norm, sizeof result.grad_norm);
    gpt_trainer_close(t);
}

static void open_run(const char *name)
{
    truth_open(name, &expected);
    run = truth_run(&expected);
    run->init[0] = 0;
    run->train.steps = STEPS;
    run->train.seed = 7;
}

static void close_run(void)
{
    free(run);
    truth_close(&expected);
}

/* `layout` names what is not as usual. */
static void use_layout(loom_layout layout, int ranks)
{
    loom_layout_default(&run->model, &run->layout);
    for (int *to = &run->layout.tp, *from = &layout.tp; to <= &run->layout.etp; to++, from++)
        *to = *from ? *from : 1;
    run->layout.vpp = layout.vpp ? layout.vpp : 1;
    run->layout.schedule = layout.schedule ? layout.schedule : LOOM_SCHEDULE_1F1B;
    run->layout.recompute = layout.recompute;
    run->layout.cp_kind = layout.cp_kind;
    run->layout.zero = layout.zero;
    run->layout.sequence_parallel = layout.sequence_parallel;
    run->layout.micro_batch = layout.micro_batch ? layout.micro_batch : 2;
    run->layout.global_batch = TRUTH_BATCH;
    run->layout.seq = TRUTH_SEQ;
    assert_ok(loom_layout_check(&run->layout, &run->model, ranks));
}

static void twice(const char *name, int ranks, loom_layout layout)
{
    open_run(name);
    use_layout(layout, ranks);
    for (this_run = 0; this_run < 2; this_run++)
        on_ranks(ranks, train);
    assert_memory_equal(hashes, hashes + 8, (size_t)ranks * sizeof *hashes);
    close_run();
}

static void llama_tp4_with_shared_kv_heads_and_sequence_parallelism(void **state)
{
    (void)state;
    twice("llama_tiny", 4, (loom_layout){.tp = 4, .pp = 1, .dp = 1, .sequence_parallel = true});
}

static void gpt2_tp2_pp2_dp2_zero1(void **state)
{
    (void)state;
    twice("gpt2_tiny", 8, (loom_layout){.tp = 2, .pp = 2, .dp = 2, .zero = 1});
}

static void llama_tp2_cp4_with_all_to_all_and_ring(void **state)
{
    (void)state;
    twice("llama_tiny", 8, (loom_layout){.tp = 2, .pp = 1, .dp = 1, .cp = 4, .cp_kind = LOOM_CP_HYBRID, .sequence_parallel = true});
}

static void deepseek_tp2_dp4_with_ep2_etp2_and_zero1(void **state)
{
    (void)state;
    twice("deepseek_tiny", 8, (loom_layout){.tp = 2, .pp = 1, .dp = 4, .ep = 2, .etp = 2, .zero = 1, .sequence_parallel = true});
}

/* --- halves of a backward ------------------------------------------------------------------------------------------------------------- */

/* By its name, so that it does not matter in which order stages hold their parameters. */
static loom_status add_gradient(void *context, const loom_shard *spec, const float *data)
{
    uint64_t hash = hash_bytes(UINT64_C(0xcbf29ce484222325), spec->name, strlen(spec->name));

    *(uint64_t *)context += hash_bytes(hash, data, (size_t)loom_shard_global_count(spec) * sizeof *data);
    return LOOM_OK;
}

static void make_gradients(loom_comm *world, loom_stream *stream)
{
    gpt_trainer *t;
    loom_dp_result result;
    uint64_t hash = 0;

    (void)stream;
    assert_ok(gpt_trainer_open(run, world, &t));
    assert_ok(gpt_trainer_load_batch(t, 0));
    assert_ok(gpt_trainer_forward_backward(t));
    assert_ok(loom_dp_reduce_only(t->dp, (double)gpt_trainer_tokens(t), &result));
    assert_ok(loom_weights_gather(t->mesh, &t->stage->params, LOOM_WEIGHTS_GRADIENTS, add_gradient, &hash));
    if (loom_comm_rank(world) == 0)
        hashes[this_run] = hash;
    gpt_trainer_close(t);
}

/* The same gradients, summed over micro-batches in one order, by 1f1b and by the split schedules of the same ranks. A matrix that is embedding and head
 * at once gets its sum in another order when both are on one stage: zb-v puts them there, so it is for models with two. */
static void in_halves(const char *name, int ranks, loom_layout layout)
{
    static const struct {
        loom_schedule_kind schedule;
        int vpp;
    } split[] = {{LOOM_SCHEDULE_ZB_H1, 1}, {LOOM_SCHEDULE_ZB_V, 2}};

    open_run(name);
    run->model.layers = 4; /* one for every chunk of zb-v */
    layout.schedule = LOOM_SCHEDULE_1F1B;
    layout.micro_batch = 1;
    use_layout(layout, ranks);
    this_run = 0;
    on_ranks(ranks, make_gradients);
    for (this_run = 1; this_run <= (run->model.tied_embeddings ? 1 : 2); this_run++) {
        layout.schedule = split[this_run - 1].schedule;
        layout.vpp = split[this_run - 1].vpp;
        use_layout(layout, ranks);
        on_ranks(ranks, make_gradients);
        if (hashes[this_run] != hashes[0])
            fail_msg("%s: gradients of %s differ from those of 1f1b", name, loom_schedule_kind_name(layout.schedule));
    }
    close_run();
}

static void gradients_are_the_same_bits_when_the_weights_half_comes_later(void **state)
{
    (void)state;
    in_halves("gpt2_tiny", 4, (loom_layout){.tp = 2, .pp = 2, .sequence_parallel = true});
    in_halves("llama_tiny", 2, (loom_layout){.pp = 2, .recompute = LOOM_RECOMPUTE_FULL});
    in_halves("llama_tiny", 8, (loom_layout){.tp = 2, .pp = 2, .cp = 2, .cp_kind = LOOM_CP_ULYSSES, .zero = 1, .sequence_parallel = true});
    in_halves("mixtral_tiny", 4, (loom_layout){.pp = 2, .dp = 2, .ep = 2});
    in_halves("deepseek_tiny", 4, (loom_layout){.tp = 2, .pp = 2, .etp = 2, .recompute = LOOM_RECOMPUTE_FULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_tp4_with_shared_kv_heads_and_sequence_parallelism),
        cmocka_unit_test(gpt2_tp2_pp2_dp2_zero1),
        cmocka_unit_test(llama_tp2_cp4_with_all_to_all_and_ring),
        cmocka_unit_test(deepseek_tp2_dp4_with_ep2_etp2_and_zero1),
        cmocka_unit_test(gradients_are_the_same_bits_when_the_weights_half_comes_later),
    };

    hashes = mmap(NULL, 16 * sizeof *hashes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (hashes == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
