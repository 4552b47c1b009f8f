/* Finding a part in the catalogue by the names that people, clouds and drivers give it. */
#include "topology/catalogue.h"

#include "topology/exact.h"

#include <rankloom/config.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_TOKENS = 16, TOKEN_BYTES = 24 };

/* A label cut at everything that is no letter, digit or dot: "NVIDIA H100 80GB HBM3" is nvidia h100 hbm3, of 80 GB. */
typedef struct label_parts {
    char token[MAX_TOKENS][TOKEN_BYTES];
    int count;
    double memory_gb; /* 0: not in the label */
} label_parts;

/* "80g", "80gb", "80gib"; a lone number before a lone "gb" is joined by the caller. */
static double memory_of_token(const char *token)
{
    char *end;
    double value = strtod(token, &end);

    if (end == token || !isdigit((unsigned char)token[0]) || !(value > 0 && value < 1e5))
        return 0;
    return strcmp(end, "g") == 0 || strcmp(end, "gb") == 0 || strcmp(end, "gib") == 0 ? value : 0;
}

static void cut_label(const char *label, label_parts *parts)
{
    memset(parts, 0, sizeof *parts);
    for (const char *at = label; *at && parts->count < MAX_TOKENS;) {
        size_t length = 0;
        while (isalnum((unsigned char)at[length]) || (at[length] == '.' && length))
            length++;
        if (length == 0) {
            at++;
            continue;
        }
        char *token = parts->token[parts->count];
        for (size_t i = 0; i < length && i < TOKEN_BYTES - 1; i++)
            token[i] = (char)tolower((unsigned char)at[i]);
        at += length;

        if (parts->count && strcmp(token, "gb") == 0) { /* "80 GB" */
            strcat(parts->token[parts->count - 1], strlen(parts->token[parts->count - 1]) + 3 < TOKEN_BYTES ? "gb" : "");
            memset(token, 0, TOKEN_BYTES);
            token = parts->token[--parts->count];
        }
        double memory = memory_of_token(token);
        if (memory > 0) {
            parts->memory_gb = parts->memory_gb > 0 ? parts->memory_gb : memory; /* "96GB/144GB": the first */
            memset(token, 0, TOKEN_BYTES);
        } else {
            parts->count++;
        }
    }
}

static bool label_has(const label_parts *parts, const char *word)
{
    for (int i = 0; i < parts->count; i++)
        if (strcmp(parts->token[i], word) == 0)
            return true;
    return false;
}

/* How many of the space-separated words of `forms` the label has. */
static int forms_met(const label_parts *parts, const char *forms)
{
    int met = 0;
    char word[TOKEN_BYTES];

    for (int used = 0; sscanf(forms, "%23s%n", word, &used) == 1; forms += used)
        met += label_has(parts, word);
    return met;
}

/* Of the rows with the label's key: the one that shares most words with it, then the nearest memory, then the first. */
static const loom_catalogue_chip *best_row(const label_parts *parts)
{
    const loom_catalogue_chip *best = NULL;
    int best_met = 0;
    double best_distance = 0;

    for (int i = 0; i < loom_catalogue_chip_count; i++) {
        const loom_catalogue_chip *row = &loom_catalogue_chips[i];
        if (!label_has(parts, row->key))
            continue;
        if (strstr(row->forms, "tpu") && !label_has(parts, "tpu") && parts->count > 1)
            continue; /* "v4" alone is a TPU; in "ND A100 v4" it is not */
        int met = forms_met(parts, row->forms);
        double distance = parts->memory_gb > 0 ? fabs(row->memory_gb - parts->memory_gb) : -row->memory_gb;
        if (!best || met > best_met || (met == best_met && distance < best_distance)) {
            best = row;
            best_met = met;
            best_distance = distance;
        }
    }
    return best;
}

static loom_figure collected(double value, double unit)
{
    return value > 0 ? loom_assumed(value * unit) : loom_unknown();
}

