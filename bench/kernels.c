/* How fast the CPU kernels are: GFLOP/s and GB/s of each operation at the shapes of GPT-2 models of 10, 30 and 124 million parameters,
 * beside what this machine can do at most. One JSON object a line. Each figure is the best of several short runs; the whole takes some
 * seconds.
 *
 *   kernels [--threads N] [--isa portable|avx2|avx512] [--gemm onednn|openblas|own] [--only NAME] [--clock cpu]
 *
 * --clock cpu measures the time of this thread on its core instead of the wall's: with one thread, that is of use on a busy machine. */
#include <rankloom/kernels.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef struct bench {
    loom_kernels *k;
    loom_stream *stream;
    const char *only; /* part of a name, or NULL */
    double peak_gflops, peak_gbs;
    int threads;
    clockid_t clock;
} bench;

static double now_s(const bench *b)
{
    struct timespec t;

    clock_gettime(b->clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(loom_status status)
{
    if (status < 0) {
        fprintf(stderr, "bench: %s\n", loom_last_error());
        exit(loom_exit_code(status));
    }
}

static float *floats(bench *b, int64_t count, float scale)
{
    void *memory;
    uint32_t state = 1;

    must(loom_alloc(loom_stream_device(b->stream), (size_t)count * sizeof(float), LOOM_MEM_OTHER, &memory));
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        ((float *)memory)[i] = scale * ((float)(state >> 8) / 8388608.0f - 1.0f);
    }
    return memory;
}

static void release(bench *b, float *memory)
{
    loom_free(loom_stream_device(b->stream), memory);
}

/* --- what the machine can do --- */

enum { CHAINS = 12, ROUNDS = 4000000 };

/* CHAINS independent chains of multiply-and-add over ROUNDS; the sum keeps the compiler from leaving them out. */
#define CHAINS_OF(name, instructions, vector, set, fma)                                                                                    \
    __attribute__((target(instructions))) static float name(void)                                                                          \
    {                                                                                                                                      \
        vector sum[CHAINS], factor = set(0.999f), addend = set(0.5f);                                                                      \
        float total = 0, lanes[sizeof(vector) / sizeof(float)];                                                                            \
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = set((float)i);                                                  \
        for (int r = 0; r < ROUNDS; r++)                                                                                                   \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = fma(sum[i], factor, addend);                                \
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++)                                                                          \
        {                                                                                                                                  \
            memcpy(lanes, &sum[i], sizeof lanes);                                                                                          \
            total += lanes[0];                                                                                                             \
        }                                                                                                                                  \
        return total;                                                                                                                      \
    }

#if defined(__x86_64__)
CHAINS_OF(chains_512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps)
CHAINS_OF(chains_256, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps)

static float chains(int *width)
{
    *width = __builtin_cpu_supports("avx512f") ? 16 : 8;
    return *width == 16 ? chains_512() : chains_256();
}
#else
static float chains(int *width)
{
    volatile float sum = 1;

    *width = 1;
    for (int r = 0; r < ROUNDS; r++)
        sum = sum * 0.999f + 0.5f;
    return sum;
}
#endif

static double measure_peak_gflops(const bench *b)
{
    double best = 0;

    for (int run = 0; run < 20; run++) { /* the first ones may find two new threads on one core */
        volatile float sink = 0;
        int width = 0;
        double start = now_s(b);
#ifdef _OPENMP
#pragma omp parallel for num_threads(b->threads) schedule(static, 1)
#endif
        for (int t = 0; t < b->threads; t++)
            sink = chains(&width);
        (void)sink;
        best = fmax(best, 2.0 * CHAINS * width * ROUNDS * b->threads / (now_s(b) - start) / 1e9);
    }
    return best;
}

static double measure_peak_gbs(bench *b)
{
    const int64_t count = 1 << 25; /* 128 MiB each: beyond the caches */
    float *x = floats(b, count, 1), *y = floats(b, count, 1);
    double best = 0;

    for (int run = 0; run < 3; run++) {
        double start = now_s(b);
        must(b->k->add(b->k, &(loom_add_args){.y = y, .a = x, .b = y, .count = count}, b->stream));
        best = fmax(best, 3.0 * sizeof(float) * (double)count / (now_s(b) - start) / 1e9);
    }
    release(b, x);
    release(b, y);
    return best;
}

