/* The attention of whole sequences in plain f64 loops: the judge of what ranks make together. */
#ifndef TEST_CP_WHOLE_H
#define TEST_CP_WHOLE_H

#include <stdbool.h>
#include <stdint.h>

/* WHOLE_MIXED: short and long documents, one that spans the middle of the sequence, and the last of one token each. WHOLE_ONE: one that spans all.
 * WHOLE_SINGLES: all of one token each. */
typedef struct whole_shape {
    int64_t batch, seq, heads, kv_heads, head_dim;
    int64_t window; /* 0: none */
    enum whole_documents { WHOLE_NONE, WHOLE_MIXED, WHOLE_ONE, WHOLE_SINGLES } documents;
} whole_shape;

/* Inputs and results, [batch, seq, heads or kv_heads, head_dim] each. */
typedef struct whole {
    whole_shape shape;
    double *q, *k, *v, *d_o, *o, *dq, *dk, *dv;
} whole;

whole whole_compute(whole_shape shape);
void whole_free(whole *w);

/* Document of a token. */
int32_t whole_document(const whole_shape *shape, int64_t sequence, int64_t position);

#endif
