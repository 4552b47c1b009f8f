/* rankloom check, verify and draw. */
#include "cli/rankloom.h"

static void remove_file(const char *name)
{
    unlink(rankloom_file(name, NULL));
}

static void check_tells_a_legal_layout(void **state)
{
    assert_int_equal(rankloom("check %s -n 16", rankloom_file("l.yaml", "{tp: 2, pp: 4, vpp: 2, global_batch: 16}")), 0);
    assert_said("legal: tp2 pp4 vpp2 dp2 interleaved mb1, 16 ranks, 8 micro-batches of 1");
    assert_int_equal(rankloom("check %s -m %s", rankloom_file("l.yaml", "{pp: 8}"), test_data("cases/models/dense-61l.yaml")), 0);
    assert_said("stage 0: layers 0-7 with the embedding\n");
    assert_said("stage 4: layers 32-39\nstage 5: layers 40-46\n");
    assert_said("stage 7: layers 54-60 with the head\n");
    remove_file("l.yaml");
}

static void check_tells_every_breach_at_once(void **state)
{
    static const char run[] = "model: {layers: 4, hidden: 64, heads: 4, kv_heads: 2, ffn: 96, vocab: 128, seq: 32}\n"
                              "data: {path: book.txt, tokenizer: bytes}\n"
                              "train: {steps: 3, global_batch: 10, micro_batch: 3, seq: 33}\n"
                              "layout: {tp: 3, pp: 8, zero: 1, cp: 2}\n";

    assert_int_equal(rankloom("check %s -n 48", rankloom_file("run.yaml", run)), 2);
    assert_said("_run.yaml:4:");
    assert_said("tp=3 does not divide 4 heads; 1, 2 and 4 do");
    assert_said("tp=3 neither divides 2 kv heads nor is a multiple");
    assert_said("pp=8, the model has 4 layers; pp 1 to 4 are legal");
    assert_said("global_batch=10 is not a multiple of micro_batch=3 x dp=1 = 3; 9 and 12 are");
    assert_said("seq=33 is not a multiple of 2 x cp=2 = 4; 32 and 36 are");
    remove_file("run.yaml");
}

static void check_names_the_world_that_does_not_fit(void **state)
{
    assert_int_equal(rankloom("check %s -n 4", rankloom_file("l.yaml", "{tp: 2, pp: 2, dp: 2}")), 2);
    assert_said("= 8 ranks needed, the world has 4; tp2 pp2 dp1, tp2 pp1 dp2 or tp1 pp2 dp2 would fit");
    assert_int_equal(rankloom("check %s", rankloom_file("l.yaml", "{tp: 2, ppp: 2}")), 2);
    assert_said("_l.yaml:1:");
    assert_said("ppp");
    assert_int_equal(rankloom("check /nonexistent/l.yaml"), 1);
    assert_said("/nonexistent/l.yaml");
    remove_file("l.yaml");
}

static void verify_names_the_cycle(void **state)
{
    assert_int_equal(rankloom("verify %s", rankloom_file("s.csv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")), 2);
    assert_said("stage 0 waits in B of micro-batch 0, chunk 0 for stage 1, which waits in F of micro-batch 1, chunk 1 for stage 0");
    assert_int_equal(rankloom("verify %s --buffers 0", rankloom_file("s.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")), 2);
    assert_said("stage 0 waits in send F of micro-batch 1, chunk 0 for stage 1, which waits in send B of micro-batch 0, chunk 1 for stage 0");
    assert_int_equal(rankloom("verify %s --buffers 1", rankloom_file("s.csv", NULL)), 0);
    assert_said("proved: no deadlock with 1 buffer a channel");
    assert_int_equal(rankloom("verify %s", rankloom_file("s.csv", NULL)), 0);
    assert_said("with blocking sends it needs 1 buffer a channel");
    remove_file("s.csv");
}

static void verify_proves_the_schedule_of_a_layout(void **state)
{
    assert_int_equal(rankloom("verify %s", rankloom_file("l.yaml", "{pp: 4, schedule: zb-h1, global_batch: 8}")), 0);
    assert_said("4 stages x 1 chunk, 8 micro-batches, with sends and receives");
    assert_said("stage 0       4 (4)");
    assert_said("stage 3       4 (1)");
    assert_said("lies inside a stage");
    assert_int_equal(rankloom("verify %s --micro-batches 6", rankloom_file("l.yaml", "{pp: 4, vpp: 2}")), 2);
    assert_said("pp=4 has to divide them; 4 and 8 do");
    assert_int_equal(rankloom("verify %s", rankloom_file("l.yaml", NULL)), 2);
    assert_said("--micro-batches M closes it");
    remove_file("l.yaml");
}

