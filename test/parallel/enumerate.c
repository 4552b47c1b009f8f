#include "enumerate.h"

#include <stdlib.h>
#include <string.h>

static void add(layout_list *list, const loom_layout *layout)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 64;
        list->at = realloc(list->at, (size_t)list->capacity * sizeof *list->at);
        if (!list->at)
            abort();
    }
    list->at[list->count++] = *layout;
}

void layout_list_free(layout_list *list)
{
    free(list->at);
    *list = (layout_list){0};
}

/* Splits of the layers over the chunks: even; all that can go on the first; and none on the first, so that embedding and layers sit on different stages. */
enum { SPLIT_EVEN, SPLIT_FRONT, SPLIT_BACK, SPLITS };

static void split_layers(loom_layout *layout, int64_t layers, int split)
{
    if (split == SPLIT_EVEN)
        return;
    for (int c = 0; c < layout->n_chunks; c++)
        layout->chunk_layers[c] = 0;
    for (int64_t i = 0; i < layers; i++) {
        int c = split == SPLIT_FRONT ? (int)(i < layers - layout->n_chunks + 1 ? 0 : i - (layers - layout->n_chunks))
                                     : (int)(i % (layout->n_chunks - 1) + 1);
        layout->chunk_layers[c]++;
    }
}

static void try_layout(const loom_model *model, int world, loom_layout layout, int split, layout_list *list)
{
    loom_rule_breach breaches[4];

    layout.n_chunks = layout.pp * layout.vpp;
    if (model->moe.balance == LOOM_BALANCE_SWITCH && layout.micro_batch != 2)
        return; /* the micro-batch is part of what this loss means; the fixtures were made with 2 */
    if (split != SPLIT_EVEN && (layout.n_chunks < 2 || model->layers < layout.n_chunks))
        return;
    split_layers(&layout, model->layers, split);
    if (loom_layout_resolve(&layout, model, world, breaches, 4) > 0)
        return;
    if (layout.zero < 2 || layout.dp * layout.cp > 1 || loom_layout_edp(&layout) > 1)
        add(list, &layout);
}

static void try_variants(const loom_model *model, int world, loom_layout base, layout_list *list)
{
    for (int zero = 0; zero <= 3; zero++)
        for (int sp = 0; sp <= (base.tp > 1); sp++)
            for (int recompute = 0; recompute <= 1; recompute++)
                for (int64_t micro_batch = 1; micro_batch <= 4; micro_batch *= 2)
                    for (int split = 0; split < SPLITS; split++) {
                        loom_layout layout = base;

                        layout.zero = zero;
                        layout.sequence_parallel = sp;
                        layout.recompute = recompute ? LOOM_RECOMPUTE_FULL : LOOM_RECOMPUTE_NONE;
                        layout.micro_batch = micro_batch;
                        try_layout(model, world, layout, split, list);
                    }
}

/* ep and etp: all ways to fold the experts' mesh over the ranks of a stage. */
static void try_folds(const loom_model *model, int world, loom_layout base, layout_list *list)
{
    int ranks = model->moe.experts > 0 ? base.tp * base.cp * base.dp : 1;

    for (int ep = 1; ep <= ranks; ep++)
        for (int etp = 1; etp <= ranks / ep; etp++)
            if (ranks % (ep * etp) == 0) {
                base.ep = ep;
                base.etp = etp;
                try_variants(model, world, base, list);
            }
}

/* What is left of the world goes to cp and dp in every way. */
static void try_cp(const loom_model *model, int world, loom_layout base, layout_list *list)
{
    int left = world / (base.tp * base.pp);

    for (int cp = 1; cp <= left; cp++)
        for (int kind = LOOM_CP_RING; kind <= (cp > 1 ? LOOM_CP_HYBRID : LOOM_CP_RING); kind++) {
            loom_layout layout = base;

            if (left % cp != 0)
                continue;
            layout.cp = cp;
            layout.cp_kind = (loom_cp_kind)kind;
            layout.dp = left / cp;
            try_folds(model, world, layout, list);
        }
}

