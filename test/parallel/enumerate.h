/* Every legal layout of a world size, as the rule checker sees it, and a sample of them that covers every pair of features. */
#ifndef TEST_PARALLEL_ENUMERATE_H
#define TEST_PARALLEL_ENUMERATE_H

#include <rankloom/rankloom.h>

typedef struct layout_list {
    loom_layout *at;
    int count, capacity;
} layout_list;

/* All legal layouts over tp, pp, vpp, dp, cp and its kinds, ep, etp, sequence parallelism, ZeRO 0 to 3 where there is something to cut, schedules, micro-batch 1, 2, 4, recompute, and two uneven splits of the layers,
 * with exactly `world` ranks. */
void enumerate_layouts(const loom_model *model, int world, int64_t global_batch, int64_t seq, layout_list *list);
void layout_list_free(layout_list *list);

/* Reorders the list so that its first *count layouts hold every pair of feature values that any layout of the list has (greedy, seeded). */
void cover_pairs(layout_list *list, uint64_t seed, int *count);

/* Layouts of as many ranks come to lie together; and how many of the first `most` have as many as the first. */
void sort_by_world(loom_layout *layouts, int count);
int same_world(const loom_layout *layouts, int most);

#endif
