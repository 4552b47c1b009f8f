/* The textbook's arithmetic: numbers that papers print and that the formulas have to give, to the digit where they are exact. */
#include "check.h"

#include <math.h>

#include <rankloom/schedule.h>

#include "planner/cost.h"
#include "planner/constants/kinds.h"

/* cmocka of Debian 12 has none for doubles. */
#define assert_near(value, wanted, within)                                                                                                 \
    do {                                                                                                                                   \
        double near_value_ = (value), near_wanted_ = (wanted);                                                                             \
        if (!(fabs(near_value_ - near_wanted_) <= (within)))                                                                               \
            fail_msg("%s is %.12g, not %.12g", #value, near_value_, near_wanted_);                                                         \
    } while (0)

/* GPT of the papers: plain MLP of 4h, biases, tied embedding, 51,200 tokens. */
static loom_job gpt(int layers, int hidden, int heads)
{
    loom_job job = {.seq = 2048, .global_batch = 1536, .bits = 16, .element = 2, .imbalance = 1, .repeat = LOOM_REPEAT_CORE};

    job.model = (loom_model){.layers = layers,
                             .hidden = hidden,
                             .heads = heads,
                             .kv_heads = heads,
                             .head_dim = hidden / heads,
                             .ffn = 4 * hidden,
                             .vocab = 51200,
                             .seq = 2048,
                             .mlp = LOOM_GELU_TANH,
                             .norm = LOOM_LAYERNORM,
                             .positions = LOOM_LEARNED,
                             .attention_bias = true,
                             .output_bias = true,
                             .mlp_bias = true,
                             .tied_embeddings = true};
    loom_device_constants(loom_device_kind_find("A100"), job.machine.dev);
    loom_software_constants(loom_framework_find("megatron-lm"), job.soft);
    job.machine.ranks = 4096;
    job.machine.domain = job.machine.node = 8;
    return job;
}

static loom_degrees degrees_of(const loom_job *job, int tp, int pp, int micro_batch, bool sequence_parallel, loom_recompute recompute)
{
    loom_degrees g = {.tp = tp,
                      .cp = 1,
                      .dp = 1,
                      .pp = pp,
                      .vpp = 1,
                      .ep = 1,
                      .etp = 1,
                      .micro_batch = micro_batch,
                      .sequence_parallel = sequence_parallel,
                      .pipeline = LOOM_PIPE_1F1B,
                      .recompute = recompute,
                      .order = {LOOM_AXIS_TP, LOOM_AXIS_CP, LOOM_AXIS_DP, LOOM_AXIS_PP}};
    loom_degrees_place(&g, &job->machine);
    return g;
}

/* Activations of one layer in units of s b h bytes. */
static double layer_in_sbh(int tp, bool sequence_parallel, loom_recompute recompute)
{
    loom_job job = gpt(96, 12288, 96);
    loom_degrees g = degrees_of(&job, tp, 1, 1, sequence_parallel, recompute);
    loom_memory_table table = loom_memory_table_of(&job, &g);
    double log_sum_exp = 0;

    return (table.kept[LOOM_LAYER_DENSE] - log_sum_exp) / (2048.0 * 12288);
}

static void a_layer_of_gpt3_keeps_what_korthikanti_says(void **state)
{
    assert_near(layer_in_sbh(1, false, LOOM_RECOMPUTE_NONE), 114, 1e-9);
    assert_near(layer_in_sbh(8, false, LOOM_RECOMPUTE_NONE), 23, 1e-9);
    assert_near(layer_in_sbh(8, true, LOOM_RECOMPUTE_NONE), 14.25, 1e-9);
    assert_near(layer_in_sbh(8, true, LOOM_RECOMPUTE_SELECTIVE), 4.25, 1e-9);
    assert_near(layer_in_sbh(8, false, LOOM_RECOMPUTE_FULL), 2, 1e-9);
}

static double parameters(const loom_job *job)
{
    loom_degrees one = degrees_of(job, 1, 1, 1, false, LOOM_RECOMPUTE_NONE);
    double sum = loom_embedding_weights(&job->model, &one) + loom_head_weights(&job->model, &one);

    if (job->model.tied_embeddings)
        sum -= (double)job->model.vocab * job->model.hidden;
    for (int64_t i = 0; i < job->model.layers; i++) {
        loom_weights w = loom_layer_weights(&job->model, &one, loom_layer_kind_of(&job->model, i));
        sum += w.dense + w.experts;
    }
    return sum;
}

static void parameters_of_a_rank_sum_to_the_published_counts(void **state)
{
    loom_job gpt3 = gpt(96, 12288, 96), trillion = gpt(128, 25600, 160), llama = gpt(80, 8192, 64);
    loom_param_counts counts;

    assert_near(parameters(&gpt3) / 174.6e9, 1, 5e-4);
    assert_near(parameters(&trillion) / 1008.0e9, 1, 5e-4);
    llama.model =
        (loom_model){.layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .head_dim = 128, .ffn = 28672, .vocab = 128256, .seq = 8192};
    assert_near(parameters(&llama) / 70.55e9, 1, 5e-4);
    llama.model.layers = 126, llama.model.hidden = 16384, llama.model.heads = 128, llama.model.ffn = 53248;
    assert_near(parameters(&llama) / 405.85e9, 1, 5e-4);
    loom_model_count(&llama.model, &counts);
    assert_near(parameters(&llama), (double)counts.total, 0.5); /* and to the unit with the exact count */
    llama.model = (loom_model){.layers = 61,
                               .hidden = 7168,
                               .heads = 128,
                               .kv_heads = 128,
                               .head_dim = 192,
                               .ffn = 18432,
                               .vocab = 129280,
                               .seq = 4096,
                               .mla = {1536, 512, 64, 128, 128},
                               .moe = {.experts = 256,
                                       .top_k = 8,
                                       .ffn = 2048,
                                       .shared = 1,
                                       .shared_ffn = 2048,
                                       .dense_layers = 3,
                                       .every = 1,
                                       .groups = 1,
                                       .groups_kept = 1}};
    assert_near(parameters(&llama) / 671.0e9, 1, 5e-4);
}

/* --- pipelines with F = 1 and B = 2 ------------------------------------------------------------------------------------------- */

enum { MOST = 8 };

static double pipeline(loom_pipeline kind, int p, int v, int64_t m, int heavy_stage, double weight)
{
    double f[MOST], b[MOST], w[MOST];

    for (int i = 0; i < p; i++) {
        double by = i == heavy_stage ? 1.4 : 1;
        f[i] = by;
        b[i] = 2 * by;
        w[i] = weight * by;
    }
    loom_pipe pipe = {p, v, m, kind, f, b, w, 0};
    return loom_pipe_seconds(&pipe);
}

static double bubble(loom_pipeline kind, int p, int v, int64_t m)
{
    return pipeline(kind, p, v, m, -1, 1) / (3.0 * m) - 1;
}

static void bubbles_are_those_of_the_papers(void **state)
{
    assert_near(bubble(LOOM_PIPE_1F1B, 8, 1, 32), 0.21875, 1e-12);
    assert_near(bubble(LOOM_PIPE_INTERLEAVED, 8, 2, 32), 0.109375, 1e-12);
    assert_near(bubble(LOOM_PIPE_INTERLEAVED, 4, 3, 8), 0.125, 1e-12);
    double plain = pipeline(LOOM_PIPE_1F1B, 8, 1, 32, -1, 1) - 96, h1 = pipeline(LOOM_PIPE_ZB_H1, 8, 1, 32, -1, 1) - 96;
    assert_near(h1 / plain, 1.0 / 3, 1e-12);
    assert_near(pipeline(LOOM_PIPE_ZB_H2, 8, 1, 32, -1, 1) - 96, 0, 1e-12);
}

static void a_heavy_stage_late_in_the_pipeline_costs_more(void **state)
{
    assert_near(pipeline(LOOM_PIPE_1F1B, 8, 1, 32, 0, 1), 147.0, 1e-9);
    assert_near(pipeline(LOOM_PIPE_1F1B, 8, 1, 32, 2, 1), 149.4, 1e-9);
    assert_near(pipeline(LOOM_PIPE_1F1B, 8, 1, 32, 7, 1), 155.4, 1e-9);
}

static void chunks_in_flight_on_the_first_stage(void **state)
{
    loom_degrees g = {.pp = 8, .vpp = 3, .pipeline = LOOM_PIPE_INTERLEAVED};
    assert_near(loom_in_flight(&g, 0, 64), 31.0 / 3, 1e-12);
}

/* What is counted in closed form is what the proof of the very schedule finds. */
static void check_in_flight(loom_schedule_kind kind, loom_pipeline pipeline, int p, int v, int m)
{
    loom_degrees g = {.pp = p, .vpp = v, .pipeline = pipeline};
    loom_schedule *schedule;
    loom_schedule_facts facts;

    assert_ok(loom_schedule_generate(kind, p, v, m, &schedule));
    assert_ok(loom_schedule_verify(schedule, -1, &facts));
    for (int stage = 0; stage < p; stage++)
        assert_near(loom_in_flight(&g, stage, m) * v, facts.peak_in_flight[stage], 1e-9);
    loom_schedule_facts_free(&facts);
    loom_schedule_free(schedule);
}

static void every_schedule_holds_what_its_proof_finds(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p++)
        for (int m = 1; m <= 20; m++) {
            check_in_flight(LOOM_SCHEDULE_GPIPE, LOOM_PIPE_GPIPE, p, 1, m);
            check_in_flight(LOOM_SCHEDULE_1F1B, LOOM_PIPE_1F1B, p, 1, m);
            check_in_flight(LOOM_SCHEDULE_ZB_H1, LOOM_PIPE_ZB_H1, p, 1, m);
            for (int v = 2; v <= 4 && m % p == 0; v++)
                check_in_flight(LOOM_SCHEDULE_INTERLEAVED, LOOM_PIPE_INTERLEAVED, p, v, m);
            if (m >= 2 * p - 1) /* with fewer the V is not full */
                check_in_flight(LOOM_SCHEDULE_ZB_V, LOOM_PIPE_ZB_V, p, 2, m);
        }
}

