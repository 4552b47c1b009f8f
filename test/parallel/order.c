/* What ranks did is what a rehearsal says they will do: the passes in a training run's trace, rank by rank, in the order of those in the simulated trace
 * of the same layout; and the executor of lib/pp in the order of the simulated timeline, for every kind of schedule. */
#include "check.h"
#include "harness/mesh.h"
#include "harness/on_ranks.h"
#include "trainer.h"

#include <rankloom/simulate.h>

#include <unistd.h>

enum { MOST_PASSES = 512 };

/* A pass of a trace: what, of which chunk and micro-batch, and when. */
typedef struct pass {
    char kind;
    int chunk, micro_batch;
    double begin;
} pass;

static gpt_run *run;
static char prefix[256];

static int by_begin(const void *a, const void *b)
{
    double x = ((const pass *)a)->begin, y = ((const pass *)b)->begin;

    return (x > y) - (x < y);
}

/* "F c0 m3" as ranks write it, "F of micro-batch 3, chunk 0" or "W (weight gradient) of micro-batch 3, chunk 0" as a rehearsal does. */
static bool read_name(const char *name, pass *p)
{
    return sscanf(name, "%c c%d m%d", &p->kind, &p->chunk, &p->micro_batch) == 3 ||
           sscanf(name, "%c of micro-batch %d, chunk %d", &p->kind, &p->micro_batch, &p->chunk) == 3 ||
           sscanf(name, "%c (%*[^)]) of micro-batch %d, chunk %d", &p->kind, &p->micro_batch, &p->chunk) == 3;
}

/* The passes of one rank, in the order of their begins. */
static int passes_of(const loom_config *trace, int rank, pass *passes)
{
    const loom_node *events = loom_node_get(loom_config_root(trace), "traceEvents");
    int count = 0;

    for (size_t i = 0; i < loom_node_count(events); i++) {
        const loom_node *event = loom_node_at(events, i);
        const char *name = loom_node_text(loom_node_get(event, "name"));
        int64_t pid = -1;

        if (!name || !loom_node_as_i64(loom_node_get(event, "pid"), &pid) || pid != rank || !read_name(name, &passes[count]))
            continue;
        assert_true(loom_node_as_f64(loom_node_get(event, "ts"), &passes[count].begin));
        assert_true(++count < MOST_PASSES);
    }
    qsort(passes, (size_t)count, sizeof *passes, by_begin);
    return count;
}

/* --- a training run ------------------------------------------------------------------------------------------------------------------ */

/* A monitor traces from the third step on. */
static void train_three_steps(loom_comm *world, loom_stream *stream)
{
    gpt_trainer *t;
    gpt_step step;

    (void)stream;
    assert_ok(gpt_trainer_open(run, world, &t));
    for (int i = 0; i < 3; i++)
        assert_ok(gpt_trainer_step(t, i, &step));
    assert_ok(loom_monitor_finish(t->monitor));
    gpt_trainer_close(t);
}