void loom_chip_blank(const char *name, loom_chip_class kind, loom_chip *chip)
{
    memset(chip, 0, sizeof *chip);
    snprintf(chip->name, sizeof chip->name, "%s", name);
    chip->kind = kind;
    if (kind == LOOM_CHIP_CPU)
        snprintf(chip->link, sizeof chip->link, "shared memory");
    chip->link_domain = 1;
    for (int math = 0; math < LOOM_MATHS; math++) {
        chip->peak[math] = loom_unknown();
        chip->gemm[math] = (loom_gemm_law){loom_unknown(), loom_unknown(), loom_unknown(), loom_unknown(), loom_unknown()};
    }
    loom_figure *const others[] = {&chip->memory_bytes,   &chip->memory_nominal_bytes, &chip->memory_bandwidth, &chip->memory_reach,
                                   &chip->link_bandwidth, &chip->peer_bandwidth,       &chip->host_bandwidth,   &chip->nic_bandwidth,
                                   &chip->power_w,        &chip->price_per_hour};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        *others[i] = loom_unknown();
}

/* Bytes that a program sees of `memory_gb` as labelled. Labels of parts in the catalogue mean GiB less what driver and ECC keep: the row's
 * own ratio, else 0.98. */
static double seen_bytes(const loom_catalogue_chip *row, double memory_gb)
{
    double share = row->memory_gib > 0 ? row->memory_gib / row->memory_gb : 0.98;
    return share * memory_gb * 1073741824.0;
}

static void fill_chip(const loom_catalogue_chip *row, double memory_gb, loom_chip *chip)
{
    loom_chip_blank(row->name, row->kind, chip);
    snprintf(chip->link, sizeof chip->link, "%s", row->link);
    snprintf(chip->origin, sizeof chip->origin, "%s", row->origin);
    chip->peak[LOOM_MATH_TF32] = collected(row->peak_tf32, 1e12);
    chip->peak[LOOM_MATH_16] = collected(row->peak_16, 1e12);
    chip->peak[LOOM_MATH_8] = collected(row->peak_8, 1e12);
    chip->peak[LOOM_MATH_4] = collected(row->peak_4, 1e12);
    chip->memory_nominal_bytes = memory_gb > 0 ? loom_given(memory_gb * 1e9) : loom_assumed(row->memory_gb * 1e9);
    chip->memory_bytes = loom_assumed(seen_bytes(row, memory_gb > 0 ? memory_gb : row->memory_gb));
    chip->memory_bandwidth = collected(row->memory_gb_s, 1e9);
    chip->link_bandwidth = collected(row->link_gb_s, 1e9);
    chip->peer_bandwidth = collected(row->peer_gb_s > 0 ? row->peer_gb_s : row->link_gb_s, 1e9);
    chip->link_domain = row->link_domain;
    chip->host_bandwidth = collected(row->host_gb_s, 1e9);
    chip->nic_bandwidth = collected(row->nic_gbit_s, 1e9 / 8);
    chip->power_w = collected(row->power_w, 1);
}

/* A label that only tells memory: never more than it says, in the smaller unit. */
static void fill_unknown_chip(const char *label, double memory_gb, loom_chip *chip)
{
    loom_chip_blank(label, LOOM_CHIP_GPU, chip);
    snprintf(chip->origin, sizeof chip->origin, "not in the catalogue: only the memory of its label is known");
    chip->memory_nominal_bytes = chip->memory_bytes = loom_given(memory_gb * 1e9);
}

static loom_status no_such_chip(const char *name)
{
    const char *names[64];
    int count = 0;

    for (int i = 0; i < loom_catalogue_chip_count && count < 62; i++)
        if (i == 0 || strcmp(loom_catalogue_chips[i].key, loom_catalogue_chips[i - 1].key) != 0)
            names[count++] = loom_catalogue_chips[i].key;
    names[count] = NULL;

    label_parts parts;
    const char *nearest = NULL;
    cut_label(name, &parts);
    for (int i = 0; i < parts.count && !nearest; i++)
        nearest = loom_nearest_name(parts.token[i], names);
    if (nearest)
        return loom_fail(LOOM_E_INVALID,
                         "no accelerator \"%s\" in the catalogue; the nearest is %s (any other name works with its memory: \"%s-24g\")",
                         name, nearest, name);
    return loom_fail(LOOM_E_INVALID,
                     "no accelerator \"%s\" in the catalogue, such as h100-80g, a100-40g, mi300x, b200; any other name works with its "
                     "memory: \"%s-24g\"",
                     name, name);
}

