/* Text as training samples. Which tokens sample j holds is a function of j alone, never of ranks. */
#ifndef GPT_3D_DATA_H
#define GPT_3D_DATA_H

#include <rankloom/rankloom.h>

typedef enum gpt_tokenizer { GPT_BYTES, GPT_UINT16 } gpt_tokenizer; /* a token a byte; raw little-endian uint16 */
typedef enum gpt_order { GPT_SEQUENTIAL, GPT_GOLDEN } gpt_order;

/* Chunk c is tokens [c*seq, c*seq + seq), targets are shifted by one. There are (tokens - 1) / seq chunks. Sample j is chunk j mod n, or, golden,
 * (j * a) mod n with a the smallest integer at or above 0.618… n that has no factor in common with n: far-apart text in every batch. */
typedef struct gpt_data {
    const uint8_t *bytes; /* the mapped file */
    size_t mapped;
    gpt_tokenizer tokenizer;
    int64_t tokens, seq, chunks, vocab, step;
    const char *path;
} gpt_data;

/* `path` is kept. A file too short for one chunk is LOOM_E_INVALID. */
loom_status gpt_data_open(const char *path, gpt_tokenizer tokenizer, gpt_order order, int64_t seq, int64_t vocab, gpt_data *data);
void gpt_data_close(gpt_data *data);

/* tokens[seq] and targets[seq] of sample `index`. A token outside the vocabulary is LOOM_E_INVALID with its place. */
loom_status gpt_data_sample(const gpt_data *data, int64_t index, int32_t *tokens, int32_t *targets);

#endif
