/* What each CUDA kernel has to move and to compute, and the least time that takes on a GPU of the catalogue: the table of
 * docs/cuda-kernels.md. usage: roofline [--check FILE | --write FILE]
 *
 * Bytes are those our kernels read from and write to device memory when what one block reads twice stays in its caches and nothing else
 * does. Times are bytes / published bandwidth or flops / published peak, whichever is longer: nothing here was measured. */
#include <rankloom/kernels.h>
#include <rankloom/topology.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A layer of Llama 3 8B on one GPU with 8192 tokens, one of Mixtral's experts' layers of the same sizes, and 2^28 parameters to update. */
enum { T = 8192, S = 8192, B = 1, D = 4096, H = 32, G = 8, K = 128, F = 14336, V = 128256, E = 8, TOP = 2, A = T * TOP, FLOAT = 4 };
static const double N = 268435456;

typedef struct estimate {
    double bytes, flops;
    bool products; /* on tensor cores in tf32 or bf16 */
    const char *why;
} estimate;

#define OPERATION(name) static estimate of_##name(void)
#define STREAM(name, reads_and_writes, operations, ...)                                                                                    \
    OPERATION(name)                                                                                                                        \
    {                                                                                                                                      \
        return (estimate){.bytes = (reads_and_writes) * (double)FLOAT, .flops = (operations), .why = __VA_ARGS__};                         \
    }
#define PRODUCT(name, reads_and_writes, operations, ...)                                                                                   \
    OPERATION(name)                                                                                                                        \
    {                                                                                                                                      \
        return (estimate){.bytes = (reads_and_writes) * (double)FLOAT, .flops = (operations), .products = true, .why = __VA_ARGS__};       \
    }

static const double TD = (double)T * D, TF = (double)T * F, TV = (double)T * V, AD = (double)A * D,
                    PAIRS = (double)B * S * S / 2; /* causal */

PRODUCT(gemm, TD + (double)D * F + TF, 2.0 * T * D * F, "x W' of T x D and F x D")
PRODUCT(attention, 2 * TD + 2.0 * T * G * K, 2 * 2 * PAIRS * H * K, "causal: 2 products of S²/2 pairs; q, k, v read, o written")
PRODUCT(attention_backward, 2 * (4 * TD + 4.0 * T * G * K), 7 * 2 * PAIRS * H * K,
        "7 products, since keys and queries are walked apart and no atomics join them; o and do twice for delta")
STREAM(attention_merge, 3 * TD + 3.0 * T * H, 3 * TD, "o, o2 read, o written")
STREAM(rmsnorm, 2 * TD, 4 * TD, "x read once, y written: the row stays in shared memory")
STREAM(rmsnorm_backward, 3 * TD + 2 * TD / 16, 12 * TD, "dy, x read, dx written; a 16th for parts of dweight")
STREAM(layernorm, 2 * TD, 7 * TD, "as rmsnorm")
STREAM(layernorm_backward, 3 * TD + 4 * TD / 16, 14 * TD, "as rmsnorm, and dbias")
STREAM(rope_table, (double)S *K, 40.0 * S * K, "written once; f64")
STREAM(rope, 2 * TD, 3 * TD, "q of one layer; the table stays in the L2 cache")
STREAM(gelu, 2 * TF, 12 * TF, "read, written")
STREAM(gelu_backward, 3 * TF, 20 * TF, "dy, x read, dx written")
STREAM(swiglu, 3 * TF, 6 * TF, "gate, up read, y written")
STREAM(swiglu_backward, 5 * TF, 14 * TF, "dy, gate, up read, both gradients written")
STREAM(bias, 2 * TF, TF, "read, written")
STREAM(bias_backward, TF, TF, "dy read; a column is one chain of additions, as promised")
STREAM(add, 3 * TD, TD, "two read, one written")
STREAM(axpy, 3 * TD, 2 * TD, "two read, one written")
STREAM(scale, 2 * TD, TD, "read, written")
STREAM(fill, TD, 0, "written")
STREAM(copy, 2 * TD, 0, "read, written")
STREAM(cast, 1.5 * N, 0, "f32 to bf16")
STREAM(sum, N, N, "read; f64 sums, to the bit as on CPU")
STREAM(sum_squares, N, 2 * N, "read; f64 sums, to the bit as on CPU")
STREAM(embedding, 2 * TD, 0, "rows gathered, written")
STREAM(embedding_backward, 3 * TD + 9.0 * 4 * T, TD, "dy read, rows read and written; three sorting passes of T ids")
STREAM(position, 3 * TD, TD, "y read and written, rows read")
STREAM(position_backward, 3 * TD, TD, "dy read, rows read and written")
STREAM(xent_local, TV, 4 * TV, "logits read once")
STREAM(xent_rebase, 4.0 * T, 8.0 * T, "one number a token")
STREAM(xent_gradient, 2 * TV, 4 * TV, "logits read, gradient written in their place")
STREAM(xent, 3 * TV, 8 * TV, "logits read twice, gradient written")
STREAM(argmax, TV, TV, "read")
STREAM(clip, 3, 6, "one number")
STREAM(adamw, 7 * N, 14 * N, "gradient, p, m, v read; p, m, v written")
STREAM(router, 2.0 * T * E + 2.0 * A, (double)T *E *(8 + TOP), "logits read, scores written")
STREAM(router_count, (double)T *E + (double)A * E, (double)T *E + (double)A * E,
       "assignments once an expert, from the L2 cache; scores once")