loom_status loom_chip_find(const char *name, loom_chip *chip)
{
    label_parts parts;

    cut_label(name, &parts);
    const loom_catalogue_chip *row = best_row(&parts);
    if (row)
        fill_chip(row, parts.memory_gb, chip);
    else if (parts.memory_gb > 0)
        fill_unknown_chip(name, parts.memory_gb, chip);
    else if (parts.count == 1 && strcmp(parts.token[0], "cpu") == 0)
        loom_chip_blank("cpu", LOOM_CHIP_CPU, chip);
    else
        return no_such_chip(name);
    snprintf(chip->label, sizeof chip->label, "%s", name);
    return LOOM_OK;
}

bool loom_chip_at(int index, loom_chip *chip)
{
    if (index < 0 || index >= loom_catalogue_chip_count)
        return false;
    fill_chip(&loom_catalogue_chips[index], 0, chip);
    snprintf(chip->label, sizeof chip->label, "%s", chip->name);
    return true;
}

/* Letters and digits only, lower case. */
static void squeeze(const char *from, char *to, size_t bytes)
{
    size_t used = 0;
    for (; *from && used + 1 < bytes; from++)
        if (isalnum((unsigned char)*from))
            to[used++] = (char)tolower((unsigned char)*from);
    to[used] = '\0';
}

static bool instance_is_called(const loom_catalogue_instance *row, const char *squeezed)
{
    char word[64], mine[64];
    const char *also = row->also;

    squeeze(row->name, mine, sizeof mine);
    bool same = strcmp(mine, squeezed) == 0;
    for (int used = 0; !same && sscanf(also, "%63s%n", word, &used) == 1; also += used) {
        squeeze(word, mine, sizeof mine);
        same = strcmp(mine, squeezed) == 0;
    }
    return same;
}

const loom_catalogue_instance *loom_catalogue_instance_find(const char *name)
{
    const char *names[64];
    char squeezed[64];

    squeeze(name, squeezed, sizeof squeezed);
    for (int i = 0; i < loom_catalogue_instance_count; i++)
        if (instance_is_called(&loom_catalogue_instances[i], squeezed))
            return &loom_catalogue_instances[i];

    int count = 0;
    while (count < loom_catalogue_instance_count && count < 63) {
        names[count] = loom_catalogue_instances[count].name;
        count++;
    }
    names[count] = NULL;
    const char *nearest = loom_nearest_name(name, names);
    loom_fail(LOOM_E_INVALID, "no machine type \"%s\" in the catalogue%s%s", name, nearest ? "; the nearest is " : "",
              nearest ? nearest : "");
    return NULL;
}

/* What was read stays; the rest is the catalogue's. */
static void fill_from(const loom_chip *known, loom_chip *chip)
{
    loom_chip filled = *known;

    for (int i = 0; i < LOOM_CHIP_FIGURES; i++)
        if (loom_known(loom_figure_in(chip, &loom_chip_figures[i])))
            *loom_figure_at(&filled, &loom_chip_figures[i]) = loom_figure_in(chip, &loom_chip_figures[i]);
    *chip = filled;
}

loom_status loom_topology_name_chips(loom_topology *t, const char *gpu)
{
    loom_chip known;
    int named = 0;
    loom_status status = loom_chip_find(gpu, &known);

    if (status < 0)
        return status;
    for (int i = 0; i < t->n_chips; i++)
        if (strcmp(t->chips[i].name, LOOM_NAMELESS_CHIP) == 0) {
            fill_from(&known, &t->chips[i]);
            named++;
        }
    return named ? LOOM_OK
                 : loom_fail(LOOM_E_INVALID, "%s names its devices (%s …): \"%s\" is not needed", t->source, t->chips[0].name, gpu);
}
