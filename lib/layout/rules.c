/* The rule checker: what a layout has to satisfy before any memory is allocated. One function a rule (include/rankloom/layout.h lists
 * them); each says what was asked and the nearest that works. All broken rules are reported, not the first. */
#include <rankloom/sizes.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = sizeof((loom_rule_breach *)0)->text };

typedef struct rule_check {
    loom_layout *layout;
    const loom_model *model; /* may be NULL */
    int world;               /* 0: any */
    int filled;              /* the axis that was open and got what is left of the world, or -1 */
    loom_rule_breach *breaches;
    int count, capacity;
} rule_check;

static bool has_room(const rule_check *check)
{
    return check->count < check->capacity;
}

static LOOM_PRINTF(3, 4) void broken(rule_check *check, const char *rule, const char *format, ...)
{
    if (has_room(check)) {
        loom_rule_breach *breach = &check->breaches[check->count];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(breach->text, sizeof breach->text, format, arguments);
        va_end(arguments);
        breach->rule = rule;
    }
    check->count++;
}

/* --- lists of legal values in words --------------------------------------------------------------------------------- */

typedef struct value_list {
    int64_t at[16]; /* enough for the divisors people ask about; `more` says that there are others */
    int count;
    bool more;
} value_list;

static void add_value(value_list *list, int64_t value)
{
    if (list->count < (int)(sizeof list->at / sizeof *list->at))
        list->at[list->count++] = value;
    else
        list->more = true;
}

/* "1, 2, 4 and 8"; "none". */
static const char *words(const value_list *list, char *text, size_t bytes)
{
    size_t used = 0;

    if (list->count == 0)
        snprintf(text, bytes, "none");
    for (int i = 0; i < list->count && used < bytes; i++) {
        const char *between = i == 0 ? "" : i + 1 == list->count && !list->more ? " and " : ", ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld", between, (long long)list->at[i]);
    }
    if (list->more && used < bytes)
        snprintf(text + used, bytes - used, ", …");
    return text;
}

/* "96 and 120", or "24" when nothing legal lies below. */
static const char *nearest_multiples(int64_t value, int64_t unit, char *text, size_t bytes)
{
    int64_t below = value / unit * unit;

    if (below > 0)
        snprintf(text, bytes, "%lld and %lld", (long long)below, (long long)(below + unit));
    else
        snprintf(text, bytes, "%lld", (long long)unit);
    return text;
}

/* --- degrees and the world ------------------------------------------------------------------------------------------- */

static void check_range(rule_check *check)
{
    const loom_layout *l = check->layout;
    const struct { const char *name; int64_t value, low, high; } fields[] = {
        {"tp", l->tp, 1, INT32_MAX}, {"cp", l->cp, 1, INT32_MAX}, {"dp", l->dp, 1, INT32_MAX}, {"pp", l->pp, 1, LOOM_MAX_STAGES},
        {"vpp", l->vpp, 1, LOOM_MAX_STAGES}, {"ep", l->ep, 1, INT32_MAX}, {"etp", l->etp, 1, INT32_MAX}, {"zero", l->zero, 0, 3},
        {"micro_batch", l->micro_batch, 1, INT32_MAX}, {"global_batch", l->global_batch, 0, INT32_MAX}, {"seq", l->seq, 0, INT32_MAX},
        {"schedule", l->schedule, 0, LOOM_SCHEDULE_KINDS - 1}, {"recompute", l->recompute, 0, LOOM_RECOMPUTE_FULL},
        {"cp_kind", l->cp_kind, 0, LOOM_CP_AUTO}, {"cp_inner", l->cp_inner, 0, INT32_MAX},
    };

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].low || fields[i].value > fields[i].high)
            broken(check, "range", "%s=%lld is out of range; %lld to %lld are legal", fields[i].name, (long long)fields[i].value,
                   (long long)fields[i].low, (long long)fields[i].high);
    if (l->pp > 0 && l->vpp > 0 && (int64_t)l->pp * l->vpp > LOOM_MAX_STAGES)
        broken(check, "range", "pp=%d x vpp=%d = %lld chunks; at most %d are supported", l->pp, l->vpp, (long long)l->pp * l->vpp,
               LOOM_MAX_STAGES);
    if ((int64_t)l->tp * l->cp > INT32_MAX || (int64_t)l->tp * l->cp * l->dp > INT32_MAX || (double)l->tp * l->cp * l->dp * l->pp > INT32_MAX)
        broken(check, "range", "tp=%d x cp=%d x pp=%d x dp=%d ranks are more than %d", l->tp, l->cp, l->pp, l->dp, INT32_MAX);
}

