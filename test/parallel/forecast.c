/* What a forecast says of a rank is what the rank then does, to the byte: high-water marks of every row of the ledger, and bytes of every call on every
 * group in a step. First on dry ranks, in every legal layout of 1 to 8 ranks; then on ranks that really train, in a sample that holds every pair of
 * features. Experts: a dry rank has a balanced load; a real one is compared with what a forecast says of the rows that its router chose. */
#include "check.h"
#include "enumerate.h"
#include "harness/on_ranks.h"
#include "trainer.h"
#include "truth.h"

static const char *const fixtures[] = {"gpt2_tiny", "llama_tiny", "mixtral_tiny", "deepseek_tiny"};
enum { MODELS = sizeof fixtures / sizeof *fixtures, BATCH = 16 };

static int trained = 24, every = 1; /* layouts of a model that train; of the dry ones each so-manieth */

/* What the ranks of one check read: set before they are forked. */
static gpt_run *run;
static const loom_layout *batch;
static int batch_count;

static void make_run(const loom_model *model)
{
    run = calloc(1, sizeof *run);
    assert_non_null(run);
    run->model = *model;
    snprintf(run->data.path, sizeof run->data.path, "%s", test_data("fixtures/tokens.bin"));
    run->data.tokenizer = GPT_UINT16;
    run->train.steps = 4;
    run->train.lr = 1e-3;
    run->train.seed = 1;
    run->train.adamw = (loom_adamw_config){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1.0};
}

/* --- traffic ---------------------------------------------------------------------------------------------------------------------- */

/* The mesh's group, or NULL; cp is asked for by itself. */
static loom_comm *group_of(const loom_mesh *mesh, loom_rank_group group)
{
    if (group < LOOM_GROUP_GRADIENT)
        return mesh->axis[group];
    switch (group) {
    case LOOM_GROUP_GRADIENT:
        return mesh->gradient;
    case LOOM_GROUP_TIED:
        return mesh->tied;
    case LOOM_GROUP_KV:
        return mesh->kv;
    case LOOM_GROUP_STAGE:
        return mesh->stage;
    default:
        return mesh->world;
    }
}

static void traffic_of(const gpt_trainer *t, loom_rank_group group, loom_traffic *traffic)
{
    *traffic = (loom_traffic){0};
    if (group == LOOM_GROUP_CP)
        loom_cp_traffic(t->stage->shape.cp, traffic);
    else if (group_of(t->mesh, group))
        loom_comm_traffic(group_of(t->mesh, group), traffic);
}

static void check_traffic(const gpt_trainer *t, const loom_traffic before[LOOM_GROUPS], const loom_rank_forecast *f)
{
    char text[256];
    loom_traffic now;

    for (int group = 0; group < LOOM_GROUPS; group++) {
        traffic_of(t, (loom_rank_group)group, &now);
        for (int kind = 0; kind < LOOM_CALL_KINDS; kind++)
            if (now.bytes[kind] - before[group].bytes[kind] != f->bytes[group][kind])
                fail_msg("%s %s, rank %d: %s over %s sent %llu bytes, the forecast says %llu", run->model.name,
                         loom_layout_describe(&run->layout, text, sizeof text), loom_comm_rank(t->world), loom_call_kind_name((loom_call_kind)kind),
                         loom_rank_group_name((loom_rank_group)group), (unsigned long long)(now.bytes[kind] - before[group].bytes[kind]),
                         (unsigned long long)f->bytes[group][kind]);
    }
}

/* --- memory ----------------------------------------------------------------------------------------------------------------------- */

static void check_memory(const gpt_trainer *t, const loom_rank_forecast *f)
{
    char text[256];
    loom_ledger ledger;

    loom_device_ledger(t->device, &ledger);
    for (int use = 0; use < LOOM_MEM_USES; use++)
        if (use != LOOM_MEM_KERNELS && ledger.peak[use] != f->memory[use])
            fail_msg("%s %s, rank %d: %s has %llu bytes, the forecast says %llu", run->model.name,
                     loom_layout_describe(&run->layout, text, sizeof text), loom_comm_rank(t->world), loom_memory_use_name((loom_memory_use)use),
                     (unsigned long long)ledger.peak[use], (unsigned long long)f->memory[use]);
    assert_int_equal(ledger.peak_total - ledger.peak[LOOM_MEM_KERNELS], f->memory_total);
}

/* --- experts' loads --------------------------------------------------------------------------------------------------------------- */

/* One number is known of each record: the last load that it took. So loads are known where every record takes one a step, and without etp. A stage of
 * zb-h1 holds as many micro-batches as there are stages. */