/* --- one operation --- */

#define BENCH(b, label, flop, bytes, operation, ...)                                                                                       \
    do {                                                                                                                                   \
        const __typeof__(__VA_ARGS__) bench_arguments = __VA_ARGS__;                                                                       \
        double best_s = 1e9, begin_s = now_s(b);                                                                                           \
        if ((b)->only && !strstr(#operation, (b)->only))                                                                                   \
            break;                                                                                                                         \
        for (int run = 0; run < 3 || (run < 200 && now_s(b) - begin_s < 0.15); run++) {                                                    \
            double start_s = now_s(b);                                                                                                     \
            must((b)->k->operation((b)->k, &bench_arguments, (b)->stream));                                                                \
            best_s = fmin(best_s, now_s(b) - start_s);                                                                                     \
        }                                                                                                                                  \
        report(b, #operation, label, best_s, (double)(flop), (double)(bytes));                                                             \
    } while (0)

static void report(const bench *b, const char *operation, const char *label, double s, double flop, double bytes)
{
    printf("{\"op\": \"%s\", \"shape\": \"%s\", \"us\": %.1f", operation, label, 1e6 * s);
    if (flop > 0)
        printf(", \"gflops\": %.1f, \"of_peak\": %.2f", flop / s / 1e9, flop / s / 1e9 / b->peak_gflops);
    if (bytes > 0)
        printf(", \"gb_s\": %.1f, \"of_memory\": %.2f", bytes / s / 1e9, bytes / s / 1e9 / b->peak_gbs);
    printf("}\n");
    fflush(stdout);
}

static void bench_linear(bench *b, int64_t tokens, int64_t in, int64_t out)
{
    float *x = floats(b, tokens * in, 1), *w = floats(b, in * out, 1), *y = floats(b, tokens * out, 1), *bias = floats(b, out, 1);
    double flop = 2.0 * (double)tokens * (double)in * (double)out;
    char label[96];

    snprintf(label, sizeof label, "y = x W' + b, %lldx%lldx%lld", (long long)tokens, (long long)out, (long long)in);
    BENCH(b, label, flop, 0, gemm,
          (loom_gemm_args){.c_MN = y, .a_MK = x, .b_KN = w, .bias_N = bias, .m = tokens, .n = out, .k = in, .transpose_b = true});
    snprintf(label, sizeof label, "dx = dy W, %lldx%lldx%lld", (long long)tokens, (long long)in, (long long)out);
    BENCH(b, label, flop, 0, gemm, (loom_gemm_args){.c_MN = x, .a_MK = y, .b_KN = w, .m = tokens, .n = in, .k = out});
    snprintf(label, sizeof label, "dW += dy' x, %lldx%lldx%lld", (long long)out, (long long)in, (long long)tokens);
    BENCH(b, label, flop, 0, gemm,
          (loom_gemm_args){.c_MN = w, .a_MK = y, .b_KN = x, .m = out, .n = in, .k = tokens, .transpose_a = true, .accumulate = true});
    release(b, x);
    release(b, w);
    release(b, y);
    release(b, bias);
}

/* Causal, fused q,k,v rows. flop: what a causal mask leaves, 2 products forward, 5 backward. */
static void bench_attention(bench *b, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t size)
{
    int64_t row = (heads + 2 * kv_heads) * size, tokens = batch * seq;
    float *qkv = floats(b, tokens * row, 1), *d = floats(b, tokens * row, 1), *o = floats(b, tokens * heads * size, 1);
    float *dout = floats(b, tokens * heads * size, 1), *lse = floats(b, tokens * heads, 1);
    double product = (double)batch * (double)heads * (double)seq * (double)(seq + 1) * (double)size;
    const loom_bshk at = {.token = row};
    char label[96];

    snprintf(label, sizeof label, "causal, %lld x %lld tokens, %lld/%lld heads of %lld", (long long)batch, (long long)seq, (long long)heads,
             (long long)kv_heads, (long long)size);
    const loom_attention_args forward = {.o_BSHK = o,
                                         .lse_BHS = lse,
                                         .q_BSHK = qkv,
                                         .k_BSGK = qkv + heads * size,
                                         .v_BSGK = qkv + (heads + kv_heads) * size,
                                         .q_at = at,
                                         .k_at = at,
                                         .v_at = at,
                                         .batch = batch,
                                         .heads = heads,
                                         .kv_heads = kv_heads,
                                         .q_seq = seq,
                                         .k_seq = seq,
                                         .head_dim = size,
                                         .mask.causal = true};
    BENCH(b, label, 2 * product, 0, attention, (loom_attention_args)forward);
    BENCH(b, label, 5 * product, 0, attention_backward,
          (loom_attention_backward_args){.forward = forward,
                                         .do_BSHK = dout,
                                         .dq_BSHK = d,
                                         .dk_BSGK = d + heads * size,
                                         .dv_BSGK = d + (heads + kv_heads) * size,
                                         .dq_at = at,
                                         .dk_at = at,
                                         .dv_at = at});
    release(b, qkv);
    release(b, d);
    release(b, o);
    release(b, dout);
    release(b, lse);
}

static void bench_rows(bench *b, int64_t tokens, int64_t hidden, int64_t ffn)
{
    int64_t n = tokens * hidden, f = tokens * ffn;
    float *x = floats(b, n, 1), *y = floats(b, n, 1), *z = floats(b, n, 1), *weight = floats(b, hidden, 1), *bias = floats(b, hidden, 1);
    float *dweight = floats(b, hidden, 0), *dbias = floats(b, ffn, 0), *mean = floats(b, tokens, 1), *rstd = floats(b, tokens, 1);
    float *h = floats(b, f, 1), *g = floats(b, f, 1), *u = floats(b, f, 1);
    double row = sizeof(float) * (double)n, wide = sizeof(float) * (double)f;
    char label[96];

    snprintf(label, sizeof label, "%lldx%lld", (long long)tokens, (long long)hidden);
    BENCH(b, label, 0, 2 * row, layernorm,
          (loom_layernorm_args){.y_TD = y,
                                .mean_T = mean,
                                .rstd_T = rstd,
                                .x_TD = x,
                                .weight_D = weight,
                                .bias_D = bias,
                                .tokens = tokens,
                                .hidden = hidden,
                                .eps = 1e-5f});
    BENCH(b, label, 0, 4 * row, layernorm_backward,
          (loom_layernorm_backward_args){.dx_TD = z,
                                         .dweight_D = dweight,
                                         .dbias_D = dbias,
                                         .dy_TD = y,
                                         .x_TD = x,
                                         .weight_D = weight,
                                         .mean_T = mean,
                                         .rstd_T = rstd,
                                         .tokens = tokens,
                                         .hidden = hidden,
                                         .accumulate = true});
    BENCH(b, label, 0, 2 * row, rmsnorm,
          (loom_rmsnorm_args){.y_TD = y, .rstd_T = rstd, .x_TD = x, .weight_D = weight, .tokens = tokens, .hidden = hidden, .eps = 1e-5f});
    BENCH(b, label, 0, 3 * row, rmsnorm_backward,
          (loom_rmsnorm_backward_args){.dx_TD = z,
                                       .dweight_D = dweight,
                                       .dy_TD = y,
                                       .x_TD = x,
                                       .weight_D = weight,
                                       .rstd_T = rstd,
                                       .tokens = tokens,
                                       .hidden = hidden});
    BENCH(b, label, 0, 3 * row, add, (loom_add_args){.y = z, .a = x, .b = y, .count = n});
    snprintf(label, sizeof label, "%lldx%lld", (long long)tokens, (long long)ffn);
    BENCH(b, label, 0, 2 * wide, gelu, (loom_gelu_args){.y = g, .x = h, .count = f});
    BENCH(b, label, 0, 3 * wide, gelu_backward, (loom_gelu_backward_args){.dx = g, .dy = u, .x = h, .count = f});
    BENCH(b, label, 0, 3 * wide, swiglu, (loom_swiglu_args){.y_TF = u, .gate_TF = g, .up_TF = h, .tokens = tokens, .width = ffn});
    BENCH(b, label, 0, 5 * wide, swiglu_backward,
          (loom_swiglu_backward_args){.dgate_TF = g, .dup_TF = h, .dy_TF = u, .gate_TF = g, .up_TF = h, .tokens = tokens, .width = ffn});
    BENCH(b, label, 0, wide, bias_backward, (loom_bias_backward_args){.dbias_N = dbias, .dy_TN = h, .tokens = tokens, .width = ffn});
    float *all[] = {x, y, z, weight, bias, dweight, dbias, mean, rstd, h, g, u};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        release(b, all[i]);
}

static void bench_xent(bench *b, int64_t tokens, int64_t vocab)
{
    float *logits = floats(b, tokens * vocab, 3), *loss = floats(b, tokens, 1);
    int32_t *targets = calloc((size_t)tokens, sizeof *targets);
    char label[96];

    snprintf(label, sizeof label, "%lldx%lld, loss and gradient", (long long)tokens, (long long)vocab);
    BENCH(b, label, 0, 2 * sizeof(float) * (double)(tokens * vocab), xent,
          (loom_xent_args){.loss_T = loss, .logits_TV = logits, .targets_T = targets, .tokens = tokens, .cols = vocab});
    free(targets);
    release(b, logits);
    release(b, loss);
}

static void bench_optimizer(bench *b, int64_t count)
{
    float *p = floats(b, count, 1), *m = floats(b, count, 0), *v = floats(b, count, 0), *g = floats(b, count, 1);
    double sum, one = sizeof(float) * (double)count;
    char label[32];

    snprintf(label, sizeof label, "%lld", (long long)count);
    BENCH(b, label, 0, 7 * one, adamw,
          (loom_adamw_args){.p = p,
                            .m = m,
                            .v = v,
                            .gradient = g,
                            .count = count,
                            .lr = 1e-3,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .decay = 0.1,
                            .correction1 = 0.1,
                            .correction2 = 0.05});
    BENCH(b, label, 0, one, sum_squares, (loom_sum_args){.sum = &sum, .x = g, .count = count});
    BENCH(b, label, 0, one, fill, (loom_fill_args){.y = g, .count = count});
    release(b, p);
    release(b, m);
    release(b, v);
    release(b, g);
}

static const char *option(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return NULL;
}

int main(int argc, char **argv)
{
    const char *threads = option(argc, argv, "--threads");
    bench b = {.only = option(argc, argv, "--only")};
    loom_device *device;

    must(loom_device_open(LOOM_CPU, &(loom_device_config){.threads = threads ? atoi(threads) : 0}, &device));
    must(loom_stream_open(device, LOOM_STREAM_INLINE, "bench", &b.stream));
    must(loom_kernels_open(device, &(loom_kernels_config){.isa = option(argc, argv, "--isa"), .gemm_library = option(argc, argv, "--gemm")},
                           &b.k));
    b.threads = loom_device_threads(device);
    b.clock = option(argc, argv, "--clock") ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    b.peak_gflops = measure_peak_gflops(&b);
    b.peak_gbs = measure_peak_gbs(&b);
    printf("{\"isa\": \"%s\", \"gemm\": \"%s\", \"threads\": %d, \"peak_gflops\": %.1f, \"memory_gb_s\": %.1f}\n", b.k->isa,
           b.k->gemm_library, b.threads, b.peak_gflops, b.peak_gbs);

    bench_linear(&b, 1024, 384, 1536);
    bench_linear(&b, 1024, 640, 1920);
    bench_linear(&b, 512, 768, 3072);
    bench_linear(&b, 512, 768, 50257);
    bench_attention(&b, 4, 256, 6, 6, 64);
    bench_attention(&b, 2, 512, 10, 10, 64);
    bench_attention(&b, 2, 512, 10, 2, 64);
    bench_attention(&b, 1, 512, 12, 12, 64);
    bench_attention(&b, 1, 2048, 8, 8, 64);
    bench_rows(&b, 1024, 384, 1536);
    bench_rows(&b, 512, 768, 3072);
    bench_xent(&b, 1024, 256);
    bench_xent(&b, 512, 50257);
    bench_optimizer(&b, 10 << 20);

    loom_kernels_close(b.k);
    loom_stream_close(b.stream);
    loom_device_close(device);
    return 0;
}
