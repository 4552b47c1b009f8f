/* The router of a mixture of experts: scores, choice, balance, and the gradient through all of it. Tokens are independent of each other;
 * within a token all sums run over experts in order. */
#include "kernels/cpu/isa.h"

/* --- forward --- */

LOOM_INLINE void exponential_step(float *e, const float *x, vf largest, vf *sum, int64_t i, int n)
{
    vf y = vf_exp(vf_get(x + i, n) - largest);

    if (n < LANES)
        y = vf_select(vi_ramp() < vi_set(n), y, vf_set(0));
    vf_put(e + i, y, n);
    *sum += y;
}

LOOM_INLINE void scale_step(float *y, vf factor, int64_t i, int n)
{
    vf_put(y + i, vf_get(y + i, n) * factor, n);
}

LOOM_INLINE void sigmoid_step(float *y, const float *x, int64_t i, int n)
{
    vf_put(y + i, 1.0f / (1.0f + vf_exp(-vf_get(x + i, n))), n);
}

/* Exponentials of the row less its largest, into e; returns their sum. */
static float row_exponentials(const float *x, float *e, int64_t experts, float *largest)
{
    vf sum = {0};

    *largest = x[0];
    for (int64_t i = 1; i < experts; i++)
        *largest = x[i] > *largest ? x[i] : *largest;
    EACH_LANES(0, experts, exponential_step, e, x, vf_set(*largest), &sum);
    return vf_sum(sum);
}

/* Leaves the groups_kept best groups in `choice`; the others' experts can no more be chosen. */
static void keep_groups(const loom_router_rule *rule, float *choice)
{
    int64_t size = rule->experts / rule->groups;
    float merit[LOOM_ROUTER_EXPERTS_MAX];
    bool kept[LOOM_ROUTER_EXPERTS_MAX] = {false};

    for (int64_t g = 0; g < rule->groups; g++) {
        float best = -INFINITY, second = -INFINITY;
        for (int64_t i = g * size; i < (g + 1) * size; i++)
            if (choice[i] > best)
                second = best, best = choice[i];
            else if (choice[i] > second)
                second = choice[i];
        merit[g] = size > 1 ? best + second : best;
    }
    for (int64_t n = 0; n < rule->groups_kept; n++) {
        int64_t best = -1;
        for (int64_t g = 0; g < rule->groups; g++)
            if (!kept[g] && (best < 0 || merit[g] > merit[best]))
                best = g;
        kept[best] = true;
    }
    for (int64_t i = 0; i < rule->experts; i++)
        if (!kept[i / size])
            choice[i] = -INFINITY;
}

/* The best expert not taken yet. Also with scores that are not numbers every call takes another one. */
static int64_t take_best(float *choice, bool *taken, int64_t experts)
{
    int64_t best = -1;

    for (int64_t i = 0; i < experts; i++)
        if (!taken[i] && (best < 0 || choice[i] > choice[best]))
            best = i;
    taken[best] = true;
    return best;
}

static void choose(const loom_router_args *a, const float *score, int32_t *expert, float *weight)
{
    const loom_router_rule *rule = &a->rule;
    float choice[LOOM_ROUTER_EXPERTS_MAX], sum = 0, factor = rule->route_scale != 0 ? rule->route_scale : 1;
    bool taken[LOOM_ROUTER_EXPERTS_MAX] = {false};

    for (int64_t i = 0; i < rule->experts; i++)
        choice[i] = score[i] + (a->bias_E ? a->bias_E[i] : 0);
    if (rule->groups > 1)
        keep_groups(rule, choice);
    for (int64_t j = 0; j < rule->top_k; j++) {
        expert[j] = (int32_t)take_best(choice, taken, rule->experts);
        weight[j] = score[expert[j]];
        sum += weight[j];
    }
    if (rule->normalise)
        factor /= sum + 1e-20f; /* sigmoids may all be 0 */
    for (int64_t j = 0; j < rule->top_k; j++)
        weight[j] *= factor;
}

static bool is_padding(const loom_router_args *a, int64_t t)
{
    return a->seq > 0 && (a->first + t) % a->seq >= a->counted;
}

static void choose_nothing(const loom_router_args *a, int64_t t)
{
    int64_t experts = a->rule.experts, top_k = a->rule.top_k;

    memset(a->score_TE + t * experts, 0, (size_t)experts * sizeof(float));
    memset(a->weight_TK + t * top_k, 0, (size_t)top_k * sizeof(float));
    memset(a->expert_TK + t * top_k, 0xff, (size_t)top_k * sizeof(int32_t)); /* -1 */
    if (a->lse_T)
        a->lse_T[t] = 0;
}

static void router_tokens(const void *context, int64_t from, int64_t to)
{
    const loom_router_args *a = context;
    int64_t experts = a->rule.experts, top_k = a->rule.top_k;

    for (int64_t t = from; t < to; t++) {
        const float *logit = a->logit_TE + t * experts;
        float *score = a->score_TE + t * experts, largest;

        if (is_padding(a, t)) {
            choose_nothing(a, t);
            continue;
        }
        if (!a->rule.sigmoid || a->lse_T) {
            float sum = row_exponentials(logit, score, experts, &largest);
            if (a->lse_T)
                a->lse_T[t] = largest + logf(sum);
            EACH_LANES(0, experts, scale_step, score, vf_set(1.0f / sum));
        }
        if (a->rule.sigmoid)
            EACH_LANES(0, experts, sigmoid_step, score, logit);
        choose(a, score, a->expert_TK + t * top_k, a->weight_TK + t * top_k);
    }
}

