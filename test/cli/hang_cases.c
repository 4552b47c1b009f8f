/* Every case of a hang, and those of other classes that concern a schedule, by its id: what `rankloom verify` answers, or which test of the
 * engine does where only running ranks can tell. docs/hangs.md is the same as a page; a case without an answer, a page that names another
 * test and a test that is not there fail. */
#include "cli/rankloom.h"

#include <dirent.h>

#include <rankloom/config.h>
#include <rankloom/schedule.h>

/* --- what a case says ------------------------------------------------------------------------------------------------------------ */

static loom_config *file;

static const loom_node *at(const char *path)
{
    const loom_node *node = loom_config_root(file);
    char name[64];

    for (size_t length; *path; path += length + (path[length] == '.')) {
        length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        node = loom_node_get(node, name);
    }
    assert_non_null(node);
    return node;
}

static double value_of(const loom_node *node)
{
    double value = 0;

    assert_true(loom_node_as_f64(node, &value));
    return value;
}

static double member(const loom_node *map, const char *key)
{
    return value_of(loom_node_get(map, key));
}

static double number(const char *path)
{
    return value_of(at(path));
}

static int integer(const char *path)
{
    return (int)number(path);
}

/* The exit status of verify that an outcome stands for. */
static int status_of(const char *path)
{
    return strcmp(loom_node_text(at(path)), "deadlock") == 0 ? 2 : 0;
}

static int verify(const char *layout, const char *options)
{
    return rankloom("verify %s %s", rankloom_file("layout.yaml", layout), options);
}

static int verify_order(const char *csv, const char *options)
{
    return rankloom("verify %s %s", rankloom_file("order.csv", csv), options);
}

/* --- answers of verify ------------------------------------------------------------------------------------------------------------- */

/* Both ranks send, then receive: stage 0 an activation, stage 1 a gradient. */
static const char both_send[] = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";

static void b01_both_send_first(void)
{
    assert_int_equal(verify_order(both_send, "--buffers 0"), status_of("facts.program.rendezvous_semantics"));
    assert_said(
        "stage 0 waits in send F of micro-batch 1, chunk 0 for stage 1, which waits in send B of micro-batch 0, chunk 1 for stage 0");
    assert_int_equal(verify_order(both_send, "--buffers 1"), status_of("facts.program.buffered_semantics"));
    /* the paired exchange of the engine: receives are posted ahead of sends */
    assert_int_equal(
        rankloom("verify %s --with-comm --output /tmp/rankloom_test_%d_paired.csv", rankloom_file("order.csv", NULL), getpid()), 0);
    assert_int_equal(rankloom("verify %s --buffers 0", rankloom_file("paired.csv", NULL)),
                     status_of("facts.grouped_program.rendezvous_semantics"));
}

static void b03_two_stages_whose_neighbours_are_one_rank(void)
{
    char layout[160];

    snprintf(layout, sizeof layout, "{pp: %d, vpp: %d, global_batch: %d}", integer("given.pp"), integer("given.virtual_stages"),
             integer("given.micro_batches"));
    assert_int_equal(verify(layout, "--buffers 0"), 0);
    assert_said("every channel in one order");
    /* activations of chunks 0 and 2 go over one channel: received in another order than sent, they would cross */
    static const char sent[] = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n",
                      crossed[] = "1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n";
    char csv[256];
    snprintf(csv, sizeof csv, "%s%s", sent, crossed);
    assert_int_equal(verify_order(csv, ""), 2);
    assert_said("stage 0: send F of micro-batch 1, chunk 0 stands behind a message that stage 1 receives later");
}

static void b05_a_rank_whose_experts_get_no_token(void)
{
    char layout[160];

    snprintf(layout, sizeof layout, "{dp: %d, ep: %d, global_batch: %d}", integer("given.ep"), integer("given.ep"), integer("given.ep"));
    assert_int_equal(verify(layout, ""), 0);
    assert_said("ep and edp group lies inside a stage, whose ranks run one list: collectives in one order on all of a group");
}