void enumerate_layouts(const loom_model *model, int world, int64_t global_batch, int64_t seq, layout_list *list)
{
    static const loom_schedule_kind kinds[] = {LOOM_SCHEDULE_GPIPE, LOOM_SCHEDULE_1F1B, LOOM_SCHEDULE_INTERLEAVED, LOOM_SCHEDULE_ZB_H1, LOOM_SCHEDULE_ZB_V};

    for (int tp = 1; tp <= world; tp++)
        for (int pp = 1; pp <= world / tp; pp++)
            for (int vpp = 1; vpp <= 2; vpp++)
                for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
                    loom_layout layout;

                    if (world % (tp * pp) != 0 || (pp == 1 && kind > 0))
                        continue;
                    loom_layout_default(model, &layout);
                    layout.tp = tp;
                    layout.pp = pp;
                    layout.vpp = vpp;
                    layout.schedule = kinds[kind];
                    layout.global_batch = global_batch;
                    layout.seq = seq;
                    try_cp(model, world, layout, list);
                }
}

/* --- pairs ------------------------------------------------------------------------------------------------------------------------ */

enum { FEATURES = 13, VALUES = 12 };

static int split_of(const loom_layout *layout)
{
    return layout->chunk_layers[0] == 0 ? 2 : layout->n_chunks > 1 && layout->chunk_layers[0] > layout->chunk_layers[1] + 1 ? 1 : 0;
}

static void features(const loom_layout *l, int value[FEATURES])
{
    bool starved = loom_layout_micro_batches(l) < l->pp; /* fewer micro-batches than stages */

    value[0] = l->tp;
    value[1] = l->pp;
    value[2] = l->vpp;
    value[3] = l->dp;
    value[4] = l->zero;
    value[5] = l->sequence_parallel;
    value[6] = (int)l->schedule;
    value[7] = (int)l->micro_batch + (l->recompute ? 5 : 0);
    value[8] = split_of(l) + (starved ? 3 : 0);
    value[9] = l->cp;
    value[10] = (int)l->cp_kind;
    value[11] = l->ep;
    value[12] = l->etp;
}

typedef bool pair_table[FEATURES][VALUES][FEATURES][VALUES];

static int new_pairs(const loom_layout *layout, pair_table seen, bool mark)
{
    int value[FEATURES], count = 0;

    features(layout, value);
    for (int a = 0; a < FEATURES; a++)
        for (int b = a + 1; b < FEATURES; b++) {
            bool *at = &seen[a][value[a]][b][value[b]];

            count += !*at;
            if (mark)
                *at = true;
        }
    return count;
}

static void swap(loom_layout *a, loom_layout *b)
{
    loom_layout hold = *a;

    *a = *b;
    *b = hold;
}

void cover_pairs(layout_list *list, uint64_t seed, int *count)
{
    static pair_table seen;

    memset(seen, 0, sizeof seen);
    for (int i = list->count - 1; i > 0; i--) { /* the seed decides among equals */
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        swap(&list->at[i], &list->at[(seed >> 33) % (uint64_t)(i + 1)]);
    }
    for (*count = 0; *count < list->count; ++*count) {
        int best = -1, most = 0;

        for (int i = *count; i < list->count; i++) {
            int gain = new_pairs(&list->at[i], seen, false);

            if (gain > most) {
                most = gain;
                best = i;
            }
        }
        if (best < 0)
            return;
        new_pairs(&list->at[best], seen, true);
        swap(&list->at[*count], &list->at[best]);
    }
}

/* --- by world ----------------------------------------------------------------------------------------------------------------- */

static int by_world(const void *a, const void *b)
{
    return loom_layout_world(a) - loom_layout_world(b);
}

void sort_by_world(loom_layout *layouts, int count)
{
    qsort(layouts, (size_t)count, sizeof *layouts, by_world);
}

int same_world(const loom_layout *layouts, int most)
{
    int count = 1;

    while (count < most && loom_layout_world(&layouts[count]) == loom_layout_world(layouts))
        count++;
    return count;
}