loom_status ISA(router)(loom_cpu *cpu, const loom_router_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->rule.experts * (4 + a->rule.top_k)), router_tokens, a);
    return LOOM_OK;
}

/* --- balance --- */

/* 1, or what makes the token's scores sum to 1; they are all 0 where a token chose nothing. */
static float share_of(const float *score, int64_t experts, bool share)
{
    float sum = 0;

    for (int64_t i = 0; share && i < experts; i++)
        sum += score[i];
    return share && sum != 0 ? 1.0f / sum : 1.0f;
}

loom_status ISA(router_count)(loom_cpu *cpu, const loom_router_count_args *a)
{
    int64_t segment = or_tight(a->segment, a->tokens), segments = segment ? (a->tokens + segment - 1) / segment : 1;

    (void)cpu;
    memset(a->assigned_NE, 0, (size_t)(segments * a->experts) * sizeof(float));
    if (a->score_TE)
        memset(a->score_sum_NE, 0, (size_t)(segments * a->experts) * sizeof(float));
    for (int64_t t = 0; t < a->tokens; t++) {
        float *assigned = a->assigned_NE + t / segment * a->experts, *sum = a->score_sum_NE + t / segment * a->experts;

        for (int64_t j = 0; j < a->top_k; j++) {
            int32_t expert = a->expert_TK[t * a->top_k + j];
            if (expert >= 0 && expert < a->experts)
                assigned[expert] += 1;
        }
        if (a->score_TE) {
            const float *score = a->score_TE + t * a->experts;
            float share = share_of(score, a->experts, a->share);
            for (int64_t i = 0; i < a->experts; i++)
                sum[i] += score[i] * share;
        }
    }
    return LOOM_OK;
}

loom_status ISA(router_balance)(loom_cpu *cpu, const loom_router_balance_args *a)
{
    double per_segment = a->segments ? a->coefficient / (double)a->segments * (double)a->experts / (double)a->top_k : 0, loss = 0;
    double tokens = (double)a->tokens;

    (void)cpu;
    for (int64_t i = 0; i < a->segments * a->experts; i++) {
        double slope = per_segment * a->assigned_NE[i] / tokens / tokens;
        loss += slope * a->score_sum_NE[i];
        if (a->slope_NE)
            a->slope_NE[i] = (float)slope;
    }
    if (a->loss)
        *a->loss = loss;
    return LOOM_OK;
}

/* --- backward --- */

/* dscore from the gradient of the weights: w_j = factor s_j, or factor s_j / sum of the chosen s. */
static void weights_backward(const loom_router_rule *rule, const float *score, const int32_t *expert, const float *dweight, float *dscore)
{
    float factor = rule->route_scale != 0 ? rule->route_scale : 1, sum = 0, dot = 0;

    for (int64_t j = 0; rule->normalise && j < rule->top_k; j++) {
        sum += score[expert[j]];
        dot += dweight[j] * score[expert[j]];
    }
    if (rule->normalise) {
        factor /= sum + 1e-20f;
        dot /= sum + 1e-20f;
    }
    for (int64_t j = 0; j < rule->top_k; j++)
        dscore[expert[j]] += factor * (dweight[j] - dot);
}

/* The balance loss sees scores, or scores divided by the token's sum. */
static void balance_backward(const loom_router_backward_args *a, const float *score, const float *slope, float *dscore)
{
    int64_t experts = a->rule.experts;
    float share = share_of(score, experts, a->share), dot = 0;

    for (int64_t i = 0; a->share && i < experts; i++)
        dot += slope[i] * score[i] * share;
    for (int64_t i = 0; i < experts; i++)
        dscore[i] += share * (slope[i] - dot);
}

static void scores_backward(const loom_router_rule *rule, const float *score, const float *dscore, float *dlogit)
{
    float dot = 0;

    for (int64_t i = 0; !rule->sigmoid && i < rule->experts; i++)
        dot += score[i] * dscore[i];
    for (int64_t i = 0; i < rule->experts; i++)
        dlogit[i] = score[i] * (rule->sigmoid ? dscore[i] * (1 - score[i]) : dscore[i] - dot);
}

static void router_backward_tokens(const void *context, int64_t from, int64_t to)
{
    const loom_router_backward_args *a = context;
    int64_t experts = a->rule.experts, top_k = a->rule.top_k, segment = or_tight(a->segment, a->tokens);

    for (int64_t t = from; t < to; t++) {
        const float *score = a->score_TE + t * experts;
        float dscore[LOOM_ROUTER_EXPERTS_MAX] = {0}, *dlogit = a->dlogit_TE + t * experts;

        if (a->expert_TK && a->expert_TK[t * top_k] < 0) {
            memset(dlogit, 0, (size_t)experts * sizeof *dlogit);
            continue;
        }

        if (a->dweight_TK)
            weights_backward(&a->rule, score, a->expert_TK + t * top_k, a->dweight_TK + t * top_k, dscore);
        if (a->slope_NE)
            balance_backward(a, score, a->slope_NE + t / segment * experts, dscore);
        scores_backward(&a->rule, score, dscore, dlogit);
        for (int64_t i = 0; a->z_slope != 0 && i < experts; i++)
            dlogit[i] += a->z_slope * a->lse_T[t] * expf(a->logit_TE[t * experts + i] - a->lse_T[t]);
    }
}

loom_status ISA(router_backward)(loom_cpu *cpu, const loom_router_backward_args *a)
{
    loom_parallel_spans(cpu->threads, a->tokens, row_grain(a->rule.experts * 8), router_backward_tokens, a);
    return LOOM_OK;
}
