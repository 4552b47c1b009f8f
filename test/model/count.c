/* Parameter counts and flop against published models and worked numbers. */
#include "load.h"

#include <math.h>

/* Counts to the unit of models whose weights are public. */
static void counts_of_published_weights_are_exact(void **state)
{
    static const struct {
        const char *name, *config;
        int64_t parameters;
    } published[] = {
        {"GPT-2 124M", "{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_embd\": 768, \"n_head\": 12, \"n_positions\": 1024, \"vocab_size\": 50257}", 124439808},
        {"GPT-2 1.5B", "{\"model_type\": \"gpt2\", \"n_layer\": 48, \"n_embd\": 1600, \"n_head\": 25, \"n_positions\": 1024, \"vocab_size\": 50257}", 1557611200},
        {"Llama-2 7B", "{\"model_type\": \"llama\", \"num_hidden_layers\": 32, \"hidden_size\": 4096, \"num_attention_heads\": 32, \"intermediate_size\": 11008, \"vocab_size\": 32000}",
         6738415616},
        {"Llama-3 8B",
         "{\"model_type\": \"llama\", \"num_hidden_layers\": 32, \"hidden_size\": 4096, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"intermediate_size\": 14336, \"vocab_size\": 128256}",
         8030261248},
        {"Llama-3 70B",
         "{\"model_type\": \"llama\", \"num_hidden_layers\": 80, \"hidden_size\": 8192, \"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"intermediate_size\": 28672, \"vocab_size\": 128256}",
         70553706496},
        {"Mixtral 8x7B",
         "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 32, \"hidden_size\": 4096, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"intermediate_size\": 14336, \"vocab_size\": 32000, "
         "\"num_local_experts\": 8, \"num_experts_per_tok\": 2}",
         46702792704},
        {"Qwen2.5 7B",
         "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 28, \"hidden_size\": 3584, \"num_attention_heads\": 28, \"num_key_value_heads\": 4, \"intermediate_size\": 18944, \"vocab_size\": 152064}",
         7615616512},
        {"Qwen3 8B",
         "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 36, \"hidden_size\": 4096, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128, \"intermediate_size\": 12288, "
         "\"vocab_size\": 151936}",
         8190735360},
        {"Gemma-2 9B",
         "{\"model_type\": \"gemma2\", \"num_hidden_layers\": 42, \"hidden_size\": 3584, \"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 256, \"intermediate_size\": 14336, "
         "\"vocab_size\": 256000, \"sliding_window\": 4096}",
         9241705984},
        {"Qwen1.5-MoE-A2.7B",
         "{\"model_type\": \"qwen2_moe\", \"num_hidden_layers\": 24, \"hidden_size\": 2048, \"num_attention_heads\": 16, \"num_key_value_heads\": 16, \"intermediate_size\": 5632, \"vocab_size\": 151936, "
         "\"num_experts\": 60, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 1408, \"shared_expert_intermediate_size\": 5632}",
         14315784192},
        {"gpt-oss 20B",
         "{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": 24, \"hidden_size\": 2880, \"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 64, \"intermediate_size\": 2880, "
         "\"vocab_size\": 201088, \"num_local_experts\": 32, \"num_experts_per_tok\": 4, \"sliding_window\": 128}",
         20914757184},
        {"DeepSeek-V3 without its multi-token prediction",
         "{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 61, \"hidden_size\": 7168, \"num_attention_heads\": 128, \"intermediate_size\": 18432, \"vocab_size\": 129280, \"n_routed_experts\": 256, "
         "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, \"n_shared_experts\": 1, \"first_k_dense_replace\": 3, \"n_group\": 8, \"topk_group\": 4, \"q_lora_rank\": 1536, "
         "\"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128}",
         671026419200},
    };
    loom_model m;

    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        assert_ok(model_of("config.json", published[i].config, &m));
        if (parameters_of(&m) != published[i].parameters)
            fail_msg("%s: %lld parameters, %lld expected", published[i].name, (long long)parameters_of(&m), (long long)published[i].parameters);
    }
}

static void counts_of_the_cases_are_exact(void **state)
{
    loom_model m;

    (void)state;
    assert_ok(loom_model_load(test_data("cases/models/dense-8b.yaml"), &m, NULL));
    assert_true(parameters_of(&m) == 8030261248);
    /* by the conventions of the cases: per layer attention 2h·heads·d + 2h·kv·d, experts count·3·h·f + router h·count, two norms */
    assert_ok(loom_model_load(test_data("cases/models/moe-128e.yaml"), &m, NULL));
    int64_t layer = 2 * 2048 * 32 * 128 + 2 * 2048 * 4 * 128 + 128 * 3 * 2048 * 768 + 2048 * 128 + 2 * 2048;
    assert_true(parameters_of(&m) == 48 * layer + 2048 + 2 * (int64_t)151936 * 2048);
}

