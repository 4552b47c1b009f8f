/* Megatron-LM command lines, with or without a torchrun in front, and Megatron-Bridge YAML. */
#include "planner/emit/megatron.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/number.h"

static const loom_megatron megatron_defaults = {.tp = 1, .pp = 1, .cp = 1, .ep = 1, .micro_batch = 1, .first_layers = -1, .last_layers = -1};

typedef enum flag_kind { FLAG_INT, FLAG_I64, FLAG_TEXT, FLAG_SET } flag_kind;

typedef struct flag {
    const char *name; /* Megatron's, without the dashes */
    const char *section, *key; /* Bridge's; NULL: has none of its own */
    flag_kind kind;
    size_t offset;
} flag;

#define AT(field) offsetof(loom_megatron, field)
static const flag flags[] = {
    {"num-layers", "model", "num_layers", FLAG_I64, AT(layers)},
    {"tensor-model-parallel-size", "model", "tensor_model_parallel_size", FLAG_INT, AT(tp)},
    {"sequence-parallel", "model", "sequence_parallel", FLAG_SET, AT(sequence_parallel)},
    {"pipeline-model-parallel-size", "model", "pipeline_model_parallel_size", FLAG_INT, AT(pp)},
    {"num-virtual-stages-per-pipeline-rank", "model", "virtual_pipeline_model_parallel_size", FLAG_INT, AT(vpp)},
    {"num-layers-per-virtual-pipeline-stage", NULL, NULL, FLAG_INT, AT(layers_per_virtual)},
    {"pipeline-model-parallel-layout", "model", "pipeline_model_parallel_layout", FLAG_TEXT, AT(stages)},
    {"decoder-first-pipeline-num-layers", "model", "num_layers_in_first_pipeline_stage", FLAG_I64, AT(first_layers)},
    {"decoder-last-pipeline-num-layers", "model", "num_layers_in_last_pipeline_stage", FLAG_I64, AT(last_layers)},
    {"account-for-embedding-in-pipeline-split", "model", "account_for_embedding_in_pipeline_split", FLAG_SET, AT(count_embedding)},
    {"account-for-loss-in-pipeline-split", "model", "account_for_loss_in_pipeline_split", FLAG_SET, AT(count_loss)},
    {"context-parallel-size", "model", "context_parallel_size", FLAG_INT, AT(cp)},
    {"cp-comm-type", "model", "cp_comm_type", FLAG_TEXT, AT(cp_comm)},
    {"expert-model-parallel-size", "model", "expert_model_parallel_size", FLAG_INT, AT(ep)},
    {"expert-tensor-parallel-size", "model", "expert_tensor_parallel_size", FLAG_INT, AT(etp)},
    {"recompute-granularity", "model", "recompute_granularity", FLAG_TEXT, AT(recompute)},
    {"recompute-method", "model", "recompute_method", FLAG_TEXT, AT(method)},
    {"seq-length", "model", "seq_length", FLAG_I64, AT(seq)},
    {"micro-batch-size", "train", "micro_batch_size", FLAG_I64, AT(micro_batch)},
    {"global-batch-size", "train", "global_batch_size", FLAG_I64, AT(global_batch)},
    {"use-distributed-optimizer", "ddp", "use_distributed_optimizer", FLAG_SET, AT(distributed_optimizer)},
    {"data-parallel-sharding-strategy", "ddp", "data_parallel_sharding_strategy", FLAG_TEXT, AT(sharding)},
    {"use-megatron-fsdp", "dist", "use_megatron_fsdp", FLAG_SET, AT(fsdp)},
    {"use-tp-pp-dp-mapping", "dist", "use_tp_pp_dp_mapping", FLAG_SET, AT(pp_before_dp)},
};
enum { FLAGS = sizeof flags / sizeof *flags };

/* --- a command line ------------------------------------------------------------------------------------------------------- */