static void check_order(rule_check *check)
{
    int seen = 0;

    for (int i = 0; i < 4; i++)
        if (check->layout->order[i] >= LOOM_AXIS_TP && check->layout->order[i] <= LOOM_AXIS_PP)
            seen |= 1 << check->layout->order[i];
    if (seen != 0xf)
        broken(check, "order", "the rank order has to name tp, cp, dp and pp once each, fastest first");
}

static int *degree_of(loom_layout *layout, int axis)
{
    int *const fields[4] = {[LOOM_AXIS_TP] = &layout->tp, [LOOM_AXIS_CP] = &layout->cp, [LOOM_AXIS_DP] = &layout->dp, [LOOM_AXIS_PP] = &layout->pp};

    return fields[axis];
}

/* The degree that was left open takes what the others leave of the world. */
static void fill_open_degree(rule_check *check)
{
    loom_layout *l = check->layout;
    int64_t product = 1;
    int n_open = 0;

    for (int axis = LOOM_AXIS_TP; axis <= LOOM_AXIS_PP; axis++) {
        int *degree = degree_of(l, axis);
        if (*degree == 0) {
            n_open++;
            check->filled = axis;
            *degree = 1;
        }
        product *= *degree > 0 && product < INT32_MAX ? *degree : 1;
    }
    if (n_open > 1)
        broken(check, "auto", "%d of tp, cp, pp and dp are auto; what is left of the world can fill only one", n_open);
    if (n_open != 1 || check->world == 0)
        return;
    if (check->world % product == 0)
        *degree_of(l, check->filled) = (int)(check->world / product);
    else
        broken(check, "auto", "%s=auto: the other degrees, tp=%d x cp=%d x pp=%d x dp=%d = %lld with %s as 1, do not divide the world of %d",
               loom_axis_name(check->filled), l->tp, l->cp, l->pp, l->dp, (long long)product, loom_axis_name(check->filled), check->world);
}

static bool tp_fits(const loom_model *model, int64_t tp)
{
    int64_t kv = model->kv_heads;

    return model->heads % tp == 0 && (kv % tp == 0 || tp % kv == 0);
}

/* A layout of the right world size near the one asked for. Lower is nearer: first how many degrees change, then how many doublings,
 * then dp before pp before cp before tp. */
typedef struct near_layout { int at[4], distance; } near_layout;

static int doublings(int a, int b)
{
    int n = 0;

    for (int low = a < b ? a : b, high = a < b ? b : a; low < high; low *= 2)
        n++;
    return n;
}

static int distance(const rule_check *check, const int at[4])
{
    static const int reluctance[4] = {[LOOM_AXIS_TP] = 3, [LOOM_AXIS_CP] = 2, [LOOM_AXIS_DP] = 0, [LOOM_AXIS_PP] = 1};
    int changed = 0, steps = 0, tie = 0;

    for (int axis = 0; axis < 4; axis++) {
        int asked = *degree_of(check->layout, axis);
        changed += at[axis] != asked;
        steps += doublings(asked, at[axis]);
        tie += at[axis] != asked ? reluctance[axis] : 0;
    }
    return (changed * 64 + steps) * 16 + tie;
}

static bool could_run(const rule_check *check, const int at[4])
{
    const loom_model *m = check->model;

    return !m || (tp_fits(m, at[LOOM_AXIS_TP]) && (int64_t)at[LOOM_AXIS_PP] * check->layout->vpp <= m->layers);
}