static bool loads_are_known(void)
{
    const loom_layout *l = &run->layout;
    int64_t micro_batches = loom_layout_micro_batches(l);

    return l->etp == 1 && l->recompute == LOOM_RECOMPUTE_NONE &&
           (l->schedule == LOOM_SCHEDULE_GPIPE || micro_batches == 1 || (l->schedule == LOOM_SCHEDULE_ZB_H1 && micro_batches <= l->pp));
}

/* What a record has more than under a balanced load, and what the stage's buffers need for it. */
static void grow(const loom_expert_shape *e, int64_t choices, int64_t arrived, loom_rank_forecast *f, int64_t most[LOOM_ROWS_BUFFERS])
{
    int64_t balanced[LOOM_ROWS_BUFFERS], count[LOOM_ROWS_BUFFERS];

    loom_rows_balanced(e, balanced);
    loom_rows_counts(e, choices, arrived, arrived, count);
    for (int i = 0; i < LOOM_ROWS_BUFFERS; i++) {
        int64_t size = count[i] > 0 || i <= LOOM_ROWS_OUT ? loom_aligned(loom_rows_grown(balanced[i], count[i])) : 0;

        most[i] = size > most[i] ? size : most[i];
        if (i <= LOOM_ROWS_PLACES)
            f->memory[LOOM_MEM_ACTIVATIONS] += 4 * (uint64_t)size;
    }
}

static void take_record(const gpt_trainer *t, const loom_moe_record *record, const loom_expert_shape *e, loom_expert_rows *rows,
                        loom_rank_forecast *f, int64_t most[LOOM_ROWS_BUFFERS])
{
    const size_t *sent = loom_moe_sent(record), *received = loom_moe_received(record);
    int here = t->mesh->here.at[LOOM_AXIS_EP];
    int64_t arrived = 0, choices = 0;

    for (int r = 0; r < e->ep; r++) {
        arrived += (int64_t)received[r];
        choices += (int64_t)sent[r];
        rows->sent += r == here ? 0 : (int64_t)sent[r];
        rows->received += r == here ? 0 : (int64_t)received[r];
    }
    rows->arrived += arrived;
    grow(e, choices, arrived, f, most);
}

/* The same sums for the balanced load that a forecast without rows assumes: taken off, so that the true ones can take their place. */
static void drop_balanced(const gpt_trainer *t, const loom_expert_shape *e, int records, loom_rank_forecast *f)
{
    int64_t most[LOOM_ROWS_BUFFERS] = {0}, choices = t->stage->shape.sizes.routed_tokens * e->top_k, arrived = 0;
    loom_rank_forecast one = {0};

    for (int64_t i = 0; i < e->here; i++) {
        loom_range share = loom_cut(choices, (int)e->experts, (int)(t->mesh->here.at[LOOM_AXIS_EP] * e->here + i));
        arrived += e->ep * (share.end - share.begin);
    }
    grow(e, choices, arrived, &one, most);
    f->memory[LOOM_MEM_ACTIVATIONS] -= (uint64_t)records * one.memory[LOOM_MEM_ACTIVATIONS];
    f->memory[LOOM_MEM_WORKSPACE] -= 4 * (uint64_t)most[LOOM_ROWS_OF_EXPERT];
    for (int i = LOOM_ROWS_LEAVING; i < LOOM_ROWS_BUFFERS; i++)
        f->memory[LOOM_MEM_COMM] -= 4 * (uint64_t)most[i];
}

/* A forecast for the rows that really travelled. */
static void forecast_loads(const gpt_trainer *t, loom_rank_forecast *f)
{
    int64_t most[LOOM_ROWS_BUFFERS] = {0};
    int records = 0, rank = loom_comm_rank(t->world);
    loom_expert_shape e;
    loom_expert_rows rows = {0};
    loom_rank_forecast loads = {0};

    loom_expert_shape_of(&run->model, &run->layout, &t->mesh->here, &e);
    for (int c = 0; c < t->stage->n_chunks; c++)
        for (int s = 0; s < t->stage->chunks[c].slots; s++)
            for (int64_t l = 0; l < t->stage->chunks[c].layers; l++)
                if (t->stage->chunks[c].slot[s].saved[l].experts) {
                    take_record(t, t->stage->chunks[c].slot[s].saved[l].experts, &e, &rows, &loads, most);
                    records++;
                }
    assert_ok(loom_forecast_rank(&run->model, &run->layout, rank, &rows, f));
    if (records == 0)
        return;
    drop_balanced(t, &e, records, f);
    f->memory[LOOM_MEM_ACTIVATIONS] += loads.memory[LOOM_MEM_ACTIVATIONS];
    f->memory[LOOM_MEM_WORKSPACE] += 4 * (uint64_t)most[LOOM_ROWS_OF_EXPERT];
    for (int i = LOOM_ROWS_LEAVING; i < LOOM_ROWS_BUFFERS; i++)
        f->memory[LOOM_MEM_COMM] += 4 * (uint64_t)most[i];
    f->memory_total = 0;
    for (int use = 0; use < LOOM_MEM_USES; use++)
        f->memory_total += f->memory[use];
}