/* The fixtures hold every tensor; their README gives the counts. */
static void counts_of_the_fixtures_are_those_of_their_files(void **state)
{
    static const struct {
        const char *path;
        int64_t parameters;
    } fixtures[] = {{"fixtures/gpt2_tiny/config.json", 144256}, {"fixtures/llama_tiny/config.json", 131648}, {"fixtures/mixtral_tiny/config.json", 64160},
                    {"fixtures/deepseek_tiny/config.json", 51952}};
    loom_model m;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        assert_ok(loom_model_load(test_data(fixtures[i].path), &m, NULL));
        assert_int_equal(parameters_of(&m), fixtures[i].parameters);
    }
}

/* --- the table of published models ---------------------------------------------------------------------------------------- */

enum { COLUMNS = 26 };

/* Splits a line of CSV in place; a quoted field may hold commas. */
static int split(char *line, char **field)
{
    int n = 0;

    for (char *at = line; at && n < COLUMNS;) {
        bool quoted = *at == '"';
        field[n++] = at + quoted;
        char *end = quoted ? strchr(at + 1, '"') : strpbrk(at, ",\n");
        if (!end)
            break;
        bool more = quoted ? end[1] == ',' : *end == ',';
        *end = '\0';
        at = more ? end + 1 + quoted : NULL;
    }
    return n;
}

static int64_t whole(const char *text)
{
    return *text ? atoll(text) : 0;
}

/* A row as a model. The table counts plain MLPs with LayerNorm, biases and (GPT-2 and GPT-3 only) positions, gated ones without norms. */
static loom_model model_of_row(char **f)
{
    bool plain = whole(f[8]) == 2;
    loom_model m = {.layers = whole(f[2]), .hidden = whole(f[3]), .heads = whole(f[4]), .kv_heads = whole(f[5]), .head_dim = whole(f[6]), .ffn = whole(f[7]),
                    .vocab = whole(f[9]), .tied_embeddings = strcmp(f[10], "no") != 0, .seq = whole(f[11])};

    m.mlp = plain ? LOOM_GELU_TANH : LOOM_SWIGLU;
    m.norm = plain ? LOOM_LAYERNORM : LOOM_RMSNORM;
    m.attention_bias = m.output_bias = m.mlp_bias = plain;
    m.positions = !strncmp(f[0], "GPT-2", 5) || !strncmp(f[0], "GPT-3", 5) ? LOOM_LEARNED : LOOM_ROPE;
    m.moe = (loom_moe){.experts = whole(f[12]), .top_k = whole(f[13]), .ffn = whole(f[14]), .shared = whole(f[15]), .shared_ffn = whole(f[14]), .every = 1};
    if (m.moe.experts && whole(f[16]) * 2 == m.layers)
        m.moe.every = 2; /* dense layers alternate */
    else if (m.moe.experts)
        m.moe.dense_layers = whole(f[16]);
    m.mla = (loom_mla){.q_rank = whole(f[17]), .kv_rank = whole(f[18]), .nope_dim = whole(f[19]), .rope_dim = whole(f[20]), .value_dim = whole(f[21])};
    return m;
}

static void counts_agree_with_the_table_of_published_models(void **state)
{
    FILE *file = fopen(test_data("reference/models.csv"), "r");
    char line[1024], *f[COLUMNS];
    int rows = 0;

    (void)state;
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file)); /* heading */
    while (fgets(line, sizeof line, file)) {
        loom_param_counts c;
        assert_true(split(f[0] = line, f) >= 25);
        loom_model m = model_of_row(f);
        loom_model_count(&m, &c);
        double expected = atof(f[24]) * 1e9, got = (double)c.total, slack = 0.5e6; /* three decimals of a billion */
        if (m.norm == LOOM_RMSNORM)
            got -= (double)(m.layers * c.norms_per_layer + c.final_norm);
        else /* norms and biases of a layer are taken as 13 h there, whatever kv_heads and ffn */
            slack += fabs((double)(m.layers * (c.norms_per_layer + (m.heads + 2 * m.kv_heads) * m.head_dim + m.hidden + m.ffn + m.hidden - 13 * m.hidden)));
        if (!(fabs(got - expected) <= slack + 1))
            fail_msg("%s: %.6f billion, the table has %s", f[0], got / 1e9, f[24]);
        rows++;
    }
    fclose(file);
    assert_true(rows > 60);
}

