/* The attention of whole sequences in plain f64 loops: the judge of what ranks make together. */
#ifndef TEST_CP_WHOLE_H
#define TEST_CP_WHOLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct whole_shape {
    int64_t batch, seq, heads, kv_heads, head_dim;
    int64_t window; /* 0: none */
    bool documents; /* whole_document() says which */
} whole_shape;

/* Inputs and results, [batch, seq, heads or kv_heads, head_dim] each. */
typedef struct whole {
    whole_shape shape;
    double *q, *k, *v, *d_o, *o, *dq, *dk, *dv;
} whole;

whole whole_compute(whole_shape shape);
void whole_free(whole *w);

/* Document of a token: short and long ones, one that spans the middle of the sequence, and the last of one token each. */
int32_t whole_document(int64_t seq, int64_t sequence, int64_t position);

#endif