static void keep_nearest(near_layout best[3], int *count, near_layout candidate)
{
    int place = *count;

    while (place > 0 && best[place - 1].distance > candidate.distance)
        place--;
    if (place == 3)
        return;
    *count += *count < 3;
    for (int i = *count - 1; i > place; i--)
        best[i] = best[i - 1];
    best[place] = candidate;
}

static int nearest_layouts(const rule_check *check, near_layout best[3])
{
    int count = 0, world = check->world;

    for (int tp = 1; tp <= world; tp++)
        for (int cp = 1; world % tp == 0 && cp <= world / tp; cp++)
            for (int pp = 1; world / tp % cp == 0 && pp <= world / tp / cp; pp++) {
                near_layout candidate = {{tp, cp, 0, pp}, 0};
                if (world / tp / cp % pp != 0 || (cp > 1 && check->layout->cp == 1))
                    continue; /* nobody who did not ask for cp gets it offered */
                candidate.at[LOOM_AXIS_DP] = world / tp / cp / pp;
                candidate.distance = distance(check, candidate.at);
                if (could_run(check, candidate.at))
                    keep_nearest(best, &count, candidate);
            }
    return count;
}

static void check_world(rule_check *check)
{
    const loom_layout *l = check->layout;
    int64_t product = (int64_t)l->tp * l->cp * l->dp * l->pp;
    near_layout best[3];
    char text[TEXT_BYTES] = "";
    size_t used = 0;
    int count;

    if (check->world == 0 || product == check->world)
        return;
    count = has_room(check) ? nearest_layouts(check, best) : 0;
    for (int i = 0; i < count && used < sizeof text; i++) {
        const char *between = i == 0 ? "" : i + 1 == count ? " or " : ", ";
        used += (size_t)snprintf(text + used, sizeof text - used, "%stp%d ", between, best[i].at[LOOM_AXIS_TP]);
        if (l->cp > 1)
            used += (size_t)snprintf(text + used, sizeof text - used, "cp%d ", best[i].at[LOOM_AXIS_CP]);
        used += (size_t)snprintf(text + used, sizeof text - used, "pp%d dp%d", best[i].at[LOOM_AXIS_PP], best[i].at[LOOM_AXIS_DP]);
    }
    broken(check, "world", "tp=%d x pp=%d x cp=%d x dp=%d = %lld ranks needed, the world has %d; %s%s", l->tp, l->pp, l->cp, l->dp,
           (long long)product, check->world, count ? text : "no split of that world suits the model", count ? " would fit" : "");
}

/* --- tensor parallelism ----------------------------------------------------------------------------------------------- */

static const char *legal_tp(const rule_check *check, char *text, size_t bytes)
{
    value_list all = {0}, fitting = {0};
    char words_all[160], words_fitting[120];

    for (int64_t tp = 1; tp <= check->model->heads; tp++)
        if (tp_fits(check->model, tp)) {
            add_value(&all, tp);
            if (check->world > 0 && check->world % tp == 0)
                add_value(&fitting, tp);
        }
    words(&all, words_all, sizeof words_all);
    if (check->world > 0)
        snprintf(text, bytes, "%s do; of those %s fit a world of %d", words_all, words(&fitting, words_fitting, sizeof words_fitting), check->world);
    else
        snprintf(text, bytes, "%s do", words_all);
    return text;
}

