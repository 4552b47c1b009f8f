/* Layouts in other frameworks' words: there and back is the same layout; what a dialect cannot say is refused with the reason; worked examples that the
 * projects' own validators accepted. */
#include <rankloom/emit.h>

#include "check.h"

static const loom_model dense = {.name = "dense", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336, .vocab = 128256, .seq = 8192,
                                 .mlp = LOOM_SWIGLU};
static const loom_model moe = {.name = "moe", .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336, .vocab = 32000, .seq = 8192,
                               .mlp = LOOM_SWIGLU, .names = LOOM_NAMES_MIXTRAL, .moe = {.experts = 8, .top_k = 2, .ffn = 14336, .every = 1}};

/* --- random layouts ----------------------------------------------------------------------------------------------------------- */

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

static void draw_layers(uint64_t *seed, loom_layout *l)
{
    int chunks = l->pp * l->vpp;

    l->n_chunks = chunks;
    for (int c = 0; c < chunks; c++)
        l->chunk_layers[c] = 32 / chunks + (c < 32 % chunks);
    if (chunks > 1 && draw(seed, 3) == 0) { /* fewer at the ends */
        int64_t moved = draw(seed, (uint32_t)l->chunk_layers[0]);
        l->chunk_layers[0] -= moved;
        l->chunk_layers[chunks / 2] += moved;
    }
}

/* Any layout that may or may not be legal; the words that a layout of one stage or one cp rank does not use stand at their defaults. */
static void draw_layout(uint64_t *seed, const loom_model *m, loom_layout *l)
{
    static const loom_schedule_kind kinds[] = {LOOM_SCHEDULE_GPIPE, LOOM_SCHEDULE_1F1B, LOOM_SCHEDULE_1F1B, LOOM_SCHEDULE_ZB_V, LOOM_SCHEDULE_ZB_H1};
    bool experts = m->moe.experts > 0;

    loom_layout_default(m, l);
    l->tp = 1 << draw(seed, 4);
    l->cp = 1 << draw(seed, 3);
    l->pp = draw(seed, 2) ? 1 : 1 << draw(seed, 4);
    l->dp = 1 << draw(seed, 4);
    l->vpp = l->pp > 1 && draw(seed, 2) ? 2 : 1;
    l->schedule = l->vpp == 2 ? LOOM_SCHEDULE_INTERLEAVED : LOOM_SCHEDULE_1F1B;
    if (l->pp > 1 && draw(seed, 4) == 0)
        l->schedule = kinds[draw(seed, 5)];
    l->ep = experts ? 1 << draw(seed, 4) : 1;
    l->etp = experts && draw(seed, 2) ? l->tp : 1;
    l->zero = (int)draw(seed, 4);
    l->sequence_parallel = l->tp > 1 && draw(seed, 2);
    l->recompute = draw(seed, 3);
    l->cp_kind = l->cp > 1 ? draw(seed, 4) : LOOM_CP_RING;
    l->micro_batch = 1 + draw(seed, 2);
    l->global_batch = l->micro_batch * l->dp * l->pp * (1 + draw(seed, 4));
    l->seq = 8192;
    if (draw(seed, 8) == 0) {
        l->order[2] = LOOM_AXIS_PP;
        l->order[3] = LOOM_AXIS_DP;
    }
    draw_layers(seed, l);
}

static void same_layout(const loom_layout *got, const loom_layout *want, const char *text)
{
    char *a, *b;

    assert_ok(loom_layout_yaml(got, &a));
    assert_ok(loom_layout_yaml(want, &b));
    if (strcmp(a, b) != 0)
        fail_msg("came back as\n%s\nnot\n%s\nfrom\n%s", a, b, text);
    loom_text_free(a);
    loom_text_free(b);
}