/* --- bytes of a parameter ------------------------------------------------------------------------------------------------------------ */

static double state_bytes(int zero)
{
    loom_job job = gpt(1, 1024, 16);
    loom_degrees g = {.tp = 1,
                      .cp = 1,
                      .dp = 64,
                      .pp = 1,
                      .vpp = 1,
                      .ep = 1,
                      .etp = 1,
                      .micro_batch = 1,
                      .zero = zero,
                      .pipeline = LOOM_PIPE_1F1B,
                      .order = {0, 1, 2, 3}};
    loom_stage_load load = {{1, 0}, false, false};

    loom_degrees_place(&g, &job.machine);
    loom_memory_table table = loom_memory_table_of(&job, &g);
    loom_memory m = loom_memory_of(&job, &g, &table, &load, 0);
    return (m.part[LOOM_MEMORY_WEIGHTS] + m.part[LOOM_MEMORY_GRADIENTS] + m.part[LOOM_MEMORY_OPTIMIZER]) / m.parameters;
}

static void state_is_18_bytes_a_parameter_and_less_when_sharded_over_64(void **state)
{
    assert_near(state_bytes(0), 18, 1e-12);
    assert_near(state_bytes(1), 6.1875, 1e-12);
    assert_near(state_bytes(2), 2.25, 1e-12);
    assert_near(state_bytes(3), 0.28125, 1e-12);
}

