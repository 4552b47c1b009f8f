/* The executor, with stages whose numbers tell what they went through. Layer i of the toy adds 2^i to x[0], so that a sum of 2^layers - 1 means every
 * layer once, and multiplies x[1] by w[i], so that weight gradients are small whole numbers, exact in f32. x[2] and x[3] name the micro-batch and
 * the chunk that wrote the message. */
#include "check.h"
#include "harness/mesh.h"
#include "harness/on_ranks.h"

#include <rankloom/pp.h>

#include <unistd.h>

enum { WIDTH = 4, LAYERS = 9, MOST_CHUNKS = 16, MOST_SLOTS = 16 };
enum { SUM, PRODUCT, MICRO_BATCH, CHUNK };

typedef struct toy_slot {
    int micro_batch; /* -1: free */
    float x[LAYERS + 1][WIDTH]; /* before each layer of the chunk */
    float d[WIDTH]; /* for the weight half of a backward */
} toy_slot;

typedef struct toy {
    const loom_layout *layout;
    const loom_schedule *schedule;
    toy_slot slot[MOST_CHUNKS][MOST_SLOTS];
    float dw[LAYERS];
    int finished; /* micro-batches that reached the end */
    int fail_at;  /* micro-batch whose forward on this rank fails; -1: none */
} toy;

static float weight(int layer)
{
    return (float)(1 + layer % 3);
}

static int chunks(const toy *t)
{
    return t->layout->n_chunks;
}

static int first_layer(const toy *t, int chunk)
{
    return (int)loom_layout_first_layer(t->layout, chunk);
}

static int layers(const toy *t, int chunk)
{
    return (int)t->layout->chunk_layers[chunk];
}

static toy_slot *take(toy *t, int chunk, int slot, int micro_batch)
{
    assert_in_range(slot, 0, loom_schedule_slots(t->schedule, chunk) - 1);
    assert_int_equal(t->slot[chunk][slot].micro_batch, -1);
    t->slot[chunk][slot].micro_batch = micro_batch;
    return &t->slot[chunk][slot];
}

/* Ranks that are out of step, differently in every place, find waits that are missing. */
static void dawdle(int chunk, int micro_batch)
{
    if ((chunk * 7 + micro_batch * 3) % 5 == 0)
        usleep(300);
}

static loom_status toy_forward(void *context, int chunk, int micro_batch, int slot, const float *input, float *output)
{
    toy *t = context;
    toy_slot *s = take(t, chunk, slot, micro_batch);
    float *x = s->x[layers(t, chunk)];

    dawdle(chunk, micro_batch);
    if (micro_batch == t->fail_at)
        return loom_fail(LOOM_E_INVALID, "the toy breaks");
    assert_int_equal(input == NULL, chunk == 0);
    assert_int_equal(output == NULL, chunk == chunks(t) - 1);
    if (input) {
        assert_int_equal(input[MICRO_BATCH], micro_batch);
        assert_int_equal(input[CHUNK], chunk - 1);
        memcpy(s->x[0], input, sizeof s->x[0]);
    } else {
        memcpy(s->x[0], (float[WIDTH]){0, (float)(micro_batch + 1), (float)micro_batch, -1}, sizeof s->x[0]);
    }
    for (int i = 0; i < layers(t, chunk); i++) {
        memcpy(s->x[i + 1], s->x[i], sizeof s->x[i]);
        s->x[i + 1][SUM] += (float)(1 << (first_layer(t, chunk) + i));
        s->x[i + 1][PRODUCT] *= weight(first_layer(t, chunk) + i);
    }
    if (output) {
        memcpy(output, x, sizeof(float[WIDTH]));
        output[CHUNK] = (float)chunk;
    } else {
        assert_int_equal(x[SUM], (1 << LAYERS) - 1);
        t->finished++;
    }
    return LOOM_OK;
}

static toy_slot *held(toy *t, int chunk, int micro_batch, int slot, const float *input)
{
    toy_slot *s = &t->slot[chunk][slot];

    assert_int_equal(s->micro_batch, micro_batch);
    if (input) /* as it was when forward read it */
        assert_memory_equal(input, s->x[0], sizeof s->x[0]);
    return s;
}