static void check_tp(rule_check *check)
{
    const loom_model *m = check->model;
    int tp = check->layout->tp;
    char text[TEXT_BYTES];

    if (m->heads % tp != 0)
        broken(check, "tp-heads", "tp=%d does not divide %lld heads; %s", tp, (long long)m->heads, legal_tp(check, text, sizeof text));
    if (m->kv_heads % tp != 0 && tp % m->kv_heads != 0)
        broken(check, "tp-kv-heads", "tp=%d neither divides %lld kv heads nor is a multiple of them (of %lld heads); %s", tp,
               (long long)m->kv_heads, (long long)m->heads, legal_tp(check, text, sizeof text));
    if (m->ffn > 0 && tp > m->ffn)
        broken(check, "tp-ffn", "tp=%d is more than the %lld columns of the MLP; 1 to %lld are legal", tp, (long long)m->ffn, (long long)m->ffn);
    if (m->moe.experts > 0 && m->moe.shared > 0 && tp > m->moe.shared_ffn)
        broken(check, "tp-ffn", "tp=%d is more than the %lld columns of a shared expert; 1 to %lld are legal", tp, (long long)m->moe.shared_ffn,
               (long long)m->moe.shared_ffn);
    if (tp > m->vocab)
        broken(check, "tp-vocab", "tp=%d is more than the vocabulary of %lld", tp, (long long)m->vocab);
}

/* --- pipeline ----------------------------------------------------------------------------------------------------------- */

/* Layers of each chunk from layers of each stage, or evenly. */
static void fill_chunk_layers(loom_layout *l, int64_t layers)
{
    int n_chunks = l->pp * l->vpp, given = l->n_chunks;
    int64_t of_stage[LOOM_MAX_STAGES], sum = 0;

    for (int c = 0; c < given; c++)
        sum += l->chunk_layers[c];
    l->n_chunks = n_chunks;
    if (given == 0 || sum == 0) {
        for (int c = 0; c < n_chunks; c++)
            l->chunk_layers[c] = layers / n_chunks + (c < layers % n_chunks);
    } else if (given == l->pp && l->vpp > 1) {
        memcpy(of_stage, l->chunk_layers, sizeof *of_stage * (size_t)l->pp);
        for (int c = 0; c < n_chunks; c++) {
            int64_t whole = of_stage[loom_layout_stage_of_chunk(l, c)];
            int row = c / l->pp;
            l->chunk_layers[c] = whole / l->vpp + (row < whole % l->vpp);
        }
    } else if (given != n_chunks) {
        l->n_chunks = given; /* check_stage_layers() says that the count is wrong */
    }
}

static void check_stage_layers(rule_check *check)
{
    const loom_layout *l = check->layout;
    int64_t sum = 0;

    if (l->n_chunks != l->pp * l->vpp) {
        broken(check, "stage-layers", "layers_per_stage has %d entries; pp=%d%s", l->n_chunks, l->pp, l->vpp > 1 ? " x vpp stages' or chunks' are wanted" : " are wanted");
        return;
    }
    for (int c = 0; c < l->n_chunks; c++) {
        sum += l->chunk_layers[c];
        if (l->chunk_layers[c] < 0)
            broken(check, "stage-layers", "chunk %d has %lld layers; 0 is the least", c, (long long)l->chunk_layers[c]);
    }
    if (check->model && sum != check->model->layers)
        broken(check, "stage-layers", "layers_per_stage sums to %lld, the model has %lld layers", (long long)sum, (long long)check->model->layers);
}

static void check_pp_layers(rule_check *check)
{
    const loom_layout *l = check->layout;
    int64_t layers = check->model->layers;

    if ((int64_t)l->pp * l->vpp <= layers)
        return;
    if (l->vpp > 1 && l->pp <= layers)
        broken(check, "pp-layers", "pp=%d x vpp=%d = %d chunks, the model has %lld layers; at pp=%d vpp 1 to %lld are legal", l->pp, l->vpp,
               l->pp * l->vpp, (long long)layers, l->pp, (long long)(layers / l->pp));
    else
        broken(check, "pp-layers", "pp=%d, the model has %lld layers; pp 1 to %lld are legal", l->pp, (long long)layers, (long long)layers);
}