STREAM(router_balance, 3.0 * E, 6.0 * E, "a few numbers")
STREAM(router_backward, 2.0 * T * E + 2.0 * A, 8.0 * T * E, "scores read, gradient written")
STREAM(sort_assignments, 9.0 * A, 4.0 * A, "one pass of eight bits, then order and positions")
STREAM(gather_rows, 2 * AD, AD, "rows gathered, written")
STREAM(combine_rows, AD + TD, 2 * AD, "rows gathered, written")
STREAM(combine_weights_backward, 2 * AD, 2 * AD, "two rows read an assignment")
PRODUCT(grouped_gemm, AD + (double)E * D * F + (double)A * F, 2.0 * A * D * F, "each expert's F x D on its rows")

typedef struct row {
    const char *name;
    estimate (*estimate)(void);
} row;

/* An operation without an estimate does not compile. */
static const row rows[] = {
#define ROW(name, args) {#name, of_##name},
    LOOM_KERNEL_LIST(ROW)
#undef ROW
};

static const char *const gpus[] = {"A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB"};
enum { GPUS = 3 };

/* --- the table --- */

static void put_amount(FILE *out, double amount, const char *what)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    int unit = 0;

    for (; amount >= 1000 && unit < 4; unit++)
        amount /= 1000;
    fprintf(out, amount < 10 && unit > 0 ? "%.1f" : "%.0f", amount);
    fprintf(out, "%s%s%s", *units[unit] || *what ? " " : "", units[unit], what);
}

static void put_seconds(FILE *out, double seconds)
{
    if (seconds < 1e-6)
        fputs("< 1 µs", out);
    else if (seconds < 1e-3)
        fprintf(out, seconds < 1e-5 ? "%.1f µs" : "%.0f µs", seconds * 1e6);
    else
        fprintf(out, "%.2f ms", seconds * 1e3);
}

static double least_seconds(const loom_chip *chip, const estimate *e, loom_math math)
{
    double moved = e->bytes / chip->memory_bandwidth.value;

    return e->products ? fmax(moved, e->flops / chip->peak[math].value) : moved;
}

static void put_times(FILE *out, const loom_chip *chip, const estimate *e)
{
    put_seconds(out, least_seconds(chip, e, LOOM_MATH_TF32));
    if (e->products) {
        fputs(" / ", out);
        put_seconds(out, least_seconds(chip, e, LOOM_MATH_16));
    }
}

static bool write_table(FILE *out)
{
    loom_chip chips[GPUS];

    for (int i = 0; i < GPUS; i++)
        if (loom_chip_find(gpus[i], &chips[i]) < 0) {
            fprintf(stderr, "%s\n", loom_last_error());
            return false;
        }
    fputs("| operation | bytes | flops | flops/byte |", out);
    for (int i = 0; i < GPUS; i++)
        fprintf(out, " %s |", chips[i].name);
    fputs(" what is counted |\n|---|---|---|---|---|---|---|---|\n", out);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const estimate e = rows[r].estimate();

        fprintf(out, "| %s | ", rows[r].name);
        put_amount(out, e.bytes, "B");
        fputs(" | ", out);
        put_amount(out, e.flops, "");
        fprintf(out, " | %.3g |", e.flops / e.bytes);
        for (int i = 0; i < GPUS; i++) {
            fputc(' ', out);
            put_times(out, &chips[i], &e);
            fputs(" |", out);
        }
        fprintf(out, " %s |\n", e.why);
    }
    return true;
}

/* --- the page --- */

static const char begin[] = "<!-- the table of bench/roofline.c -->\n", end[] = "<!-- end of the table -->\n";

static bool read_page(const char *path, char **page)
{
    size_t capacity = 0;
    FILE *in = fopen(path, "r");
    bool read = in && getdelim(page, &capacity, '\0', in) >= 0;

    if (!read)
        fprintf(stderr, "cannot read %s\n", path);
    if (in)
        fclose(in);
    return read;
}

/* The page with the table between its two marks; NULL where it has none. */
static char *with_table(const char *page)
{
    const char *from = strstr(page, begin), *to = from ? strstr(from, end) : NULL;
    char *text = NULL;
    size_t bytes;
    FILE *out = to ? open_memstream(&text, &bytes) : NULL;

    if (!out)
        return NULL;
    fwrite(page, 1, (size_t)(from - page) + strlen(begin), out);
    bool written = write_table(out);
    fputs(to, out);
    fclose(out);
    if (!written) {
        free(text);
        return NULL;
    }
    return text;
}

static int on_page(const char *what, const char *path)
{
    char *page = NULL, *renewed = NULL;
    bool read = read_page(path, &page);
    int result = 1;

    if (read)
        renewed = with_table(page);
    if (read && !renewed)
        fprintf(stderr, "%s has no place for the table\n", path);
    if (renewed && !strcmp(what, "--check")) {
        result = strcmp(page, renewed) != 0;
        if (result)
            fprintf(stderr, "%s is not what bench/roofline.c says; make it anew with --write %s\n", path, path);
    } else if (renewed) {
        FILE *out = fopen(path, "w");
        result = !out || fputs(renewed, out) < 0;
        if (out && fclose(out) != 0)
            result = 1;
    }
    free(page);
    free(renewed);
    return result;
}

int main(int argc, char **argv)
{
    if (argc == 1)
        return !write_table(stdout);
    if (argc == 3 && (!strcmp(argv[1], "--check") || !strcmp(argv[1], "--write")))
        return on_page(argv[1], argv[2]);
    fprintf(stderr, "usage: %s [--check FILE | --write FILE]\n", argv[0]);
    return 2;
}