/* Emits and imports; false when the dialect refused. */
static bool goes_round(const loom_layout *l, const loom_model *m, loom_dialect dialect)
{
    loom_layout back;
    char *text, *notes;
    loom_status status = loom_emit(l, m, dialect, &text);

    if (status < 0) {
        assert_int_equal(status, LOOM_E_UNSUPPORTED);
        assert_in_message("cannot say this layout:\n");
        return false;
    }
    loom_layout_default(m, &back);
    back.seq = l->seq; /* DeepSpeed's JSON has none */
    assert_ok(loom_import("emitted", text, strlen(text), dialect, m, loom_layout_world(l), &back, &notes));
    same_layout(&back, l, text);
    loom_text_free(text);
    loom_text_free(notes);
    return true;
}

static void check_round(loom_dialect dialect, const loom_model *m, int wanted)
{
    uint64_t seed = 11 + dialect;
    int said = 0, refused = 0;

    for (int tries = 0; tries < 20000 && said < wanted; tries++) {
        loom_layout l;
        draw_layout(&seed, m, &l);
        if (loom_layout_check(&l, m, 0) < 0)
            continue;
        if (goes_round(&l, m, dialect))
            said++;
        else
            refused++;
    }
    assert_int_equal(said, wanted);
    assert_true(refused > 0);
}

static void megatron_comes_back_the_same(void **state) { check_round(LOOM_DIALECT_MEGATRON, &dense, 60), check_round(LOOM_DIALECT_MEGATRON, &moe, 60); }
static void nemo_comes_back_the_same(void **state) { check_round(LOOM_DIALECT_NEMO, &dense, 60), check_round(LOOM_DIALECT_NEMO, &moe, 60); }
static void torchtitan_comes_back_the_same(void **state) { check_round(LOOM_DIALECT_TORCHTITAN, &dense, 60), check_round(LOOM_DIALECT_TORCHTITAN, &moe, 40); }
static void deepspeed_comes_back_the_same(void **state) { check_round(LOOM_DIALECT_DEEPSPEED, &dense, 40), check_round(LOOM_DIALECT_DEEPSPEED, &moe, 40); }
static void maxtext_comes_back_the_same(void **state) { check_round(LOOM_DIALECT_MAXTEXT, &dense, 60), check_round(LOOM_DIALECT_MAXTEXT, &moe, 40); }

/* --- worked examples --------------------------------------------------------------------------------------------------------- */

/* Llama-3.1-8B on 64: tp4 sp pp4 vpp2 cp2 dp2 zero 1. */
static loom_layout example_a(void)
{
    loom_layout l;

    loom_layout_default(&dense, &l);
    l.tp = 4, l.pp = 4, l.vpp = 2, l.cp = 2, l.dp = 2, l.zero = 1, l.sequence_parallel = true, l.schedule = LOOM_SCHEDULE_INTERLEAVED;
    l.micro_batch = 1, l.global_batch = 64, l.seq = 8192, l.recompute = LOOM_RECOMPUTE_SELECTIVE, l.cp_kind = LOOM_CP_RING;
    assert_ok(loom_layout_check(&l, &dense, 64));
    return l;
}

static void has_all(const char *text, const char *const *wanted)
{
    for (; *wanted; wanted++)
        if (!strstr(text, *wanted))
            fail_msg("no \"%s\" in:\n%s", *wanted, text);
}

static void says(const loom_layout *l, const loom_model *m, loom_dialect dialect, const char *const *wanted)
{
    char *text;

    assert_ok(loom_emit(l, m, dialect, &text));
    has_all(text, wanted);
    loom_text_free(text);
}