static void check_schedule(rule_check *check)
{
    const loom_layout *l = check->layout;
    const char *name = loom_schedule_kind_name(l->schedule);
    int64_t micro_batches = loom_layout_micro_batches(l), unit = l->micro_batch * l->dp;
    char nearest[64], batches[64];

    if (l->vpp != 1 && (l->schedule == LOOM_SCHEDULE_1F1B || l->schedule == LOOM_SCHEDULE_ZB_H1))
        broken(check, "schedule", "schedule=%s runs one chunk a stage, vpp=%d was asked; vpp=1, or schedule=interleaved", name, l->vpp);
    if (l->vpp != 2 && l->schedule == LOOM_SCHEDULE_ZB_V)
        broken(check, "schedule", "schedule=zb-v folds two chunks onto each stage, vpp=%d was asked; vpp=2", l->vpp);
    if (l->schedule == LOOM_SCHEDULE_INTERLEAVED && l->vpp > 1 && l->global_batch > 0 && l->global_batch % unit == 0 && micro_batches % l->pp != 0)
        broken(check, "vpp-micro-batches",
               "%lld micro-batches with schedule=interleaved, vpp=%d: pp=%d has to divide them; %s do (global_batch %s)", (long long)micro_batches,
               l->vpp, l->pp, nearest_multiples(micro_batches, l->pp, nearest, sizeof nearest),
               nearest_multiples(l->global_batch, unit * l->pp, batches, sizeof batches));
}

/* --- batch and sequence --------------------------------------------------------------------------------------------------- */

