#include "whole.h"

#include <math.h>
#include <stdlib.h>

/* A number in [-1, 1] that f32 holds exactly. */
static double element(int seed, int64_t index)
{
    uint32_t z = (uint32_t)(index + 1) * 2654435761u + (uint32_t)seed * 40503u;

    z = (z ^ (z >> 15)) * 2246822519u;
    return (double)((int)((z ^ (z >> 13)) % 2049) - 1024) / 1024;
}

static double *filled(int seed, int64_t count)
{
    double *x = calloc((size_t)count, sizeof *x);

    for (int64_t i = 0; x && seed && i < count; i++)
        x[i] = element(seed, i);
    return x;
}

int32_t whole_document(const whole_shape *s, int64_t sequence, int64_t position)
{
    int64_t begin = 3 + sequence, end = s->seq - s->seq / 4;

    if (s->documents != WHOLE_MIXED)
        return s->documents == WHOLE_SINGLES ? (int32_t)position : 0;
    return position < begin ? 7 : position < end ? 2 : (int32_t)(100 + position);
}

static bool sees(const whole_shape *s, int64_t b, int64_t i, int64_t j)
{
    return j <= i && (s->window == 0 || j > i - s->window) && (!s->documents || whole_document(s, b, i) == whole_document(s, b, j));
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;

    for (int64_t d = 0; d < n; d++)
        sum += x[d] * y[d];
    return sum;
}

/* Softmax of the scores of row i of head h, into p [seq]. */
static void shares(const whole *w, int64_t b, int64_t h, int64_t i, double *p)
{
    const whole_shape *s = &w->shape;
    int64_t K = s->head_dim, g = h / (s->heads / s->kv_heads);
    double sum = 0;

    for (int64_t j = 0; j < s->seq; j++) {
        const double *q = w->q + ((b * s->seq + i) * s->heads + h) * K, *k = w->k + ((b * s->seq + j) * s->kv_heads + g) * K;

        p[j] = sees(s, b, i, j) ? exp(dot(q, k, K) / sqrt((double)K)) : 0;
        sum += p[j];
    }
    for (int64_t j = 0; j < s->seq; j++)
        p[j] /= sum;
}

static void row(whole *w, int64_t b, int64_t h, int64_t i, double *p)
{
    const whole_shape *s = &w->shape;
    int64_t K = s->head_dim, at = ((b * s->seq + i) * s->heads + h) * K, g = h / (s->heads / s->kv_heads);

    shares(w, b, h, i, p);
    for (int64_t j = 0; j < s->seq; j++)
        for (int64_t d = 0; d < K; d++)
            w->o[at + d] += p[j] * w->v[((b * s->seq + j) * s->kv_heads + g) * K + d];
    double delta = dot(w->o + at, w->d_o + at, K);
    for (int64_t j = 0; j < s->seq; j++) {
        int64_t key = ((b * s->seq + j) * s->kv_heads + g) * K;
        double ds = p[j] * (dot(w->d_o + at, w->v + key, K) - delta) / sqrt((double)K);

        for (int64_t d = 0; d < K; d++) {
            w->dv[key + d] += p[j] * w->d_o[at + d];
            w->dk[key + d] += ds * w->q[at + d];
            w->dq[at + d] += ds * w->k[key + d];
        }
    }
}

whole whole_compute(whole_shape s)
{
    int64_t q = s.batch * s.seq * s.heads * s.head_dim, kv = s.batch * s.seq * s.kv_heads * s.head_dim;
    whole w = {s, filled(1, q), filled(2, kv), filled(3, kv), filled(4, q), filled(0, q), filled(0, q), filled(0, kv), filled(0, kv)};
    double *p = calloc((size_t)s.seq, sizeof *p);

    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t i = 0; i < s.seq; i++)
                row(&w, b, h, i, p);
    free(p);
    return w;
}

void whole_free(whole *w)
{
    double *const all[] = {w->q, w->k, w->v, w->d_o, w->o, w->dq, w->dk, w->dv};

    for (int i = 0; i < 8; i++)
        free(all[i]);
}