static void active_parameters_are_those_of_the_chosen_experts(void **state)
{
    loom_model m = {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336, .vocab = 32000,
                    .moe = {.experts = 8, .top_k = 2, .ffn = 14336, .every = 1}};
    loom_param_counts c;

    (void)state;
    loom_model_count(&m, &c); /* Mixtral 8x7B: 46.7 billion, 12.9 active */
    assert_true(c.total - c.active == 32 * 6 * 3 * (int64_t)4096 * 14336);
    assert_true(llround((double)c.active / 1e8) == 129);
}

static loom_model gpt3(void)
{
    return (loom_model){.layers = 96, .hidden = 12288, .heads = 96, .kv_heads = 96, .head_dim = 128, .ffn = 4 * 12288, .vocab = 51200, .seq = 2048,
                        .mlp = LOOM_GELU_TANH, .tied_embeddings = true};
}

/* Narayanan 2021: 72 B s L h^2 (1 + s/6h + V/12Lh); for GPT-3 at batch 1536 it is 3.386e18. */
static void flop_of_a_gpt3_step(void **state)
{
    loom_model m = gpt3();
    double closed = 72.0 * 1536 * 2048 * 96 * 12288 * 12288 * (1 + 2048 / (6.0 * 12288) + 51200 / (12.0 * 96 * 12288));
    double flop = loom_model_flop(&m, 1536, 2048, false);

    (void)state;
    assert_true(fabs(flop / closed - 1) < 1e-12);
    assert_true(fabs(flop / 3.386e18 - 1) < 2e-4);
    /* under a causal mask half of the attention square is left */
    double square = 3.0 * 2 * 1536 * 2048 * 96 * 2048 * 96 * 2 * 128;
    assert_true(fabs(loom_model_flop(&m, 1536, 2048, true) - (flop - square / 2)) < 1e-9 * flop);
}

/* Llama-3.1 405B at 131,072 tokens: the two conventions differ by 40 %. */
static void the_two_conventions_differ_at_long_context(void **state)
{
    loom_model m = {.layers = 126, .hidden = 16384, .heads = 128, .kv_heads = 8, .head_dim = 128, .ffn = 53248, .vocab = 128256};

    (void)state;
    double ratio = loom_model_flop(&m, 1, 131072, false) / loom_model_flop(&m, 1, 131072, true);
    assert_true(ratio > 1.35 && ratio < 1.45);
}

/* What a token sees under a window, counted one by one. */
static void a_window_limits_the_attention_square(void **state)
{
    enum { S = 300, W = 70 };
    loom_model m = gpt3(), windowed = gpt3();
    double seen = 0;

    (void)state;
    for (int i = 0; i < S; i++)
        seen += i + 0.5 < W ? i + 0.5 : W; /* the middle of the i-th unit of the triangle */
    windowed.sliding_window = W;
    double without = loom_model_flop(&m, 1, S, true), with = loom_model_flop(&windowed, 1, S, true);
    double expected = 3.0 * 2 * 96 * 96 * 2 * 128 * (S * S / 2.0 - seen);
    assert_true(fabs(without - with - expected) < 1e-3 * expected);
    windowed.full_attention_every = 2;
    assert_true(fabs(without - loom_model_flop(&windowed, 1, S, true) - expected / 2) < 1e-3 * expected);
    windowed.sliding_window = S;
    assert_true(loom_model_flop(&windowed, 1, S, true) == without);
}

static void flop_of_experts_counts_the_chosen_ones(void **state)
{
    loom_model m = {.layers = 4, .hidden = 64, .heads = 4, .kv_heads = 4, .head_dim = 16, .ffn = 256, .vocab = 1000,
                    .moe = {.experts = 8, .top_k = 2, .ffn = 32, .shared = 1, .shared_ffn = 48, .every = 2}};
    double attention = 4 * 64 * 64, core = 2 * 128.0 / 2 * 4 * 16, dense = 3 * 64 * 256, experts = 3 * 64 * (2 * 32 + 48) + 64 * 8;

    (void)state;
    double expected = 6.0 * 3 * 128 * (4 * (attention + core) + 2 * dense + 2 * experts + 64 * 1000);
    assert_true(fabs(loom_model_flop(&m, 3, 128, true) / expected - 1) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_published_weights_are_exact),
        cmocka_unit_test(counts_of_the_cases_are_exact),
        cmocka_unit_test(counts_of_the_fixtures_are_those_of_their_files),
        cmocka_unit_test(counts_agree_with_the_table_of_published_models),
        cmocka_unit_test(active_parameters_are_those_of_the_chosen_experts),
        cmocka_unit_test(flop_of_a_gpt3_step),
        cmocka_unit_test(the_two_conventions_differ_at_long_context),
        cmocka_unit_test(a_window_limits_the_attention_square),
        cmocka_unit_test(flop_of_experts_counts_the_chosen_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