static void verify_writes_orders_that_it_reads(void **state)
{
    char csv[256], order[256];

    snprintf(csv, sizeof csv, "%s", rankloom_file("o.csv", NULL));
    snprintf(order, sizeof order, "%s", rankloom_file("o.order", NULL));
    assert_int_equal(rankloom("verify %s --micro-batches 4 -o %s", rankloom_file("l.yaml", "{pp: 2, vpp: 2}"), csv), 0);
    assert_int_equal(rankloom("verify %s -o %s", csv, order), 0);
    assert_said("compute only");
    assert_int_equal(rankloom("verify %s --with-comm -o %s", order, csv), 0);
    assert_int_equal(rankloom("verify %s --buffers 0", csv), 0);
    assert_said("with sends and receives");
    remove_file("o.csv");
    remove_file("o.order");
    remove_file("l.yaml");
}

static void draw_writes_a_picture(void **state)
{
    assert_int_equal(rankloom("draw %s --forward 2", rankloom_file("s.csv", "0F0,0B0\n1F0,1B0\n")), 0);
    assert_said("<svg xmlns=\"http://www.w3.org/2000/svg\"");
    assert_said("<title>F of micro-batch 0, chunk 1, 2 to 4</title>");
    assert_int_equal(rankloom("draw %s --what map -t %s", rankloom_file("l.yaml", "{tp: 2, pp: 4, dp: 2}"), test_data("clusters/h100-2x8.yaml")), 0);
    assert_said("<title>rank 15: tp1 cp0 dp1 pp3");
    assert_said("node 1</text>");
    assert_int_equal(rankloom("draw %s", rankloom_file("s.csv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")), 2);
    assert_said("which waits in");
    remove_file("s.csv");
    remove_file("l.yaml");
}

/* The step that `simulate` predicts for a layout, in one line or a file. */
static double simulated_s(const char *layout, const char *model, const char *cluster)
{
    double seconds = 0;
    const char *said;

    assert_int_equal(rankloom("simulate '%s' --model %s -t %s", layout, model, cluster), 0);
    said = strstr(rankloom_said, "ranks: step ");
    assert_true(said && sscanf(said, "ranks: step %lf s", &seconds) == 1 && seconds > 0);
    return seconds;
}

static void a_layout_in_a_file_is_the_layout_in_one_line(void **state)
{
    static const char shape[] = "model: {layers: 4, hidden: 1024, heads: 8, kv_heads: 8, ffn: 4096, vocab: 8192, seq: 1024}\n"
                                "train: {global_batch: 32, precision: %s}\n";
    static const char *const precisions[] = {"f32", "bf16"};
    char cluster[4096], layout[256], model[256], text[512];
    double step[2];

    snprintf(cluster, sizeof cluster, "%s", test_data("clusters/h100-2x8.yaml"));
    snprintf(layout, sizeof layout, "%s", rankloom_file("l.yaml", "{tp: 2, pp: 2, dp: 4, zero: 1, sequence_parallel: true}"));
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, shape, precisions[i]);
        snprintf(model, sizeof model, "%s", rankloom_file("m.yaml", text));
        step[i] = simulated_s(layout, model, cluster);
        assert_true(step[i] == simulated_s("tp=2,pp=2,dp=4,zero=1,sequence_parallel=true", model, cluster));
    }
    assert_true(step[0] > step[1]); /* wider numbers take longer */
    remove_file("l.yaml");
    remove_file("m.yaml");
}

static void draw_says_where_a_run_has_what_no_forecast_knows(void **state)
{
    static const char run[] = "model: {layers: 4, hidden: 64, heads: 4, kv_heads: 2, ffn: 96, vocab: 128, seq: 32, experts: {count: 4, top_k: 2, ffn: 96}}\n"
                              "data: {path: book.txt, tokenizer: bytes, separator: 10}\n"
                              "train: {steps: 3, global_batch: 8, seq: 32}\n"
                              "moe: {dispatch: allgather, capacity_factor: 1.5}\n"
                              "layout: {tp: 2, pp: 2, dp: 2}\n";

    assert_int_equal(rankloom("draw %s --what memory -t %s", rankloom_file("run.yaml", run), test_data("clusters/h100-2x8.yaml")), 0);
    assert_said("does not know packed documents, experts by all-gather, a capacity of experts; the picture is of formulas");
    remove_file("run.yaml");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_tells_a_legal_layout),
        cmocka_unit_test(check_tells_every_breach_at_once),
        cmocka_unit_test(check_names_the_world_that_does_not_fit),
        cmocka_unit_test(verify_names_the_cycle),
        cmocka_unit_test(verify_proves_the_schedule_of_a_layout),
        cmocka_unit_test(verify_writes_orders_that_it_reads),
        cmocka_unit_test(draw_writes_a_picture),
        cmocka_unit_test(a_layout_in_a_file_is_the_layout_in_one_line),
        cmocka_unit_test(draw_says_where_a_run_has_what_no_forecast_knows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
