/* Regret and rank correlation of predicted orders. */
#include "planner/choice.h"

#include <math.h>
#include <stdlib.h>

/* Mean rank of value i among the measured of its group: ties share theirs. */
static double rank_of(const loom_candidate *const *group, int n, int i, bool predicted)
{
    double below = 0, equal = 0;

    for (int j = 0; j < n; j++) {
        double a = predicted ? group[j]->predicted_s : group[j]->measured_s, b = predicted ? group[i]->predicted_s : group[i]->measured_s;
        below += a < b;
        equal += a == b;
    }
    return below + (equal + 1) / 2;
}

static double spearman(const loom_candidate *const *group, int n)
{
    double mean = (n + 1) / 2.0, xy = 0, xx = 0, yy = 0;

    for (int i = 0; i < n; i++) {
        double x = rank_of(group, n, i, true) - mean, y = rank_of(group, n, i, false) - mean;
        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

/* Of the layouts that we say fit (or of all, when we say none does), the one we say is fastest; one that did not run counts as the slowest.
 */
static double regret_of(const loom_candidate *const *group, int n)
{
    const loom_candidate *picked = NULL;
    double best = INFINITY, worst = 0;
    bool any_fits = false;

    for (int i = 0; i < n; i++)
        any_fits |= group[i]->fits;
    for (int i = 0; i < n; i++) {
        if (group[i]->measured_s > 0) {
            best = fmin(best, group[i]->measured_s);
            worst = fmax(worst, group[i]->measured_s);
        }
        if ((group[i]->fits || !any_fits) && (!picked || group[i]->predicted_s < picked->predicted_s))
            picked = group[i];
    }
    return (picked->measured_s > 0 ? picked->measured_s : worst) / best - 1;
}

static void judge_group(const loom_candidate **group, int n, loom_choice *c, int *correlated)
{
    int ran = 0;
    double regret = regret_of(group, n);

    c->groups++;
    c->regret += regret;
    c->worst_regret = fmax(c->worst_regret, regret);
    for (int i = 0; i < n; i++)
        if (group[i]->measured_s > 0)
            group[ran++] = group[i];
    if (ran >= 3) {
        c->rank_correlation += spearman(group, ran);
        ++*correlated;
    }
}

loom_status loom_choice_judge(const loom_candidate *candidates, int n, int n_groups, bool one_node, loom_choice *choice)
{
    const loom_candidate **group = malloc((size_t)(n ? n : 1) * sizeof *group);
    loom_choice c = {0};
    int correlated = 0;

    if (!group)
        return loom_fail(LOOM_E_MEMORY, "no memory to judge %d layouts", n);
    for (int g = 0; g < n_groups; g++) {
        int members = 0, ran = 0;
        for (int i = 0; i < n; i++)
            if (candidates[i].group == g && candidates[i].one_node == one_node && candidates[i].predicted_s > 0) {
                group[members++] = &candidates[i];
                ran += candidates[i].measured_s > 0;
            }
        if (ran >= 2)
            judge_group(group, members, &c, &correlated);
    }
    free(group);
    if (c.groups)
        c.regret /= c.groups;
    if (correlated)
        c.rank_correlation /= correlated;
    *choice = c;
    return LOOM_OK;
}