static void make_run(void)
{
    run = calloc(1, sizeof *run);
    assert_non_null(run);
    assert_ok(loom_model_load(test_data("fixtures/llama_tiny/config.json"), &run->model, NULL));
    snprintf(run->data.path, sizeof run->data.path, "%s", test_data("fixtures/tokens.bin"));
    run->data.tokenizer = GPT_UINT16;
    run->train.steps = 3;
    run->train.adamw = (loom_adamw_config){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
    snprintf(prefix, sizeof prefix, "/tmp/loom-order-%d", (int)getpid());
    snprintf(run->output.trace, sizeof run->output.trace, "%s", prefix);
}

static loom_config *executed_trace(int world)
{
    char path[300];
    loom_config *trace;

    on_ranks(world, train_three_steps);
    snprintf(path, sizeof path, "%s.json", prefix);
    assert_ok(loom_config_load(path, &trace));
    unlink(path);
    return trace;
}

static loom_config *simulated_trace(int world)
{
    static const char room[] = "cluster: {nodes: 1, cpu_ranks_per_node: 8, cores_per_node: 8, memory_gib_per_node: 16}\n";
    int ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    loom_plan_request plan = {.model = &run->model, .max_gpus = world, .train = {.global_batch = run->layout.global_batch, .seq = run->layout.seq, .precision = LOOM_F32}};
    loom_rehearsal_request request = {.plan = &plan, .layout = &run->layout};
    loom_rehearsal rehearsal;
    loom_topology *topology;
    loom_config *trace;
    char *text;

    assert_ok(loom_topology_parse("room.yaml", room, sizeof room - 1, &topology));
    plan.topology = topology;
    assert_ok(loom_rehearse(&request, &rehearsal));
    assert_ok(loom_rehearsal_trace(&request, &rehearsal, ranks, world, &text));
    loom_rehearsal_free(&rehearsal);
    assert_ok(loom_config_parse("simulated.json", text, strlen(text), &trace));
    loom_text_free(text);
    loom_topology_free(topology);
    return trace;
}

static void compare_traces(int world, int expected)
{
    loom_config *executed = executed_trace(world), *simulated = simulated_trace(world);

    for (int rank = 0; rank < world; rank++) {
        pass done[MOST_PASSES], told[MOST_PASSES];
        int count = passes_of(executed, rank, done);

        assert_int_equal(count, expected);
        assert_int_equal(passes_of(simulated, rank, told), expected);
        for (int i = 0; i < count; i++)
            if (done[i].kind != told[i].kind || done[i].chunk != told[i].chunk || done[i].micro_batch != told[i].micro_batch)
                fail_msg("rank %d, pass %d: done %c c%d m%d, simulated %c c%d m%d", rank, i, done[i].kind, done[i].chunk, done[i].micro_batch, told[i].kind,
                         told[i].chunk, told[i].micro_batch);
    }
    loom_config_free(executed);
    loom_config_free(simulated);
}

static void training_follows_the_rehearsal(void **state)
{
    static const struct {
        int tp, pp, vpp, dp;
        loom_schedule_kind schedule;
    } cases[] = {{1, 2, 1, 1, LOOM_SCHEDULE_GPIPE},       {1, 4, 1, 1, LOOM_SCHEDULE_GPIPE}, {1, 2, 1, 2, LOOM_SCHEDULE_1F1B},
                 {2, 2, 1, 1, LOOM_SCHEDULE_1F1B},        {1, 4, 1, 1, LOOM_SCHEDULE_1F1B},  {1, 2, 2, 1, LOOM_SCHEDULE_INTERLEAVED},
                 {1, 2, 2, 2, LOOM_SCHEDULE_INTERLEAVED}, {1, 2, 2, 1, LOOM_SCHEDULE_GPIPE},  {1, 2, 1, 2, LOOM_SCHEDULE_ZB_H1},
                 {1, 4, 1, 1, LOOM_SCHEDULE_ZB_H1},       {2, 2, 2, 1, LOOM_SCHEDULE_ZB_V}};

    (void)state;
    make_run();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        loom_layout *l = &run->layout;
        int world = cases[i].tp * cases[i].pp * cases[i].dp;

        loom_layout_default(&run->model, l);
        l->tp = cases[i].tp;
        l->pp = cases[i].pp;
        l->vpp = cases[i].vpp;
        l->dp = cases[i].dp;
        l->schedule = cases[i].schedule;
        l->micro_batch = 1;
        l->global_batch = 8;
        l->seq = 32;
        assert_ok(loom_layout_check(l, &run->model, world));
        compare_traces(world, (loom_schedule_kind_splits(l->schedule) ? 3 : 2) * (int)loom_layout_micro_batches(l) * l->vpp);
    }
    free(run);
}

/* --- the executor alone -------------------------------------------------------------------------------------------------------------- */