static loom_status toy_backward_input(void *context, int chunk, int micro_batch, int slot, const float *input, const float *d_output, float *d_input)
{
    toy *t = context;
    toy_slot *s = held(t, chunk, micro_batch, slot, input);

    dawdle(chunk, micro_batch + 1);
    assert_int_equal(d_output == NULL, chunk == chunks(t) - 1);
    assert_int_equal(d_input == NULL, chunk == 0);
    memcpy(s->d, (float[WIDTH]){0, 1, (float)micro_batch, (float)chunks(t)}, sizeof s->d); /* the loss is the sum of the products */
    if (d_output) {
        assert_int_equal(d_output[MICRO_BATCH], micro_batch);
        assert_int_equal(d_output[CHUNK], chunk + 1);
        memcpy(s->d, d_output, sizeof s->d);
    }
    if (d_input) {
        memcpy(d_input, s->d, sizeof s->d);
        for (int i = 0; i < layers(t, chunk); i++)
            d_input[PRODUCT] *= weight(first_layer(t, chunk) + i);
        d_input[CHUNK] = (float)chunk;
    }
    return LOOM_OK;
}

static loom_status toy_backward_weight(void *context, int chunk, int micro_batch, int slot, const float *input)
{
    toy *t = context;
    toy_slot *s = held(t, chunk, micro_batch, slot, input);
    float d = s->d[PRODUCT];

    for (int i = layers(t, chunk) - 1; i >= 0; i--) {
        t->dw[first_layer(t, chunk) + i] += d * s->x[i][PRODUCT];
        d *= weight(first_layer(t, chunk) + i);
    }
    s->micro_batch = -1;
    return LOOM_OK;
}

static loom_status toy_backward(void *context, int chunk, int micro_batch, int slot, const float *input, const float *d_output, float *d_input)
{
    loom_status status = toy_backward_input(context, chunk, micro_batch, slot, input, d_output, d_input);

    return status < 0 ? status : toy_backward_weight(context, chunk, micro_batch, slot, input);
}

static loom_stage_ops ops_of(toy *t)
{
    return (loom_stage_ops){t, toy_forward, toy_backward, toy_backward_input, toy_backward_weight};
}

static void start_toy(toy *t, const loom_layout *layout, const loom_schedule *schedule)
{
    *t = (toy){.layout = layout, .schedule = schedule, .fail_at = -1};
    for (int c = 0; c < MOST_CHUNKS; c++)
        for (int s = 0; s < MOST_SLOTS; s++)
            t->slot[c][s].micro_batch = -1;
}

/* --- what is checked of one case --------------------------------------------------------------------------------------------- */

static void every_gradient_is_whole(const toy *t, int stage, int steps)
{
    int m = (int)loom_layout_micro_batches(t->layout);
    float starts = (float)(m * (m + 1) / 2), product = 1;

    for (int i = 0; i < LAYERS; i++)
        product *= weight(i);
    for (int c = 0; c < chunks(t); c++)
        for (int i = first_layer(t, c); i < first_layer(t, c) + layers(t, c); i++) {
            bool here = loom_layout_stage_of_chunk(t->layout, c) == stage;
            assert_true(t->dw[i] == (here ? (float)steps * starts * product / weight(i) : 0));
        }
}

static void it_did_what_the_schedule_says(const loom_pipeline *pipeline, const loom_schedule *schedule, int stage)
{
    int count;
    double before_s = 0, wait_s = 0;
    const loom_pipeline_time *time = loom_pipeline_times(pipeline, &count);

    assert_int_equal(count, schedule->stage[stage].count);
    for (int i = 0; i < count; i++) {
        const loom_action *want = &schedule->stage[stage].at[i], *did = &time[i].action;
        assert_true(did->kind == want->kind && did->chunk == want->chunk && did->micro_batch == want->micro_batch);
        assert_true(time[i].begin_s >= before_s && time[i].end_s >= time[i].begin_s && time[i].wait_s >= 0);
        assert_true(time[i].wait_s <= time[i].end_s - time[i].begin_s + 1e-9);
        before_s = time[i].end_s;
        wait_s += time[i].wait_s;
    }
    assert_true(wait_s >= loom_pipeline_wait_s(pipeline) - 1e-9 && wait_s <= loom_pipeline_wait_s(pipeline) + 1e-9);
}

static void no_slot_is_held(const toy *t)
{
    for (int c = 0; c < MOST_CHUNKS; c++)
        for (int s = 0; s < MOST_SLOTS; s++)
            assert_int_equal(t->slot[c][s].micro_batch, -1);
}

static void memory_is_what_was_foretold(const loom_device *device, const loom_ledger *before, const loom_schedule *schedule, int stage)
{
    int activations, messages;
    loom_ledger now;

    assert_ok(loom_schedule_buffers(schedule, stage, &activations, &messages));
    loom_device_ledger(device, &now);
    assert_int_equal(now.live[LOOM_MEM_ACTIVATIONS] - before->live[LOOM_MEM_ACTIVATIONS], 64 * activations);
    assert_int_equal(now.live[LOOM_MEM_COMM] - before->live[LOOM_MEM_COMM], 64 * messages);
}