/* Words of a shell line: quotes and backslashes are honoured, comments end with their line. Cuts `text` in place. */
static int split_words(char *text, char **words, int most)
{
    int count = 0;
    char *out, *in = text;

    while (*in && count < most) {
        in += strspn(in, " \t\r\n");
        if (*in == '\\' && (in[1] == '\n' || in[1] == '\r')) {
            in += 2;
            continue;
        }
        if (*in == '#') {
            in += strcspn(in, "\n");
            continue;
        }
        if (!*in)
            break;
        words[count++] = out = in;
        char quote = 0;
        for (; *in && (quote || !strchr(" \t\r\n", *in)); in++) {
            if (quote ? *in == quote : *in == '"' || *in == '\'')
                quote = quote ? 0 : *in;
            else if (*in == '\\' && in[1] && quote != '\'')
                *out++ = *++in;
            else
                *out++ = *in;
        }
        in += *in != '\0';
        *out = '\0';
    }
    return count;
}

typedef struct command {
    char **words;
    int count, next;
    loom_megatron *m;
    int nodes, per_node;
    loom_text problems;
} command;

static void problem(command *c, const char *name, const char *value, const char *what)
{
    loom_text_add(&c->problems, "%s--%s %s: %s", c->problems.length ? "\n" : "", name, value ? value : "", what);
}

static void store_number(command *c, const char *name, const char *value, int64_t low, int64_t high, int64_t *number)
{
    int64_t read;

    if (loom_number_i64(value, &read) != LOOM_NUMBER_OK || read < low || read > high)
        problem(c, name, value, strchr(value, '$') ? "is a variable of the shell; import what the command expands to" : "is no such number");
    else
        *number = read;
}

static void store(command *c, const flag *f, const char *value)
{
    char *field = (char *)c->m + f->offset;
    int64_t number = 0;

    switch (f->kind) {
    case FLAG_SET:
        *(bool *)field = true;
        break;
    case FLAG_TEXT:
        *(const char **)field = value;
        break;
    case FLAG_INT:
        number = *(int *)field;
        store_number(c, f->name, value, 1, 1 << 24, &number);
        *(int *)field = (int)number;
        break;
    case FLAG_I64:
        store_number(c, f->name, value, 0, INT32_MAX, (int64_t *)field);
        break;
    }
}

/* "--name value" and "--name=value"; argparse also takes '_' for '-' in torchrun. */
static const char *value_of(command *c, const char *word, size_t length)
{
    if (word[length] == '=')
        return word + length + 1;
    return c->next < c->count ? c->words[c->next++] : NULL;
}

static bool is_named(const char *word, size_t length, const char *name)
{
    if (strlen(name) != length)
        return false;
    for (size_t i = 0; i < length; i++)
        if (word[i] != name[i] && !(word[i] == '_' && name[i] == '-'))
            return false;
    return true;
}

static void take_launcher(command *c, const char *name, const char *value, int *number)
{
    int64_t read = *number;
    const char *colon = value ? strrchr(value, ':') : NULL; /* torchrun's elastic MIN:MAX: the most */

    if (!value)
        problem(c, name, NULL, "has no value");
    else
        store_number(c, name, colon ? colon + 1 : value, 1, 1 << 24, &read);
    *number = (int)read;
}

static void take_word(command *c, const char *word)
{
    size_t length = strcspn(word, "=");

    if (is_named(word, length, "virtual-pipeline-model-parallel-size"))
        problem(c, word, NULL, "is no flag of Megatron's; num-virtual-stages-per-pipeline-rank is");
    else if (is_named(word, length, "nnodes"))
        take_launcher(c, "nnodes", value_of(c, word, length), &c->nodes);
    else if (is_named(word, length, "nproc-per-node"))
        take_launcher(c, "nproc-per-node", value_of(c, word, length), &c->per_node);
    for (const flag *f = flags; f < flags + FLAGS; f++) {
        if (!is_named(word, length, f->name))
            continue;
        const char *value = f->kind == FLAG_SET ? "" : value_of(c, word, length);
        if (value)
            store(c, f, value);
        else
            problem(c, f->name, NULL, "has no value");
    }
}