/* Micro-batches that make `batch` whole at `dp`. */
static const char *legal_micro_batches(int64_t batch, int64_t dp, char *text, size_t bytes)
{
    value_list list = {0};

    for (int64_t b = 1; batch % dp == 0 && b <= batch / dp; b++)
        if (batch / dp % b == 0)
            add_value(&list, b);
    return words(&list, text, bytes);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

static void check_batch(rule_check *check)
{
    const loom_layout *l = check->layout;
    int64_t unit = l->micro_batch * l->dp, fewer = common_divisor(l->global_batch, l->dp);
    char nearest[64], here[120], there[120], instead[160] = "";

    if (l->global_batch == 0 || l->global_batch % unit == 0 || !has_room(check)) {
        check->count += l->global_batch % unit != 0;
        return;
    }
    if (fewer != l->dp)
        snprintf(instead, sizeof instead, ", at dp=%lld %s", (long long)fewer, legal_micro_batches(l->global_batch, fewer, there, sizeof there));
    broken(check, "batch", "global_batch=%lld is not a multiple of micro_batch=%lld x dp=%d = %lld; %s are; micro_batch for %lld at dp=%d: %s%s",
           (long long)l->global_batch, (long long)l->micro_batch, l->dp, (long long)unit,
           nearest_multiples(l->global_batch, unit, nearest, sizeof nearest), (long long)l->global_batch, l->dp,
           legal_micro_batches(l->global_batch, l->dp, here, sizeof here), instead);
}

static void check_seq(rule_check *check)
{
    const loom_layout *l = check->layout;
    bool split = l->sequence_parallel && l->tp > 1;
    int64_t unit = loom_layout_padded_seq(l, 1);
    char nearest[64], rule[64] = "";

    if (l->cp > 1)
        snprintf(rule, sizeof rule, "2 x cp=%d%s", l->cp, split ? " x " : "");
    if (split)
        snprintf(rule + strlen(rule), sizeof rule - strlen(rule), "tp=%d (sequence_parallel)", l->tp);
    if (l->seq > 0 && l->seq % unit != 0 && !l->pad_seq)
        broken(check, "seq", "seq=%lld is not a multiple of %s = %lld; %s are", (long long)l->seq, rule, (long long)unit,
               nearest_multiples(l->seq, unit, nearest, sizeof nearest));
}

static void check_positions(rule_check *check)
{
    const loom_model *m = check->model;

    if (m->positions == LOOM_LEARNED && m->seq > 0 && check->layout->seq > m->seq)
        broken(check, "positions", "seq=%lld is longer than the model's table of %lld learned positions", (long long)check->layout->seq,
               (long long)m->seq);
}

/* --- context parallelism ---------------------------------------------------------------------------------------------------- */

/* Whether `parts` ranks of an all-to-all and tp can share the heads between them. */
static bool heads_split(const loom_model *model, int64_t parts, int tp)
{
    return loom_cp_heads_split(model->heads, model->kv_heads, parts * tp);
}

/* From one rank of cp to the next. */
static int cp_step(const loom_layout *l)
{
    int step = 1;

    for (int i = 0; i < 4 && l->order[i] != LOOM_AXIS_CP; i++)
        step *= loom_layout_degree(l, l->order[i]);
    return step;
}

/* Whether groups of u neighbours in cp never leave a fast domain. */
static bool stays_inside(const loom_layout *l, int u)
{
    return l->fast_ranks <= 0 || l->fast_ranks % (u * cp_step(l)) == 0;
}

/* An all-to-all sends each row once, a ring hands every block to everyone: the first as far as links are fast and heads last, the second beyond. */
static void choose_cp_kind(loom_layout *l, const loom_model *model)
{
    int u = l->cp;

    while (u > 1 && !(l->cp % u == 0 && heads_split(model, u, l->tp) && stays_inside(l, u)))
        u--;
    l->cp_kind = u == 1 ? LOOM_CP_RING : u == l->cp ? LOOM_CP_ULYSSES : LOOM_CP_HYBRID;
    l->cp_inner = l->cp_kind == LOOM_CP_HYBRID ? u : 0;
}

static void check_cp_heads(rule_check *check)
{
    const loom_layout *l = check->layout;
    const loom_model *m = check->model;
    value_list legal = {0};
    char text[120];
    bool inner = false;

    if (l->cp_inner > 0 && (l->cp_kind != LOOM_CP_HYBRID || l->cp == 1))
        broken(check, "cp-heads", "cp_inner=%d with cp=%d cp_kind=%s: only a hybrid over several ranks has an all-to-all of its own; leave it out",
               l->cp_inner, l->cp, loom_cp_kind_name(l->cp_kind));
    if (l->cp == 1)
        return;
    for (int64_t cp = 1; cp <= m->heads; cp++)
        if (heads_split(m, cp, l->tp))
            add_value(&legal, cp);
    for (int u = 2; u < l->cp; u++)
        inner |= l->cp % u == 0 && heads_split(m, u, l->tp) && (l->cp_inner == 0 || l->cp_inner == u);
    if (l->cp_kind == LOOM_CP_ULYSSES && !heads_split(m, l->cp, l->tp))
        broken(check, "cp-heads", "cp_kind=ulysses splits %lld heads over %lld kv heads by cp=%d x tp=%d = %d; at tp=%d cp %s do, or cp_kind=ring",
               (long long)m->heads, (long long)m->kv_heads, l->cp, l->tp, l->cp * l->tp, l->tp, words(&legal, text, sizeof text));
    if (l->cp_kind == LOOM_CP_HYBRID && !inner)
        broken(check, "cp-heads", "cp_kind=hybrid: %s of cp=%d above 1 and below it splits %lld heads over %lld kv heads further at tp=%d; "
               "at this tp the heads split by %s; cp_kind=ring has no such rule",
               l->cp_inner > 0 ? "cp_inner is no part that" : "no part", l->cp, (long long)m->heads, (long long)m->kv_heads, l->tp, words(&legal, text, sizeof text));
}

/* --- experts ------------------------------------------------------------------------------------------------------------------ */

/* How a degree came about, for the message. */
static const char *origin(const rule_check *check, loom_axis axis)
{
    if (check->layout->given & (1u << axis))
        return " (given)";
    if (check->filled == (int)axis)
        return " (what is left of the world)";
    return loom_layout_degree(check->layout, axis) == 1 ? " (default)" : "";
}

static void check_experts(rule_check *check)
{
    const loom_layout *l = check->layout;
    const loom_moe *moe = &check->model->moe;
    value_list legal = {0};
    char text[120];

    if (moe->experts == 0) {
        if (l->ep > 1 || l->etp > 1)
            broken(check, "experts", "ep=%d, etp=%d, but the model has no experts; ep=1 and etp=1", l->ep, l->etp);
        return;
    }
    for (int64_t ep = 1; ep <= moe->experts; ep++)
        if (moe->experts % ep == 0)
            add_value(&legal, ep);
    if (moe->experts % l->ep != 0)
        broken(check, "experts", "ep=%d does not divide %lld experts; %s do", l->ep, (long long)moe->experts, words(&legal, text, sizeof text));
    if (l->etp > moe->ffn)
        broken(check, "experts", "etp=%d is more than the %lld columns of an expert; 1 to %lld are legal", l->etp, (long long)moe->ffn,
               (long long)moe->ffn);
}

static void check_expert_ranks(rule_check *check)
{
    const loom_layout *l = check->layout;
    int64_t experts = check->model ? check->model->moe.experts : 0, needed = (int64_t)l->ep * l->etp;
    int stage = l->tp * l->cp * l->dp;
    value_list legal = {0};
    char text[120];

    if (stage % needed == 0)
        return;
    for (int64_t ep = 1; ep <= stage; ep++)
        if (stage % (ep * l->etp) == 0 && (experts == 0 || experts % ep == 0))
            add_value(&legal, ep);
    broken(check, "expert-ranks", "ep=%d%s x etp=%d%s = %lld has to divide tp=%d%s x cp=%d%s x dp=%d%s = %d ranks of a stage (x pp=%d: %lld ranks are "
           "needed, there are %d); at etp=%d ep %s would do",
           l->ep, origin(check, LOOM_AXIS_EP), l->etp, origin(check, LOOM_AXIS_ETP), (long long)needed, l->tp, origin(check, LOOM_AXIS_TP), l->cp,
           origin(check, LOOM_AXIS_CP), l->dp, origin(check, LOOM_AXIS_DP), stage, l->pp, (long long)needed * l->pp, stage * l->pp, l->etp,
           words(&legal, text, sizeof text));
}

/* --- all of them ---------------------------------------------------------------------------------------------------------------- */

static void check_model_rules(rule_check *check)
{
    check_tp(check);
    check_pp_layers(check);
    check_positions(check);
    check_cp_heads(check);
    check_experts(check);
}

int loom_layout_resolve(loom_layout *layout, const loom_model *model, int world, loom_rule_breach *breaches, int capacity)
{
    rule_check check = {.layout = layout, .model = model, .world = world, .filled = -1, .breaches = breaches, .capacity = capacity};
    int before;

    layout->ep += layout->ep == 0;
    layout->etp += layout->etp == 0;
    layout->vpp += layout->vpp == 0;
    fill_open_degree(&check);
    before = check.count;
    check_range(&check);
    check_order(&check);
    if (check.count > before)
        return check.count; /* the other rules divide by these */
    if (check.count == 0)
        check_world(&check); /* after a wrong auto the product means nothing */
    if (model && layout->cp_kind == LOOM_CP_AUTO)
        choose_cp_kind(layout, model);
    else if (layout->cp_kind == LOOM_CP_AUTO)
        broken(&check, "cp-heads", "cp_kind=auto is chosen by the model's heads, and there is no model; ring, allgather, ulysses or hybrid");
    if (model)
        fill_chunk_layers(layout, model->layers);
    else if (layout->n_chunks == 0)
        layout->n_chunks = layout->pp * layout->vpp;
    if (!model || (int64_t)layout->pp * layout->vpp <= model->layers)
        check_stage_layers(&check);
    if (model)
        check_model_rules(&check);
    check_schedule(&check);
    check_batch(&check);
    check_seq(&check);
    check_expert_ranks(&check);
    return check.count;
}

loom_status loom_layout_check(loom_layout *layout, const loom_model *model, int world)
{
    enum { MOST = 32 };
    loom_rule_breach breaches[MOST];
    char text[MOST * (TEXT_BYTES + 1)];
    size_t used = 0;
    int count = loom_layout_resolve(layout, model, world, breaches, MOST);

    if (count == 0)
        return LOOM_OK;
    for (int i = 0; i < count && i < MOST && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? "\n" : "", breaches[i].text);
    return loom_fail(LOOM_E_INVALID, "%s", text);
}