static void run_case(loom_mesh *mesh, const loom_layout *layout, loom_stream *stream)
{
    enum { STEPS = 2 };
    static toy t;
    int stage = mesh->here.at[LOOM_AXIS_PP];
    loom_device *device = loom_stream_device(stream);
    loom_schedule *schedule;
    loom_pipeline *pipeline;
    loom_ledger before, opened, after;

    assert_ok(loom_schedule_for_layout(layout, &schedule));
    start_toy(&t, layout, schedule);
    loom_device_ledger(device, &before);
    loom_stage_ops ops = ops_of(&t);
    assert_ok(loom_pipeline_open(mesh, schedule, WIDTH, &ops, stream, &pipeline));
    memory_is_what_was_foretold(device, &before, schedule, stage);
    loom_device_ledger(device, &opened);
    for (int step = 0; step < STEPS; step++) {
        assert_ok(loom_pipeline_step(pipeline));
        it_did_what_the_schedule_says(pipeline, schedule, stage);
    }
    loom_device_ledger(device, &after);
    assert_int_equal(after.allocations, opened.allocations); /* none in a step */
    every_gradient_is_whole(&t, stage, STEPS);
    no_slot_is_held(&t);
    if (loom_layout_stage_of_chunk(layout, layout->n_chunks - 1) == stage)
        assert_int_equal(t.finished, STEPS * loom_layout_micro_batches(layout));
    loom_pipeline_close(pipeline);
    loom_schedule_free(schedule);
}

/* --- cases ------------------------------------------------------------------------------------------------------------------- */

/* 9 layers over the chunks: as evenly as it goes, or all in one place with chunks of none elsewhere. */
static void split_layers(loom_layout *layout, bool lopsided)
{
    layout->n_chunks = layout->pp * layout->vpp;
    for (int c = 0; c < layout->n_chunks; c++) {
        loom_range even = loom_cut(LAYERS, layout->n_chunks, c);
        layout->chunk_layers[c] = !lopsided ? even.end - even.begin : c == layout->n_chunks / 2 ? LAYERS : 0;
    }
}

static bool is_legal(const loom_layout *layout)
{
    loom_layout copy = *layout;

    return loom_layout_resolve(&copy, NULL, layout->pp, NULL, 0) == 0;
}

static void every_schedule(loom_comm *world, loom_stream *stream)
{
    static const int micro_batches[] = {1, 2, 3, 4, 6, 8};
    int stages = loom_comm_size(world), ran = 0;
    loom_mesh *mesh = test_mesh(world, (loom_layout){.pp = stages}, NULL);

    for (int kind = 0; kind < LOOM_SCHEDULE_KINDS; kind++)
        for (int vpp = 1; vpp <= 3; vpp++)
            for (size_t i = 0; i < sizeof micro_batches / sizeof *micro_batches; i++)
                for (int lopsided = 0; lopsided < 2; lopsided++) {
                    loom_layout layout = mesh->layout;
                    layout.vpp = vpp;
                    layout.schedule = (loom_schedule_kind)kind;
                    layout.global_batch = micro_batches[i];
                    split_layers(&layout, lopsided);
                    if (!is_legal(&layout))
                        continue;
                    run_case(mesh, &layout, stream);
                    ran++;
                }
    assert_true(ran >= 60); /* of 180: the rest breaks a rule of its schedule */
    loom_mesh_close(mesh);
}

static void one_stage_runs_every_schedule(void **state) { (void)state; on_ranks(1, every_schedule); }
static void two_stages_run_every_schedule_also_as_each_others_next_and_previous(void **state) { (void)state; on_ranks(2, every_schedule); }
static void three_stages_run_every_schedule(void **state) { (void)state; on_ranks(3, every_schedule); }
static void four_stages_run_every_schedule(void **state) { (void)state; on_ranks(4, every_schedule); }

/* Data parallel neighbours have pipelines of their own. */
static void two_pipelines(loom_comm *world, loom_stream *stream)
{
    loom_mesh *mesh = test_mesh(world, (loom_layout){.pp = 2, .dp = 2}, NULL);
    loom_layout layout = mesh->layout;

    layout.schedule = LOOM_SCHEDULE_INTERLEAVED;
    layout.vpp = 2;
    layout.global_batch = 8;
    split_layers(&layout, false);
    run_case(mesh, &layout, stream);
    loom_mesh_close(mesh);
}

static void dp_ranks_have_pipelines_of_their_own(void **state) { (void)state; on_ranks(4, two_pipelines); }