static void the_accepted_example_is_emitted_as_accepted(void **state)
{
    static const char *const megatron[] = {"--tensor-model-parallel-size 4\n", "--sequence-parallel\n", "--pipeline-model-parallel-size 4\n", "--context-parallel-size 2\n",
                                           "--num-virtual-stages-per-pipeline-rank 2\n", "--cp-comm-type p2p\n", "--micro-batch-size 1\n", "--global-batch-size 64\n",
                                           "--seq-length 8192\n", "--use-distributed-optimizer\n", "--recompute-granularity selective\n", "--bf16\n", NULL};
    static const char *const nemo[] = {"  tensor_model_parallel_size: 4\n", "  virtual_pipeline_model_parallel_size: 2\n", "dataset:\n  seq_length: 8192\n", "mixed_precision: bf16_mixed", NULL};
    static const char *const maxtext[] = {"ici_tensor_sequence_parallelism: 4\n", "ici_context_parallelism: 2\n", "num_layers_per_pipeline_stage: 4\n", "num_pipeline_microbatches: 32\n",
                                          "per_device_batch_size: 1\n", "shard_optimizer_over_data: true\n", NULL};
    loom_layout l = example_a();
    char *text;

    says(&l, &dense, LOOM_DIALECT_MEGATRON, megatron);
    says(&l, &dense, LOOM_DIALECT_NEMO, nemo);
    says(&l, &dense, LOOM_DIALECT_MAXTEXT, maxtext);
    assert_refused(loom_emit(&l, &dense, LOOM_DIALECT_TORCHTITAN, &text), LOOM_E_UNSUPPORTED, "zero=1: optimizer states alone");
    assert_refused(loom_emit(&l, &dense, LOOM_DIALECT_DEEPSPEED, &text), LOOM_E_UNSUPPORTED, "pp=4 vpp=2: stages are made in code", "cp_kind=ring", "recompute=selective");
}

static void uneven_stages_have_a_text_in_megatron_and_names_in_torchtitan(void **state)
{
    static const char *const megatron[] = {"--pipeline-model-parallel-layout 'Et*7|t*9|t*9|t*7L'\n", NULL};
    static const char *const titan[] = {"[\"tok_embeddings\", \"layers.0\",", "\"layers.31\", \"norm\", \"output\"]", NULL};
    loom_layout l;

    loom_layout_default(&dense, &l);
    l.pp = 4, l.global_batch = 8, l.seq = 8192, l.zero = 0, l.n_chunks = 4;
    l.chunk_layers[0] = l.chunk_layers[3] = 7, l.chunk_layers[1] = l.chunk_layers[2] = 9;
    says(&l, &dense, LOOM_DIALECT_MEGATRON, megatron);
    says(&l, &dense, LOOM_DIALECT_TORCHTITAN, titan);
}

static void those_without_pipeline_say_so(void **state)
{
    static const char *const accelerate[] = {"dp_replicate_size=1, dp_shard_size=4, tp_size=2, cp_size=1, sp_size=1", NULL};
    static const char *const axolotl[] = {"dp_shard_size: 4\n", "tensor_parallel_size: 2\n", "gradient_accumulation_steps: 2\n", NULL};
    static const char *const verl[] = {"actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4\n", "virtual_pipeline_model_parallel_size=2\n", "use_distributed_optimizer=true\n", NULL};
    loom_layout l = example_a();
    char *text;

    assert_refused(loom_emit(&l, &dense, LOOM_DIALECT_ACCELERATE, &text), LOOM_E_UNSUPPORTED, "there is no pipeline", "zero=1", "recompute=selective");
    l.cp = 1;
    says(&l, &dense, LOOM_DIALECT_VERL, verl);
    loom_layout_default(&dense, &l);
    l.tp = 2, l.dp = 4, l.zero = 3, l.global_batch = 8, l.seq = 8192, l.sequence_parallel = true;
    says(&l, &dense, LOOM_DIALECT_ACCELERATE, accelerate);
    says(&l, &dense, LOOM_DIALECT_AXOLOTL, axolotl);
}

/* --- what people bring --------------------------------------------------------------------------------------------------------- */

static loom_layout imported(const char *text, loom_dialect dialect, const loom_model *m, int world, char **notes)
{
    loom_layout l;
    loom_dialect seen;

    loom_layout_default(m, &l);
    assert_ok(loom_import_recognise("job", text, strlen(text), &seen));
    assert_int_equal(seen, dialect);
    assert_ok(loom_import("job", text, strlen(text), dialect, m, world, &l, notes));
    return l;
}