static loom_status read_command(loom_importing *in, command *c)
{
    while (c->next < c->count) {
        const char *word = c->words[c->next++];
        if (word[0] == '-' && word[1] == '-')
            take_word(c, word + 2);
        else if (strcmp(word, "-N") == 0 && c->next < c->count)
            take_launcher(c, "N", c->words[c->next++], &c->nodes);
    }
    loom_status status = c->problems.length ? loom_fail(LOOM_E_INVALID, "%s:\n%s", in->source, loom_text_so_far(&c->problems)) : LOOM_OK;
    loom_text_drop(&c->problems);
    if (status == LOOM_OK && in->world == 0 && c->per_node > 0)
        in->world = c->per_node * (c->nodes > 0 ? c->nodes : 1);
    return status < 0 ? status : loom_megatron_to_layout(in, c->m);
}

loom_status loom_import_megatron(loom_importing *in)
{
    loom_megatron m = megatron_defaults;
    int most = (int)(in->bytes / 2 + 1);
    char *copy = strndup(in->text, in->bytes), **words = calloc((size_t)most, sizeof *words);
    loom_status status = LOOM_E_MEMORY;

    if (copy && words) {
        command c = {.words = words, .m = &m};
        c.count = split_words(copy, words, most);
        status = read_command(in, &c);
    } else {
        status = loom_fail(LOOM_E_MEMORY, "%s: no memory for its words", in->source);
    }
    free(words);
    free(copy);
    return status;
}

/* --- Bridge's YAML ------------------------------------------------------------------------------------------------------------ */

static void read_key(loom_reader *reader, const loom_node *map, const flag *f, loom_megatron *m)
{
    char *field = (char *)m + f->offset;

    switch (f->kind) {
    case FLAG_SET:
        loom_read_bool(reader, map, f->key, (bool *)field);
        break;
    case FLAG_TEXT:
        loom_read_text(reader, map, f->key, (const char **)field);
        break;
    case FLAG_INT:
        loom_read_int(reader, map, f->key, 1, 1 << 24, (int *)field);
        break;
    case FLAG_I64:
        loom_read_i64(reader, map, f->key, 0, INT32_MAX, (int64_t *)field);
        break;
    }
}

static void read_bridge(loom_reader *reader, const loom_node *root, loom_megatron *m)
{
    static const char *const sections[] = {"model", "train", "ddp", "dist", "optimizer"};

    loom_reader_allow_unknown(reader, root);
    for (size_t s = 0; s < sizeof sections / sizeof *sections; s++) {
        const loom_node *map = loom_read_map(reader, root, sections[s]);
        if (!map)
            continue;
        loom_reader_allow_unknown(reader, map);
        for (const flag *f = flags; f < flags + FLAGS; f++)
            if (f->section && strcmp(f->section, sections[s]) == 0)
                read_key(reader, map, f, m);
    }
    bool optimizer = m->distributed_optimizer;
    if (loom_read_bool(reader, loom_node_get(root, "optimizer"), "use_distributed_optimizer", &optimizer) && optimizer != m->distributed_optimizer)
        loom_reader_problem(reader, loom_node_get(root, "optimizer"), "use_distributed_optimizer differs between optimizer and ddp");
    if (m->sequence_parallel && m->tp == 1)
        loom_reader_problem(reader, loom_node_get(root, "model"), "sequence_parallel at tensor_model_parallel_size 1: Megatron-Bridge refuses it");
}

loom_status loom_import_nemo(loom_importing *in)
{
    loom_megatron m = megatron_defaults;
    loom_config *config;
    loom_reader *reader;
    loom_status status = loom_config_parse(in->source, in->text, in->bytes, &config);

    if (status < 0)
        return status;
    status = loom_reader_open(config, &reader);
    if (status == LOOM_OK) {
        read_bridge(reader, loom_config_root(config), &m);
        status = loom_reader_finish(reader);
    }
    if (status == LOOM_OK)
        status = loom_megatron_to_layout(in, &m);
    loom_config_free(config);
    return status;
}
