/* Text as training samples. Which tokens sample j holds is a function of j alone, never of ranks.
 *
 * Packed documents: with a separator, every token of that id ends a document, and the next begins another. Documents do not see each other, positions
 * start at 0 in each, and the separator's target, which would be the first token of another document, does not count. A document that does not fit
 * its sample goes on in the next one as one of its own. */
#ifndef GPT_3D_DATA_H
#define GPT_3D_DATA_H

#include <rankloom/rankloom.h>

typedef enum gpt_tokenizer { GPT_BYTES, GPT_UINT16 } gpt_tokenizer; /* a token a byte; raw little-endian uint16 */
typedef enum gpt_order { GPT_SEQUENTIAL, GPT_GOLDEN } gpt_order;
enum { GPT_NO_SEPARATOR = -1 };

typedef struct gpt_data_config {
    const char *path; /* kept */
    gpt_tokenizer tokenizer;
    gpt_order order;
    int64_t seq, vocab;
    int32_t separator; /* id of the token that ends a document, or GPT_NO_SEPARATOR: the text is one */
} gpt_data_config;

/* Chunk c is tokens [c*seq, c*seq + seq), targets are shifted by one. There are (tokens - 1) / seq chunks. Sample j is chunk j mod n, or, golden,
 * (j * a) mod n with a the smallest integer at or above 0.618… n that has no factor in common with n: far-apart text in every batch. */
typedef struct gpt_data {
    const uint8_t *bytes; /* the mapped file */
    size_t mapped;
    gpt_data_config config;
    int64_t tokens, chunks, step;
} gpt_data;

/* A file too short for one chunk is LOOM_E_INVALID. */
loom_status gpt_data_open(const gpt_data_config *config, gpt_data *data);
void gpt_data_close(gpt_data *data);

/* tokens[seq] and targets[seq] of sample `index`. A token outside the vocabulary is LOOM_E_INVALID with its place. */
loom_status gpt_data_sample(const gpt_data *data, int64_t index, int32_t *tokens, int32_t *targets);

/* Of `count` tokens of one sequence: the number of each one's document, from 0 on, and its position in it. */
void gpt_data_documents(const int32_t *tokens, int64_t count, int32_t separator, int32_t *documents, int32_t *positions);

#endif
