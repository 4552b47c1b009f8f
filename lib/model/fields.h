/* The keys of our model YAML as one table: read, written and compared by it. docs/model-files.md explains them. */
#ifndef LOOM_MODEL_FIELDS_H
#define LOOM_MODEL_FIELDS_H

#include <rankloom/model.h>

typedef enum loom_field_kind { LOOM_FIELD_I64, LOOM_FIELD_F64, LOOM_FIELD_BOOL, LOOM_FIELD_CHOICE } loom_field_kind;

typedef struct loom_model_field {
    const char *section; /* "": the model itself, "experts", "mla" */
    const char *key;
    loom_field_kind kind;
    size_t offset;            /* in loom_model */
    double low, high;         /* of a number, both exact in a double */
    const char *const *names; /* of a choice: an enum whose values are their indices */
} loom_model_field;

extern const loom_model_field loom_model_fields[];
extern const int loom_model_field_count;

/* Reads the fields that are there and leaves the others. Bit i of the result: field i was there and right. */
uint64_t loom_model_fields_read(loom_reader *reader, const loom_node *node, loom_model *model);
/* Index of "heads" or "experts.top_k" in the table; it must be there. */
int loom_model_field_index(const char *path);
bool loom_model_field_equal(const loom_model_field *field, const loom_model *a, const loom_model *b);

/* Whether what the numbers say together can be: every breach goes to `note` with the key to look at ("kv_heads") and the rule in words. A
 * number that is 0 was not read, and no rule speaks of it. */
typedef void loom_model_note(void *context, const char *path, const char *text);
void loom_model_rules(const loom_model *model, loom_model_note *note, void *context);

/* Fills what follows from other numbers (kv_heads, head_dim, shared_ffn), marks it as defaulted. Called before the rules. */
void loom_model_derive(loom_model *model);

/* The Hugging Face side: reads a config.json. Our own keys in it stand under "rankloom". */
void loom_model_read_hf(loom_reader *reader, const loom_node *node, loom_model *model);
/* Whether `node` is the top of a Hugging Face config.json. */
bool loom_model_is_hf(const loom_node *node);

#endif