/* --- the memory of Korthikanti's four models ------------------------------------------------------------------------------------------ */

typedef struct published {
    int layers, hidden, heads, pp, vpp, micro_batch;
    int64_t micro_batches;
    double plain, sp_selective, state; /* GiB */
} published;

/* Table 3 and figure 1 of arXiv 2205.05198: batch sizes 4, 64, 280, 512. */
static const published models[] = {
    {48, 6144, 64, 1, 1, 4, 1, 59.25, 9.56, 45.56},
    {96, 12288, 96, 8, 3, 1, 64, 66.84, 12.35, 45.56},
    {105, 20480, 128, 35, 3, 1, 280, 114.0, 23.08, 31.64},
    {128, 25600, 160, 64, 1, 1, 512, 131.3, 26.56, 32.96},
};

static double first_stage_activations(const published *m, bool sp_selective)
{
    loom_job job = gpt(m->layers, m->hidden, m->heads);
    loom_degrees g =
        degrees_of(&job, 8, m->pp, m->micro_batch, sp_selective, sp_selective ? LOOM_RECOMPUTE_SELECTIVE : LOOM_RECOMPUTE_NONE);
    int chunk_layers[256] = {0};

    g.vpp = m->vpp;
    g.pipeline = m->vpp > 1 ? LOOM_PIPE_INTERLEAVED : LOOM_PIPE_1F1B;
    job.global_batch = m->micro_batches * m->micro_batch;
    for (int c = 0; c < m->pp * m->vpp; c++)
        chunk_layers[c] = m->layers / (m->pp * m->vpp);
    loom_memory memory = loom_stage_memory_of(&job, &g, chunk_layers, 0);
    double loss = m->pp == 1 ? memory.part[LOOM_MEMORY_LOGITS] * 0.5
                             : 0; /* the paper counts fp32 logits: 4 bytes of an element, of the 8 that its last stage has */
    return (memory.part[LOOM_MEMORY_ACTIVATIONS] + loss) / 0x1p30;
}

static void activations_of_the_first_stage_are_near_the_published_ones(void **state)
{
    for (int i = 0; i < 4; i++) {
        double plain = first_stage_activations(&models[i], false) / models[i].plain,
               selective = first_stage_activations(&models[i], true) / models[i].sp_selective;
        if (!(plain > 0.99 && plain < 1.025 && selective > 0.98 && selective < 1.03))
            fail_msg("model %d: %.4f of the published plain, %.4f of sp + selective", i, plain, selective);
    }
}