/* --- what goes wrong ------------------------------------------------------------------------------------------------------------ */

static void open_toy(loom_comm *world, loom_stream *stream, loom_schedule_kind kind, toy *t, loom_layout *layout, loom_schedule **schedule, loom_mesh **mesh)
{
    *mesh = test_mesh(world, (loom_layout){.pp = loom_comm_size(world)}, NULL);
    *layout = (*mesh)->layout;
    layout->schedule = kind;
    layout->global_batch = 4;
    split_layers(layout, false);
    assert_ok(loom_schedule_for_layout(layout, schedule));
    start_toy(t, layout, *schedule);
    (void)stream;
}

static void halves_missing(loom_comm *world, loom_stream *stream)
{
    static toy t;
    loom_layout layout;
    loom_schedule *schedule;
    loom_mesh *mesh;
    loom_pipeline *pipeline = NULL;

    open_toy(world, stream, LOOM_SCHEDULE_ZB_H1, &t, &layout, &schedule, &mesh);
    loom_stage_ops ops = ops_of(&t);
    ops.backward_weight = NULL;
    assert_refused(loom_pipeline_open(mesh, schedule, WIDTH, &ops, stream, &pipeline), LOOM_E_UNSUPPORTED, "backward_weight", "1f1b");
    assert_null(pipeline);
    loom_schedule_free(schedule);
    loom_mesh_close(mesh);
}

static void a_stage_without_halves_refuses_a_zero_bubble_schedule(void **state) { (void)state; on_ranks(2, halves_missing); }

static void wrong_stages(loom_comm *world, loom_stream *stream)
{
    static toy t;
    loom_schedule *schedule;
    loom_pipeline *pipeline = NULL;
    loom_mesh *mesh = test_mesh(world, (loom_layout){.pp = 1}, NULL);
    loom_stage_ops ops = ops_of(&t);

    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_1F1B, 2, 1, 4, &schedule));
    assert_refused(loom_pipeline_open(mesh, schedule, WIDTH, &ops, stream, &pipeline), LOOM_E_INVALID, "2 stages", "pp 1");
    loom_schedule_free(schedule);
    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_1F1B, 1, 1, 4, &schedule));
    schedule->has_comm = false;
    assert_refused(loom_pipeline_open(mesh, schedule, WIDTH, &ops, stream, &pipeline), LOOM_E_INVALID, "loom_schedule_add_comm");
    loom_schedule_free(schedule);
    loom_mesh_close(mesh);
}

static void a_schedule_that_does_not_fit_the_mesh_is_refused(void **state) { (void)state; on_ranks(1, wrong_stages); }

/* The stage in the middle fails and leaves; its neighbours must not wait for it for ever. */
static void middle_fails(loom_comm *world, loom_stream *stream)
{
    static toy t;
    int rank = loom_comm_rank(world);
    loom_layout layout;
    loom_schedule *schedule;
    loom_mesh *mesh;
    loom_pipeline *pipeline;

    open_toy(world, stream, LOOM_SCHEDULE_1F1B, &t, &layout, &schedule, &mesh);
    if (rank == 1)
        t.fail_at = 2;
    loom_stage_ops ops = ops_of(&t);
    assert_ok(loom_pipeline_open(mesh, schedule, WIDTH, &ops, stream, &pipeline));
    if (rank == 1)
        assert_refused(loom_pipeline_step(pipeline), LOOM_E_INVALID, "stage 1", "F c1 m2", "the toy breaks");
    else
        assert_refused(loom_pipeline_step(pipeline), LOOM_E_PEER, rank == 0 ? "stage 0" : "stage 2");
    loom_pipeline_close(pipeline);
    loom_schedule_free(schedule);
    loom_mesh_close(mesh);
}

static void a_stage_that_fails_ends_all_stages(void **state) { (void)state; on_ranks(3, middle_fails); }

/* --- dry ------------------------------------------------------------------------------------------------------------------------ */

static loom_status nothing_forward(void *context, int chunk, int micro_batch, int slot, const float *input, float *output)
{
    (void)chunk, (void)micro_batch, (void)slot, (void)input, (void)output;
    ++*(int *)context;
    return LOOM_OK;
}

static loom_status nothing_backward(void *context, int chunk, int micro_batch, int slot, const float *input, const float *d_output, float *d_input)
{
    (void)d_output;
    return nothing_forward(context, chunk, micro_batch, slot, input, d_input);
}