static void b07_a_tail_that_ranks_could_disagree_about(void)
{
    char layout[160];

    snprintf(layout, sizeof layout, "{dp: %d, micro_batch: %d, global_batch: %d}", integer("given.dp"), integer("given.micro_batch"),
             integer("given.samples"));
    assert_int_equal(verify(layout, ""), 2);
    assert_said("global_batch=5 is not a multiple of micro_batch=2 x dp=2 = 4; 4 and 8 are");
    assert_int_equal(verify_order("0F0,0B0\n1F0,1F1,1B0,1B1\n", ""), 2); /* a stage that does one micro-batch less */
    assert_said("is missing");
}

/* Two uses over the same two ranks in opposite order. */
static void b09_opposite_orders(void)
{
    assert_int_equal(verify_order("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", ""), status_of("facts.program.buffered_semantics"));
    assert_said("stage 0 waits in B of micro-batch 0, chunk 0 for stage 1, which waits in F of micro-batch 1, chunk 1 for stage 0");
    assert_int_equal(verify("{tp: 2, cp: 2, dp: 2, pp: 2, global_batch: 4}", ""), 0);
    assert_said("collectives in one order on all of a group");
}

static void b17_groups_that_a_layout_needs(void)
{
    char layout[160];

    snprintf(layout, sizeof layout, "{tp: %d, pp: %d, vpp: %d, global_batch: %d, schedule: gpipe}", integer("given.tp"),
             integer("given.pp"), integer("given.virtual_stages"), integer("given.accumulation"));
    assert_int_equal(verify(layout, "--buffers 0"), 0);
    assert_said("every tp, cp, dp, etp, ep and edp group lies inside a stage");
}

static void c09_rounds_of_an_interleaved_pipeline(void)
{
    const loom_node *requests = at("given.request");

    for (size_t i = 0; i < loom_node_count(requests); i++) {
        char layout[160], fact[64];
        const loom_node *request = loom_node_at(requests, i);
        const double pp = member(request, "pp"), v = member(request, "v"), m = member(request, "micro_batches");
        snprintf(layout, sizeof layout, "{pp: %g, vpp: %g, global_batch: %g}", pp, v, m);
        snprintf(fact, sizeof fact, "facts.rule_pp.%g", m); /* of the two published rules the one that docs/layout.md states */
        assert_int_equal(verify(layout, ""), strcmp(loom_node_text(at(fact)), "true") == 0 ? 0 : 2);
        if (m == 6)
            assert_said("pp=4 has to divide them; 4 and 8 do");
    }
    assert_int_equal(verify("{pp: 6, vpp: 2, global_batch: 3}", ""), 2);
    assert_said("pp=6 has to divide them; 6 do");
}

/* verify's "stage i  n" against the list. */
static void check_in_flight(const char *layout, const char *path)
{
    assert_int_equal(verify(layout, ""), 0);
    for (size_t stage = 0; stage < loom_node_count(at(path)); stage++) {
        char line[64];
        snprintf(line, sizeof line, "  stage %-4zu %4g", stage, value_of(loom_node_at(at(path), stage)));
        assert_said(line);
    }
}

static void c19_activations_in_flight(void)
{
    check_in_flight("{pp: 4, global_batch: 8, schedule: 1f1b}", "facts.one_f_one_b.m8");
    check_in_flight("{pp: 4, global_batch: 2, schedule: 1f1b}", "facts.one_f_one_b.m2");
    check_in_flight("{pp: 4, global_batch: 8, schedule: gpipe}", "facts.gpipe_m8");
}