static void mean_state_of_a_stage_is_near_the_published_one(void **state)
{
    for (int i = 0; i < 4; i++) {
        loom_job job = gpt(models[i].layers, models[i].hidden, models[i].heads);
        double gib = 18 * parameters(&job) / (8 * models[i].pp) / 0x1p30;
        assert_true(fabs(gib / models[i].state - 1) < 0.021);
    }
}

static void a_step_of_gpt3_is_3_386e18_flop(void **state)
{
    loom_job job = gpt(96, 12288, 96);
    assert_near(loom_model_flop(&job.model, 1536, 2048, false) / 3.386e18, 1, 5e-4);
}

/* --- collectives ---------------------------------------------------------------------------------------------------------------------- */

static loom_collective_cost collective(loom_pattern pattern, double bytes, int ranks, double bandwidth)
{
    loom_collective_cost cost = {0};
    assert_ok(loom_plan_collective(pattern, bytes, ranks, bandwidth, 0, &cost));
    return cost;
}

static void an_all_reduce_moves_the_buffer_nearly_twice(void **state)
{
    assert_near(collective(LOOM_PATTERN_ALL_REDUCE, 1, 8, 1).volume_factor, 1.75, 1e-12);
    /* 8 B parameters in BF16 are 16 GB: 28 GB over 8 ranks, 32 GB over very many; 36 ms at 900 GB/s, 640 ms at 50 GB/s */
    assert_near(collective(LOOM_PATTERN_ALL_REDUCE, 16e9, 8, 900e9).sent_per_rank, 28e9, 1);
    assert_near(collective(LOOM_PATTERN_ALL_REDUCE, 16e9, 1 << 20, 900e9).sent_per_rank, 32e9, 1e5);
    assert_near(collective(LOOM_PATTERN_ALL_REDUCE, 16e9, 1 << 20, 900e9).seconds, 35.6e-3, 5e-5);
    assert_near(collective(LOOM_PATTERN_ALL_REDUCE, 16e9, 1 << 20, 50e9).seconds, 640e-3, 5e-5);
    /* 3 B in BF16: about 12 GB */
    assert_near(collective(LOOM_PATTERN_ALL_REDUCE, 6e9, 1 << 20, 50e9).sent_per_rank, 12e9, 1e5);
    assert_near(collective(LOOM_PATTERN_ALL_GATHER, 8, 4, 1).seconds, 6, 1e-12);
    assert_near(collective(LOOM_PATTERN_REDUCE_SCATTER, 8, 4, 1).sent_per_rank, 6, 1e-12);
}

static void the_text_of_a_collective_has_traffic_time_and_formula(void **state)
{
    char *text;

    assert_ok(loom_plan_collective_text(LOOM_PATTERN_ALL_REDUCE, 16e9, 8, 900e9, 0, &text));
    for (const char *const *word = (const char *const[]){"16 GB", "2 (n-1)/n S", "1.75 S", "28 GB", "31.11 ms", "32 GB", "35.56 ms", NULL};
         *word; word++)
        if (!strstr(text, *word))
            fail_msg("'%s' is not in:\n%s", *word, text);
    loom_text_free(text);
}

static void a_collective_of_one_rank_is_refused(void **state)
{
    loom_collective_cost cost;
    assert_refused(loom_plan_collective(LOOM_PATTERN_ALL_REDUCE, 1, 1, 1, 0, &cost), LOOM_E_INVALID, "1 ranks");
    assert_refused(loom_plan_collective(LOOM_PATTERN_ALL_REDUCE, -1, 2, 1, 0, &cost), LOOM_E_INVALID, "above 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_of_gpt3_keeps_what_korthikanti_says),
        cmocka_unit_test(parameters_of_a_rank_sum_to_the_published_counts),
        cmocka_unit_test(bubbles_are_those_of_the_papers),
        cmocka_unit_test(a_heavy_stage_late_in_the_pipeline_costs_more),
        cmocka_unit_test(chunks_in_flight_on_the_first_stage),
        cmocka_unit_test(every_schedule_holds_what_its_proof_finds),
        cmocka_unit_test(state_is_18_bytes_a_parameter_and_less_when_sharded_over_64),
        cmocka_unit_test(activations_of_the_first_stage_are_near_the_published_ones),
        cmocka_unit_test(mean_state_of_a_stage_is_near_the_published_one),
        cmocka_unit_test(a_step_of_gpt3_is_3_386e18_flop),
        cmocka_unit_test(an_all_reduce_moves_the_buffer_nearly_twice),
        cmocka_unit_test(the_text_of_a_collective_has_traffic_time_and_formula),
        cmocka_unit_test(a_collective_of_one_rank_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