static void a_torchrun_command_says_its_world(void **state)
{
    static const char command[] = "#!/bin/bash\nexport CUDA_DEVICE_MAX_CONNECTIONS=1 # as it should be\n"
                                  "torchrun --nproc_per_node=8 --nnodes 4 pretrain_gpt.py \\\n  --tensor-model-parallel-size 4 --sequence-parallel \\\n"
                                  "  --pipeline-model-parallel-size=2 --num-layers-per-virtual-pipeline-stage 4 --micro-batch-size 2 --num-layers 32 --seq-length 4096 --global-batch-size 32";
    char *notes;
    loom_layout l = imported(command, LOOM_DIALECT_MEGATRON, NULL, 0, &notes);

    assert_int_equal(l.tp, 4);
    assert_int_equal(l.pp, 2);
    assert_int_equal(l.dp, 4);
    assert_int_equal(l.vpp, 4);
    assert_int_equal(l.schedule, LOOM_SCHEDULE_INTERLEAVED);
    assert_int_equal(l.global_batch, 32);
    loom_text_free(notes);
    l = imported("--micro-batch-size 2", LOOM_DIALECT_MEGATRON, NULL, 4, &notes);
    assert_int_equal(l.global_batch, 8); /* micro-batch x dp, and it is told */
    assert_non_null(strstr(notes, "global batch size is not said"));
    loom_text_free(notes);
}

static void unset_expert_tensor_size_means_tp_in_megatron(void **state)
{
    char *notes;
    loom_layout l = imported("--tensor-model-parallel-size 2 --expert-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 16", LOOM_DIALECT_MEGATRON, &moe, 16, &notes);

    assert_int_equal(l.etp, 2);
    assert_non_null(strstr(notes, "Megatron takes tp, 2"));
    loom_text_free(notes);
}

/* Repeats, groups, and marks for embedding, MTP and loss: 1 + 6 + 1 stages of 3, 2 … 2, 5 layers. */
static void a_pipeline_text_is_expanded(void **state)
{
    char *notes;
    loom_layout l = imported("--num-layers 20 --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 4 --pipeline-model-parallel-layout 'Et*3|(tt|)*6,t*5mL'",
                             LOOM_DIALECT_MEGATRON, NULL, 4, &notes);

    assert_int_equal(l.vpp, 2);
    assert_int_equal(l.n_chunks, 8);
    assert_int_equal(l.chunk_layers[0], 3);
    for (int c = 1; c < 7; c++)
        assert_int_equal(l.chunk_layers[c], 2);
    assert_int_equal(l.chunk_layers[7], 5);
    loom_text_free(notes);
}

static void shares_of_ends_count_embedding_and_loss(void **state)
{
    static const int64_t want[] = {6, 7, 7, 6};
    char *notes;
    loom_layout l = imported("--num-layers 26 --pipeline-model-parallel-size 4 --micro-batch-size 1 --account-for-embedding-in-pipeline-split "
                             "--account-for-loss-in-pipeline-split",
                             LOOM_DIALECT_MEGATRON, NULL, 4, &notes);

    for (int s = 0; s < 4; s++)
        assert_int_equal(l.chunk_layers[s], want[s]);
    loom_text_free(notes);
    l = imported("--num-layers 26 --pipeline-model-parallel-size 4 --micro-batch-size 1 --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 5",
                 LOOM_DIALECT_MEGATRON, NULL, 4, &notes);
    assert_int_equal(l.chunk_layers[0], 5);
    assert_int_equal(l.chunk_layers[1], 8);
    loom_text_free(notes);
}

static void all_problems_of_a_command_come_at_once(void **state)
{
    static const char command[] = "--tensor-model-parallel-size $TP --micro-batch-size zero --virtual-pipeline-model-parallel-size 2";
    loom_layout l;

    loom_layout_default(NULL, &l);
    assert_refused(loom_import("run.sh", command, strlen(command), LOOM_DIALECT_MEGATRON, NULL, 8, &l, NULL), LOOM_E_INVALID, "run.sh", "variable of the shell",
                   "--micro-batch-size zero: is no such number", "is no flag of Megatron's");
    assert_refused(loom_import("run.sh", "--tensor-model-parallel-size 2", 30, LOOM_DIALECT_MEGATRON, NULL, 0, &l, NULL), LOOM_E_INVALID, "number of ranks is needed");
    assert_refused(loom_import("x", "", 0, LOOM_DIALECT_VERL, NULL, 0, &l, NULL), LOOM_E_UNSUPPORTED, "emitted only");
}