static void h02_few_micro_batches(void)
{
    static const struct {
        const char *layout, *idle, *enough;
    } cases[] = {{"{pp: 2, global_batch: 1}", "p2m1", NULL},
                 {"{pp: 4, global_batch: 8}", "p4m8", "p4"},
                 {"{pp: 4, vpp: 2, global_batch: 8}", "p4m8v2", NULL},
                 {"{pp: 8, global_batch: 64}", "p8m64", NULL},
                 {"{pp: 8, global_batch: 8}", NULL, "p8"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64], words[128];
        assert_int_equal(verify(cases[i].layout, ""), 0);
        if (cases[i].idle) {
            snprintf(path, sizeof path, "facts.idle.%s", cases[i].idle);
            snprintf(words, sizeof words, "idle during %.2f %% of the time", 100 * number(path));
            assert_said(words);
        }
        if (cases[i].enough) {
            snprintf(path, sizeof path, "facts.m_for_10_percent.%s", cases[i].enough);
            snprintf(words, sizeof words, "; %d micro-batches bring that to 10 %%", integer(path));
            assert_said(words);
        }
    }
}

static double compute_us(void *context, int stage, const loom_action *a)
{
    (void)stage;
    return *(const double *)context * (a->kind == LOOM_BACKWARD ? 2 : a->kind == LOOM_FORWARD ? 1 : 0);
}

static double delay_us(void *context, int from, int to)
{
    (void)from, (void)to;
    return *((const double *)context + 1);
}

/* Receives are posted early and waited for late: of all the messages only those of one micro-batch's way there and back are ever waited
 * for. */
static void h09_messages_that_are_under_way(void)
{
    const int pp = integer("given.pp"), v = integer("given.virtual_stages"), m = integer("given.micro_batches");
    double us[] = {1000 * number("given.compute_ms"), 1000 * number("given.delay_ms")};
    loom_schedule *s;
    loom_timeline free_of_delay, delayed;

    assert_ok(loom_schedule_generate(LOOM_SCHEDULE_INTERLEAVED, pp, v, m, &s));
    assert_ok(loom_schedule_add_comm(s));
    assert_ok(loom_schedule_simulate(s, &(loom_schedule_costs){.context = us, .action_us = compute_us}, &free_of_delay));
    assert_ok(loom_schedule_simulate(s, &(loom_schedule_costs){.context = us, .action_us = compute_us, .latency_us = delay_us}, &delayed));
    assert_true(free_of_delay.busy_us[0] == number("facts.compute_units") * us[0]);
    assert_true(delayed.makespan_us <= free_of_delay.makespan_us + 2 * (pp * v - 1) * us[1] + 1e-6);
    loom_timeline_free(&free_of_delay);
    loom_timeline_free(&delayed);
    loom_schedule_free(s);
}

/* --- the table ------------------------------------------------------------------------------------------------------------------------ */

/* `engine`: the test, "file:function", that shows what running ranks do; NULL where nothing runs. */
static const struct answer {
    const char *id, *folder;
    void (*verify)(void);
    const char *engine;
} answers[] = {
    {"B01", "hangs", b01_both_send_first, "test/comm/test_failures.c:both_sending_first_is_diagnosed"},
    {"B03", "hangs", b03_two_stages_whose_neighbours_are_one_rank, "test/comm/suite_p2p.c:messages_find_their_place_by_tag"},
    {"B05", "hangs", b05_a_rank_whose_experts_get_no_token, "test/ep/ep.c:a_rank_without_tokens_takes_part_in_every_call"},
    {"B07", "hangs", b07_a_tail_that_ranks_could_disagree_about,
     "test/layout/rules.c:a_batch_is_refused_with_the_nearest_two_and_with_micro_batches_that_work"},
    {"B09", "hangs", b09_opposite_orders, "test/comm/test_failures.c:groups_in_opposite_order_are_diagnosed"},
    {"B10", "hangs", NULL, "test/comm/test_failures.c:barrier_names_differ"},
    {"B12", "hangs", NULL, "test/comm/test_failures.c:counts_differ"},
    {"B13", "hangs", NULL, "test/comm/test_failures.c:the_absent_rank_is_named"},
    {"B17", "hangs", b17_groups_that_a_layout_needs, "test/parallel/groups.c:no_group_is_made_inside_a_step"},
    {"C09", "planner", c09_rounds_of_an_interleaved_pipeline, NULL},
    {"C19", "planner", c19_activations_in_flight, NULL},
    {"H02", "perf", h02_few_micro_batches, NULL},
    {"H09", "perf", h09_messages_that_are_under_way, "test/parallel/order.c:the_executor_follows_the_simulation"},
};
enum { ANSWERS = sizeof answers / sizeof *answers };