/* Rank 5 of 8 stages with 4 GiB boundaries, on any laptop. */
static void any_stage_can_be_rehearsed_dry(void **state)
{
    enum { STAGES = 8, STAGE = 5, MICRO_BATCHES = 16 };
    const size_t boundary = (size_t)1 << 30;
    loom_layout layout = {.pp = STAGES, .schedule = LOOM_SCHEDULE_1F1B, .global_batch = MICRO_BATCHES};
    int called = 0, activations, messages;
    loom_stage_ops ops = {.context = &called, .forward = nothing_forward, .backward = nothing_backward};
    loom_device *device;
    loom_stream *stream;
    loom_comm *world;
    loom_schedule *schedule;
    loom_pipeline *pipeline;
    loom_ledger ledger;
    loom_traffic traffic;

    (void)state;
    assert_ok(loom_device_open(LOOM_DRY, NULL, &device));
    assert_ok(loom_stream_open(device, LOOM_STREAM_INLINE, "compute", &stream));
    assert_ok(loom_comm_open_dry(STAGE, STAGES, device, &world));
    loom_mesh *mesh = test_mesh(world, layout, NULL);
    assert_ok(loom_schedule_for_layout(&mesh->layout, &schedule));
    assert_ok(loom_pipeline_open(mesh, schedule, boundary, &ops, stream, &pipeline));
    assert_ok(loom_pipeline_step(pipeline));
    assert_int_equal(called, 2 * MICRO_BATCHES);
    assert_ok(loom_schedule_buffers(schedule, STAGE, &activations, &messages));
    loom_device_ledger(device, &ledger);
    assert_int_equal(ledger.live[LOOM_MEM_ACTIVATIONS], activations * boundary * sizeof(float));
    loom_comm_traffic(mesh->axis[LOOM_AXIS_PP], &traffic);
    assert_int_equal(traffic.bytes[LOOM_CALL_SEND], 2 * MICRO_BATCHES * boundary * sizeof(float)); /* activations on, gradients back */
    loom_pipeline_close(pipeline);
    loom_schedule_free(schedule);
    loom_mesh_close(mesh);
    loom_comm_free(world);
    loom_stream_close(stream);
    loom_device_close(device);
}

/* --- plans, without ranks ----------------------------------------------------------------------------------------------------------- */

/* 1F1B: stage s of p keeps p - s micro-batches; the first has no input to keep. */
static void a_1f1b_stage_keeps_as_many_inputs_as_are_in_flight(void **state)
{
    enum { STAGES = 4 };
    loom_schedule *schedule;
    int activations, messages;

    (void)state;
    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_1F1B, STAGES, 1, 8, &schedule));
    assert_ok(loom_schedule_add_comm(schedule));
    for (int s = 0; s < STAGES; s++) {
        assert_int_equal(loom_schedule_slots(schedule, s), STAGES - s);
        assert_ok(loom_schedule_buffers(schedule, s, &activations, &messages));
        assert_in_range(activations, s ? STAGES - s : 0, s ? STAGES - s + 1 : 0); /* one more where the next is received early */
    }
    loom_schedule_free(schedule);
}

/* ZB-H1: stage s keeps s weight gradients back, and has one more between its halves. */
static void a_zb_h1_stage_has_as_many_backwards_open_as_it_keeps_back(void **state)
{
    enum { STAGES = 4 };
    loom_schedule *schedule;

    (void)state;
    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_ZB_H1, STAGES, 1, 8, &schedule));
    for (int s = 0; s < STAGES; s++) {
        assert_int_equal(loom_schedule_slots(schedule, s), STAGES);
        assert_int_equal(loom_schedule_open_backwards(schedule, s), s + 1);
    }
    loom_schedule_free(schedule);
    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_1F1B, STAGES, 1, 8, &schedule));
    for (int s = 0; s < STAGES; s++)
        assert_int_equal(loom_schedule_open_backwards(schedule, s), 1);
    loom_schedule_free(schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_1f1b_stage_keeps_as_many_inputs_as_are_in_flight),
        cmocka_unit_test(a_zb_h1_stage_has_as_many_backwards_open_as_it_keeps_back),
        cmocka_unit_test(any_stage_can_be_rehearsed_dry),
        cmocka_unit_test(one_stage_runs_every_schedule),
        cmocka_unit_test(two_stages_run_every_schedule_also_as_each_others_next_and_previous),
        cmocka_unit_test(three_stages_run_every_schedule),
        cmocka_unit_test(four_stages_run_every_schedule),
        cmocka_unit_test(dp_ranks_have_pipelines_of_their_own),
        cmocka_unit_test(a_stage_without_halves_refuses_a_zero_bubble_schedule),
        cmocka_unit_test(a_schedule_that_does_not_fit_the_mesh_is_refused),
        cmocka_unit_test(a_stage_that_fails_ends_all_stages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
