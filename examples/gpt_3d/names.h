/* How tensors are called on disk, per family. */
#ifndef GPT_3D_NAMES_H
#define GPT_3D_NAMES_H

#include <rankloom/rankloom.h>

typedef enum gpt_part {
    GPT_EMBEDDING,
    GPT_POSITIONS,
    GPT_FINAL_NORM,
    GPT_HEAD,
    GPT_NORM1, /* from here on: of a layer */
    GPT_QKV,
    GPT_Q,
    GPT_K,
    GPT_V,
    GPT_PROJECTION,
    GPT_NORM2,
    GPT_WIDE,
    GPT_GATE,
    GPT_UP,
    GPT_NARROW,
    GPT_ROUTER,
    GPT_ROUTER_BIAS, /* the whole name */
    GPT_EXPERTS,     /* before the expert's number */
    GPT_SHARED_GATE,
    GPT_SHARED_UP,
    GPT_SHARED_NARROW,
    GPT_PARTS,
} gpt_part;

enum { GPT_NAME_BYTES = 96 };

/* What an expert's matrices are called behind its number. */
typedef struct gpt_expert_names {
    const char *gate, *up, *down;
} gpt_expert_names;
gpt_expert_names gpt_names_of_expert(const loom_model *model);

/* Without the trailing ".weight" or ".bias". Returns `name`. */
char *gpt_name(const loom_model *model, gpt_part part, int64_t layer, char name[GPT_NAME_BYTES]);

#endif