/* The file of a case; NULL when there is none. Good until the next call. */
static const char *find_case(const char *folder, const char *id)
{
    static char path[4400];
    char name[64];
    DIR *list;

    snprintf(name, sizeof name, "cases/%s", folder);
    snprintf(path, sizeof path, "%s", test_data(name));
    assert_non_null(list = opendir(path));
    for (struct dirent *entry; (entry = readdir(list));)
        if (strncmp(entry->d_name, id, 3) == 0) {
            snprintf(path + strlen(path), sizeof path - strlen(path), "/%s", entry->d_name);
            closedir(list);
            return path;
        }
    closedir(list);
    return NULL;
}

static void verify_answers_the_cases_that_concern_it(void **state)
{
    for (int i = 0; i < ANSWERS; i++) {
        const char *path = find_case(answers[i].folder, answers[i].id);
        if (!path)
            fail_msg("case %s has no file", answers[i].id);
        assert_ok(loom_config_load(path, &file));
        assert_string_equal(loom_node_text(at("id")), answers[i].id);
        print_message("%s %s\n", answers[i].id, loom_node_text(at("title")));
        if (answers[i].verify)
            answers[i].verify();
        loom_config_free(file);
    }
}

static void no_case_of_a_hang_is_without_an_answer(void **state)
{
    DIR *list = opendir(test_data("cases/hangs"));

    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list));) {
        int i = 0;
        while (i < ANSWERS && strncmp(answers[i].id, entry->d_name, 3) != 0)
            i++;
        if (entry->d_name[0] != '.' && i == ANSWERS)
            fail_msg("%s is not in the table", entry->d_name);
    }
    closedir(list);
}

/* A file of the repository; the caller frees it. */
static char *read_file(const char *path)
{
    char full[1024], *text = calloc(1, 1 << 20);
    FILE *in;

    snprintf(full, sizeof full, "%s/%s", getenv("LOOM_SOURCE"), path);
    in = fopen(full, "r");
    if (!text || !in)
        fail_msg("cannot read %s", full);
    text[fread(text, 1, (1 << 20) - 1, in)] = '\0';
    fclose(in);
    return text;
}

static void the_page_names_tests_that_are_there(void **state)
{
    char *page = read_file("docs/hangs.md");

    for (int i = 0; i < ANSWERS; i++) {
        char row[16], path[128], definition[160];
        snprintf(row, sizeof row, "\n| %s |", answers[i].id);
        char *line = strstr(page, row);
        if (!line)
            fail_msg("docs/hangs.md has no row for %s", answers[i].id);
        if (!answers[i].engine)
            continue;
        const char *colon = strchr(answers[i].engine, ':');
        snprintf(path, sizeof path, "%.*s", (int)(colon - answers[i].engine), answers[i].engine);
        char *source = read_file(path), *end = strchr(line + 1, '\n'), *named = strstr(line, colon + 1), *placed = strstr(line, path);
        snprintf(definition, sizeof definition, "static void %s(", colon + 1);
        if (!strstr(source, definition))
            fail_msg("%s: there is no test %s", path, colon + 1);
        if (!named || named > end || !placed || placed > end)
            fail_msg("docs/hangs.md does not name %s for %s", answers[i].engine, answers[i].id);
        free(source);
    }
    free(page);
}

static int remove_files(void **state)
{
    unlink(rankloom_file("layout.yaml", NULL));
    unlink(rankloom_file("order.csv", NULL));
    unlink(rankloom_file("paired.csv", NULL));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verify_answers_the_cases_that_concern_it),
        cmocka_unit_test(no_case_of_a_hang_is_without_an_answer),
        cmocka_unit_test(the_page_names_tests_that_are_there),
    };
    return cmocka_run_group_tests(tests, NULL, remove_files);
}