/* --- one layout -------------------------------------------------------------------------------------------------------------------- */

static void check_rank(loom_comm *world)
{
    bool dry = loom_device_get_kind(loom_comm_device(world)) == LOOM_DRY, experts = run->model.moe.experts > 0;
    loom_traffic before[LOOM_GROUPS];
    loom_rank_forecast f;
    gpt_trainer *t;
    gpt_step step;

    loom_device_reset_peak(loom_comm_device(world));
    assert_ok(gpt_trainer_open(run, world, &t));
    for (int group = 0; group < LOOM_GROUPS; group++)
        traffic_of(t, (loom_rank_group)group, &before[group]);
    assert_ok(gpt_trainer_step(t, 0, &step));
    if (!dry && experts)
        forecast_loads(t, &f);
    else
        assert_ok(loom_forecast_rank(&run->model, &run->layout, loom_comm_rank(world), NULL, &f));
    check_traffic(t, before, &f);
    for (int i = 1; i < 3 && !experts; i++) /* further steps allocate nothing */
        assert_ok(gpt_trainer_step(t, i, &step));
    check_memory(t, &f);
    gpt_trainer_close(t);
}

static void check_batch(loom_comm *world, loom_stream *stream)
{
    (void)stream;
    for (int i = 0; i < batch_count; i++) {
        run->layout = batch[i];
        check_rank(world);
    }
}

static void list_layouts(const loom_model *model, layout_list *list)
{
    static const int worlds[] = {1, 2, 3, 4, 6, 8};

    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        enumerate_layouts(model, worlds[i], TRUTH_BATCH, TRUTH_SEQ, list);
}

/* A layout a rank, another one each time: every kind of place comes up many times. */
static void dry_ranks_do_as_forecast(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        layout_list list = {0};
        truth expected;

        truth_open(fixtures[m], &expected);
        make_run(&expected.model);
        list_layouts(&expected.model, &list);
        print_message("%s: %d layouts, dry\n", expected.model.name, list.count);
        for (int i = 0; i < list.count; i += every) {
            batch = &list.at[i];
            batch_count = 1;
            on_dry_rank(i % loom_layout_world(batch), loom_layout_world(batch), check_batch);
        }
        layout_list_free(&list);
        free(run);
        truth_close(&expected);
    }
}

/* Of layouts with experts those whose loads can be known afterwards. */
static void keep_known(layout_list *list)
{
    int kept = 0;

    for (int i = 0; i < list->count && run->model.moe.experts > 0; i++) {
        run->layout = list->at[i];
        if (loads_are_known())
            list->at[kept++] = list->at[i];
    }
    list->count = run->model.moe.experts > 0 ? kept : list->count;
}

static void check_layouts(loom_layout *layouts, int count)
{
    sort_by_world(layouts, count);
    for (int done = 0; done < count; done += batch_count) {
        batch = &layouts[done];
        batch_count = same_world(batch, count - done < BATCH ? count - done : BATCH);
        on_ranks_with(&(rank_options){.deadline_s = 40 + 20 * batch_count}, loom_layout_world(batch), check_batch);
    }
}

static void training_ranks_do_as_forecast(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        layout_list list = {0};
        truth expected;
        int count;

        truth_open(fixtures[m], &expected);
        make_run(&expected.model);
        list_layouts(&expected.model, &list);
        keep_known(&list);
        cover_pairs(&list, 1, &count);
        count = count < trained ? count : trained;
        print_message("%s: %d of %d layouts, training\n", expected.model.name, count, list.count);
        check_layouts(list.at, count);
        layout_list_free(&list);
        free(run);
        truth_close(&expected);
    }
}

/* test_parallel_forecast [TRAINED EVERY] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dry_ranks_do_as_forecast),
        cmocka_unit_test(training_ranks_do_as_forecast),
    };

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3) {
        trained = atoi(argv[1]);
        every = atoi(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