static void toml_of_a_real_job_is_read(void **state)
{
    static const char toml[] = "# llama3\n[job]\ndump_folder = \"./outputs # not a comment\"\n\n[training]\nlocal_batch_size = 32\nglobal_batch_size=64\nseq_len = 8_192\n"
                               "[parallelism]\ndata_parallel_shard_degree = -1 # the rest\ntensor_parallel_degree = 4\npipeline_parallel_degree = 4\ncontext_parallel_degree = 2\n"
                               "pipeline_parallel_schedule = \"Interleaved1F1B\"\npipeline_parallel_layers_per_stage = 4\npipeline_parallel_first_stage_less_layers = 0\n"
                               "pipeline_parallel_last_stage_less_layers = 0\npipeline_parallel_microbatch_size = 1\n[activation_checkpoint]\nmode = 'full'\n"
                               "[lists]\nx = [\n  [1, 2], # one\n  [3]\n]\n";
    char *notes;
    loom_layout l = imported(toml, LOOM_DIALECT_TORCHTITAN, &dense, 64, &notes), broken;

    assert_int_equal(l.dp, 2);
    assert_int_equal(l.vpp, 2);
    assert_int_equal(l.zero, 2); /* with a pipeline, weights are not resharded by default */
    assert_int_equal(l.recompute, LOOM_RECOMPUTE_FULL);
    assert_int_equal(loom_layout_micro_batches(&l), 32);
    loom_text_free(notes);
    loom_layout_default(&dense, &broken);
    assert_refused(loom_import("t.toml", "[a]\nb 3\n", 8, LOOM_DIALECT_TORCHTITAN, &dense, 8, &broken, NULL), LOOM_E_INVALID, "t.toml:2", "key = value");
    assert_refused(loom_import("t.toml", "a = [1,\n", 8, LOOM_DIALECT_TORCHTITAN, &dense, 8, &broken, NULL), LOOM_E_INVALID, "ends inside a value");
}

static void a_deepspeed_file_says_dp_by_its_batch(void **state)
{
    static const char json[] = "{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 8, \"zero_optimization\": {\"stage\": 3, "
                               "\"offload_optimizer\": {\"device\": \"cpu\"}}, \"fp16\": {\"enabled\": false}}";
    char *notes;
    loom_layout l = imported(json, LOOM_DIALECT_DEEPSPEED, NULL, 0, &notes), other;

    assert_int_equal(l.dp, 8);
    assert_int_equal(l.zero, 3);
    loom_text_free(notes);
    loom_layout_default(NULL, &other);
    assert_refused(loom_import("ds.json", json, strlen(json), LOOM_DIALECT_DEEPSPEED, NULL, 4, &other, NULL), LOOM_E_INVALID, "train_batch_size=64 is not micro-batch 1 x accumulation 8 x dp 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megatron_comes_back_the_same),
        cmocka_unit_test(nemo_comes_back_the_same),
        cmocka_unit_test(torchtitan_comes_back_the_same),
        cmocka_unit_test(deepspeed_comes_back_the_same),
        cmocka_unit_test(maxtext_comes_back_the_same),
        cmocka_unit_test(the_accepted_example_is_emitted_as_accepted),
        cmocka_unit_test(uneven_stages_have_a_text_in_megatron_and_names_in_torchtitan),
        cmocka_unit_test(those_without_pipeline_say_so),
        cmocka_unit_test(a_torchrun_command_says_its_world),
        cmocka_unit_test(unset_expert_tensor_size_means_tp_in_megatron),
        cmocka_unit_test(a_pipeline_text_is_expanded),
        cmocka_unit_test(shares_of_ends_count_embedding_and_loss),
        cmocka_unit_test(all_problems_of_a_command_come_at_once),
        cmocka_unit_test(toml_of_a_real_job_is_read),
        cmocka_unit_test(a_deepspeed_file_says_dp_by_its_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