static loom_schedule_kind kind;

static loom_status forward(void *context, int chunk, int micro_batch, int slot, const float *input, float *output)
{
    (void)context, (void)chunk, (void)micro_batch, (void)slot, (void)input, (void)output;
    return LOOM_OK;
}

static loom_status backward(void *context, int chunk, int micro_batch, int slot, const float *input, const float *d_output, float *d_input)
{
    (void)context, (void)chunk, (void)micro_batch, (void)slot, (void)input, (void)d_output, (void)d_input;
    return LOOM_OK;
}

static loom_status backward_weight(void *context, int chunk, int micro_batch, int slot, const float *input)
{
    (void)context, (void)chunk, (void)micro_batch, (void)slot, (void)input;
    return LOOM_OK;
}

static double one_us(void *context, int stage, const loom_action *action)
{
    (void)context, (void)stage;
    return action->kind == LOOM_BACKWARD ? 2 : 1;
}

static bool is_pass(const loom_action *a)
{
    return a->kind <= LOOM_BACKWARD_WEIGHT;
}

/* The passes of this stage by the begin that the simulation gives them. */
static int simulated_passes(const loom_schedule *schedule, int stage, pass *passes)
{
    const loom_stage_actions *list = &schedule->stage[stage];
    loom_timeline timeline;
    int count = 0;

    assert_ok(loom_schedule_simulate(schedule, &(loom_schedule_costs){.action_us = one_us}, &timeline));
    for (int i = 0; i < list->count; i++)
        if (is_pass(&list->at[i]))
            passes[count++] = (pass){(char)list->at[i].kind, list->at[i].chunk, list->at[i].micro_batch, timeline.at[stage][i].start_us};
    loom_timeline_free(&timeline);
    qsort(passes, (size_t)count, sizeof *passes, by_begin);
    return count;
}

static void run_schedule(loom_comm *world, loom_stream *stream)
{
    const loom_stage_ops ops = {.forward = forward, .backward = backward, .backward_input = backward, .backward_weight = backward_weight};
    loom_layout layout = {.pp = 4, .vpp = kind == LOOM_SCHEDULE_INTERLEAVED || kind == LOOM_SCHEDULE_ZB_V ? 2 : 1, .global_batch = 8, .schedule = kind};
    loom_mesh *mesh = test_mesh(world, layout, NULL);
    const loom_pipeline_time *done;
    loom_schedule *schedule;
    loom_pipeline *pipeline;
    pass told[MOST_PASSES];
    int count, at = 0, expected;

    assert_ok(loom_schedule_for_layout(&mesh->layout, &schedule));
    assert_ok(loom_pipeline_open(mesh, schedule, 4, &ops, stream, &pipeline));
    assert_ok(loom_pipeline_step(pipeline));
    done = loom_pipeline_times(pipeline, &count);
    expected = simulated_passes(schedule, loom_comm_rank(world), told);
    for (int i = 0; i < count; i++) {
        if (!is_pass(&done[i].action))
            continue;
        assert_true(at < expected && done[i].action.kind == (uint8_t)told[at].kind && done[i].action.chunk == told[at].chunk &&
                    done[i].action.micro_batch == told[at].micro_batch);
        assert_true(at == 0 || done[i].begin_s >= told[at - 1].begin);
        told[at++].begin = done[i].begin_s; /* in time, too */
    }
    assert_int_equal(at, expected);
    loom_pipeline_close(pipeline);
    loom_schedule_free(schedule);
    loom_mesh_close(mesh);
}

static void the_executor_follows_the_simulation(void **state)
{
    (void)state;
    for (int k = 0; k < LOOM_SCHEDULE_KINDS; k++) {
        kind = (loom_schedule_kind)k;
        on_ranks(4, run_schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_follows_the_rehearsal),
        cmocka_unit_test(the_executor_follows_the_simulation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
