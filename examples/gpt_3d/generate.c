#include "generate.h"
#include "try.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT_TOKENS = 32, WINDOW_STEP = 64 }; /* windows come in few lengths, so that kernels meet few shapes */
static const double temperature = 0.8;

/* A number in [0, 1) that depends on the seed and the position only, so every rank draws the same (splitmix64). */
static double draw(uint64_t seed, int64_t position)
{
    uint64_t z = seed + (uint64_t)(position + 1) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static int32_t sample(const float *logits, int64_t vocab, double uniform)
{
    double largest = -INFINITY, sum = 0, goal;

    for (int64_t v = 0; v < vocab; v++)
        largest = logits[v] > largest ? logits[v] : largest;
    for (int64_t v = 0; v < vocab; v++)
        sum += exp((logits[v] - largest) / temperature);
    goal = uniform * sum;
    for (int64_t v = 0; v < vocab; v++) {
        goal -= exp((logits[v] - largest) / temperature);
        if (goal < 0)
            return (int32_t)v;
    }
    return (int32_t)(vocab - 1);
}

static int64_t window_length(const gpt_trainer *t, int64_t known)
{
    int64_t length = (known + WINDOW_STEP - 1) / WINDOW_STEP * WINDOW_STEP;

    return length < t->run->layout.seq ? length : t->run->layout.seq;
}

/* The token after the `known` ones: the model sees the last of them that fit its sequence; what lies behind is masked by causality. */
static loom_status next_token(gpt_trainer *t, const int32_t *text, int64_t known, int32_t *window, float *logits, int32_t *token)
{
    int64_t length = window_length(t, known), seen = known < length ? known : length;

    for (int64_t i = 0; i < length; i++)
        window[i] = i < seen ? text[known - seen + i] : 0;
    TRY(gpt_stage_logits(t->stage, window, 1, length, seen - 1, 1, logits));
    *token = sample(logits, t->run->model.vocab, draw((uint64_t)t->run->train.seed, known));
    return LOOM_OK;
}

static void print_text(const gpt_trainer *t, const int32_t *text, int64_t count)
{
    printf("sample   the first %d tokens are the data's\n", PROMPT_TOKENS);
    for (int64_t i = 0; i < count; i++) {
        if (t->run->model.vocab > 256)
            printf("%d ", text[i]);
        else
            putchar(isprint(text[i]) || text[i] == '\n' ? text[i] : '?');
    }
    printf("\n");
    fflush(stdout);
}

static loom_status generate(gpt_trainer *t, int64_t count, int32_t *text, int32_t *window, int32_t *targets, float *logits)
{
    int64_t known = PROMPT_TOKENS < t->run->layout.seq ? PROMPT_TOKENS : t->run->layout.seq;

    TRY(gpt_data_sample(&t->data, 0, window, targets));
    for (int64_t i = 0; i < known; i++)
        text[i] = window[i];
    for (; known < PROMPT_TOKENS + count; known++)
        TRY(next_token(t, text, known, window, logits, &text[known]));
    if (loom_comm_rank(t->world) == 0)
        print_text(t, text, known);
    return LOOM_OK;
}

loom_status gpt_generate(gpt_trainer *t, int64_t count)
{
    int64_t seq = t->run->layout.seq;
    int32_t *text = calloc((size_t)(PROMPT_TOKENS + count), sizeof *text), *window = calloc((size_t)seq, sizeof *window);
    int32_t *targets = calloc((size_t)seq, sizeof *targets);
    float *logits = calloc((size_t)t->run->model.vocab, sizeof *logits);
    loom_status status = text && window && targets && logits ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory to generate text");

    if (status == LOOM_OK)
        status = generate(t, count, text, window, targets, logits);
    free(text);
    free(window);
    free(targets);
    free(logits);
    return status;
}
