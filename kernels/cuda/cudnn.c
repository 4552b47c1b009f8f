/* Attention by cuDNN: f32 goes in and comes out, so q, k, v (and o, do) are rounded to bf16 into scratch, and what it writes is widened. Its log-sum-exp is ours.
 * Plans are kept by shape; making one takes up to seconds, since cuDNN compiles its kernels. */
#include "kernels/cuda/cudnn.h"

#include "core/log.h"
#include "kernels/cuda/bf16.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Earlier ones have no engine for lengths that are no multiple of 64, or known faults (9.10.0). */
enum { OLDEST = 91100, HEAD_MAX = 128, SEQ_UNIT = 128 };

/* What an engine may want of workspace, unless cuDNN is insisted on. Those of the gradient mostly keep a number for every query and key of every head: 192 MiB at
 * 8 sequences of 1024 with 12 heads, 1.1 GB at one of 4096 with 32, 17 GB at one of 16384. Scratch stays for good, where our own gradient needs a number a query. */
enum { WORKSPACE_MAX = 512 << 20 };

/* A shape, its plan, and whose attention it gets: FIRST is our own. */
typedef struct kept_plan {
    loom_cudnn_plan plan;
    loom_trial trial;
} kept_plan;

typedef struct dnn_state {
    loom_cudnn_library library;
    enum { NOT_OPENED, OPEN, MISSING } opened;
    bool insist; /* on cuDNN for all that it takes */
    cudnnHandle_t handle;
    kept_plan **plans;
    int n_plans;
} dnn_state;

/* --- the library --------------------------------------------------------------------------------------------------------------------- */

static loom_status open_library(dnn_state *s)
{
    char why[256] = "";
    cudnnStatus_t status;

    s->opened = MISSING; /* whatever comes: it is not tried again */
    if (!loom_cudnn_load(&s->library, why, sizeof why))
        return loom_fail(LOOM_E_UNSUPPORTED, "kernels: no cuDNN: %s", why);
    if (s->library.GetVersion() < OLDEST)
        return loom_fail(LOOM_E_UNSUPPORTED, "kernels: cuDNN %zu is too old; attention takes %d or later", s->library.GetVersion(), OLDEST);
    status = s->library.Create(&s->handle);
    if (status != CUDNN_STATUS_SUCCESS)
        return loom_fail(LOOM_E_UNSUPPORTED, "kernels: cuDNN cannot be opened: %s", s->library.GetErrorString(status));
    s->opened = OPEN;
    return LOOM_OK;
}

static bool is_open(dnn_state *s)
{
    if (s->opened == NOT_OPENED && open_library(s) < 0) {
        loom_log(LOOM_LOG_DEBUG, -1, "%s; attention is our own", loom_last_error());
        loom_clear_error();
    }
    return s->opened == OPEN;
}

loom_status loom_cudnn_open(bool insist, void **dnn)
{
    dnn_state *s = calloc(1, sizeof *s);
    loom_status status = LOOM_OK;

    if (!s)
        return loom_fail(LOOM_E_MEMORY, "kernels: no memory for the state of cuDNN");
    if (insist && (status = open_library(s)) < 0) {
        loom_cudnn_close(s);
        return status;
    }
    s->insist = insist;
    *dnn = s;
    return LOOM_OK;
}

void loom_cudnn_close(void *dnn)
{
    dnn_state *s = dnn;

    if (!s)
        return;
    for (int i = 0; i < s->n_plans; i++) {
        loom_trial_free(&s->plans[i]->trial);
        loom_cudnn_plan_close(&s->library, &s->plans[i]->plan);
        free(s->plans[i]);
    }
    free(s->plans);
    if (s->handle)
        s->library.Destroy(s->handle);
    free(s);
}

/* --- what it takes --------------------------------------------------------------------------------------------------------------------- */

/* Its causal mask begins at the same position on both sides; where all keys lie before the first query, there is nothing to hide. */
static bool takes_mask(const loom_attention_args *a, bool *causal)
{
    const loom_attention_mask *m = &a->mask;

    *causal = m->causal && m->q_start < m->k_start + a->k_seq - 1;
    return m->window == 0 && !m->q_positions_S && !m->k_positions_S && !m->q_documents_BS && !m->k_documents_BS &&
           (!*causal || (m->q_start == m->k_start && a->q_seq == a->k_seq));
}

static bool takes(const loom_attention_args *a, bool backward, loom_cudnn_shape *shape)
{
    bool causal;

    /* log-sum-exps are the caller's own, the rest is scratch */
    if (!takes_mask(a, &causal) || ((uintptr_t)a->lse_BHS & 15) != 0 || a->head_dim % 8 != 0 || a->head_dim > HEAD_MAX || a->q_seq % SEQ_UNIT != 0 || a->k_seq % SEQ_UNIT != 0 ||
        a->k_seq == 0)
        return false;
    *shape = (loom_cudnn_shape){.batch = a->batch,
                                .heads = a->heads,
                                .kv_heads = a->kv_heads,
                                .q_seq = a->q_seq,
                                .k_seq = a->k_seq,
                                .head_dim = a->head_dim,
                                .causal = causal,
                                .backward = backward};
    return true;
}

static int failed(const dnn_state *s, const char *what, cudnnStatus_t status)
{
    loom_fail(LOOM_E_UNSUPPORTED, "cuDNN: cannot %s: %s; RANKLOOM_CUDA_ATTENTION=own does without it", what, s->library.GetErrorString(status));
    return LOOM_GPU_REFUSED;
}

static kept_plan *keep_plan(dnn_state *s, const loom_cudnn_shape *shape)
{
    kept_plan **plans = realloc(s->plans, (size_t)(s->n_plans + 1) * sizeof *plans), *p = NULL;

    if (plans)
        s->plans = plans;
    if (!plans || !(p = calloc(1, sizeof *p)))
        return NULL;
    p->plan.shape = *shape;
    p->plan.workspace_max = s->insist ? INT64_MAX : WORKSPACE_MAX;
    p->trial.verdict = s->insist ? LOOM_TRIAL_SECOND : LOOM_TRIAL_UNDECIDED;
    return s->plans[s->n_plans++] = p;
}

/* A plan without an execution stays, and says that the shape is ours. */
static int make_plan(dnn_state *s, const loom_cudnn_shape *shape, kept_plan **made)
{
    kept_plan *p = keep_plan(s, shape);
    cudnnStatus_t status = p ? loom_cudnn_plan_make(&s->library, s->handle, &p->plan) : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;

    if (status != CUDNN_STATUS_SUCCESS && (s->insist || !p))
        return failed(s, "make a plan", status);
    if (!p->plan.execution) {
        loom_log(LOOM_LOG_DEBUG, -1, "attention%s of %lld heads of %lld over %lld keys is our own: %s", shape->backward ? "'s gradient" : "",
                 (long long)shape->heads, (long long)shape->head_dim, (long long)shape->k_seq,
                 status == CUDNN_STATUS_SUCCESS ? "cuDNN has no engine for it with sums in a fixed order and a workspace of 512 MiB at most" : s->library.GetErrorString(status));
        loom_cudnn_plan_close(&s->library, &p->plan);
    }
    *made = p;
    return 0;
}

/* *found NULL: cuDNN has no engine for the shape, or a graph is captured and there is no plan yet. */
static int find_plan(dnn_state *s, const loom_gpu *gpu, const loom_cudnn_shape *shape, kept_plan **found)
{
    kept_plan *p = NULL;
    int error = 0;

    for (int i = 0; i < s->n_plans && !p; i++)
        if (memcmp(&s->plans[i]->plan.shape, shape, sizeof *shape) == 0)
            p = s->plans[i];
    if (!p && !loom_gpu_is_capturing(gpu->stream))
        error = make_plan(s, shape, &p);
    *found = p && p->plan.execution ? p : NULL;
    return error;
}

/* --- executing --------------------------------------------------------------------------------------------------------------------------- */

/* Where the plan's tensors lie; NULL: the graph has no such. */
typedef struct places {
    void *at[LOOM_CUDNN_TENSORS];
    void *workspace;
} places;

static bool is_of_keys(int tensor)
{
    return tensor == LOOM_CUDNN_K || tensor == LOOM_CUDNN_V || tensor == LOOM_CUDNN_DK || tensor == LOOM_CUDNN_DV;
}

static size_t bytes_of(const loom_cudnn_shape *s, int tensor)
{
    if (tensor == LOOM_CUDNN_DELTA)
        return loom_gpu_scratch_bytes(s->batch * s->heads * s->q_seq * (int64_t)sizeof(float));
    return loom_gpu_scratch_bytes(2 * s->batch * s->head_dim * (is_of_keys(tensor) ? s->kv_heads * s->k_seq : s->heads * s->q_seq));
}

/* Scratch for all that is not the caller's: tensors, then cuDNN's own. */
static bool take_scratch(loom_gpu *gpu, const loom_cudnn_plan *p, places *to)
{
    static const enum loom_cudnn_tensor tensors[] = {LOOM_CUDNN_Q,  LOOM_CUDNN_K,  LOOM_CUDNN_V,  LOOM_CUDNN_O, /* the rest: backward only */
                                                     LOOM_CUDNN_DO, LOOM_CUDNN_DQ, LOOM_CUDNN_DK, LOOM_CUDNN_DV, LOOM_CUDNN_DELTA};
    int count = p->shape.backward ? (int)(sizeof tensors / sizeof *tensors) : 4;
    size_t bytes = 0;
    char *scratch;

    for (int i = 0; i < count; i++)
        bytes += bytes_of(&p->shape, tensors[i]);
    scratch = gpu->scratch(gpu, bytes + loom_gpu_scratch_bytes(p->workspace_bytes + 1)); /* never none: a pack wants a pointer */
    for (int i = 0; scratch && i < count; i++) {
        to->at[tensors[i]] = scratch;
        scratch += bytes_of(&p->shape, tensors[i]);
    }
    to->workspace = scratch;
    return scratch != NULL;
}

static cudnnStatus_t make_pack(const loom_cudnn_library *l, const places *where, cudnnBackendDescriptor_t pack)
{
    int64_t numbers[LOOM_CUDNN_TENSORS];
    void *pointers[LOOM_CUDNN_TENSORS];
    int64_t count = 0;
    cudnnStatus_t status;

    for (int i = 0; i < LOOM_CUDNN_TENSORS; i++)
        if (where->at[i]) {
            numbers[count] = i;
            pointers[count++] = where->at[i];
        }
    status = l->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, numbers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &where->workspace);
    return status == CUDNN_STATUS_SUCCESS ? l->BackendFinalize(pack) : status;
}

static int execute(const loom_gpu *gpu, const loom_cudnn_plan *p, const places *where)
{
    const dnn_state *s = gpu->dnn;
    const loom_cudnn_library *l = &s->library;
    cudnnBackendDescriptor_t pack;
    cudnnStatus_t status = l->SetStream(s->handle, (cudaStream_t)gpu->stream);

    if (status == CUDNN_STATUS_SUCCESS)
        status = l->BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status != CUDNN_STATUS_SUCCESS)
        return failed(s, "execute a plan", status);
    status = make_pack(l, where, pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = l->BackendExecute(s->handle, p->execution, pack);
    l->BackendDestroyDescriptor(pack);
    return status == CUDNN_STATUS_SUCCESS ? 0 : failed(s, "execute a plan", status);
}

/* A tensor of heads beside its bf16. */
static loom_bf16_rows rows_of(const loom_cudnn_shape *s, const places *where, int tensor, const float *wide, loom_bshk at)
{
    bool keys = is_of_keys(tensor);
    int64_t seq = keys ? s->k_seq : s->q_seq, width = (keys ? s->kv_heads : s->heads) * s->head_dim, token = at.token ? at.token : width;

    return (loom_bf16_rows){.wide = (float *)wide,
                            .narrow = where->at[tensor],
                            .matrices = s->batch,
                            .rows = seq,
                            .cols = width,
                            .ld = token,
                            .stride = at.sequence ? at.sequence : seq * token,
                            .narrow_ld = width};
}

static int narrow(const loom_gpu *gpu, const loom_cudnn_shape *s, const places *where, int tensor, const float *wide, loom_bshk at)
{
    const loom_bf16_rows r = rows_of(s, where, tensor, wide, at);

    return loom_gpu_narrow(gpu, &r);
}

static int widen(const loom_gpu *gpu, const loom_cudnn_shape *s, const places *where, int tensor, float *wide, loom_bshk at, bool accumulate)
{
    const loom_bf16_rows r = rows_of(s, where, tensor, wide, at);

    return loom_gpu_widen(gpu, &r, accumulate);
}

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        int error_ = (call);                                                                                                               \
        if (error_ != 0)                                                                                                                   \
            return error_;                                                                                                                 \
    } while (0)

static int narrow_inputs(const loom_gpu *gpu, const loom_cudnn_shape *s, const places *where, const loom_attention_args *a)
{
    TRY(narrow(gpu, s, where, LOOM_CUDNN_Q, a->q_BSHK, a->q_at));
    TRY(narrow(gpu, s, where, LOOM_CUDNN_K, a->k_BSGK, a->k_at));
    return narrow(gpu, s, where, LOOM_CUDNN_V, a->v_BSGK, a->v_at);
}

static float scale_of(const loom_attention_args *a)
{
    return a->scale != 0 ? a->scale : 1 / sqrtf((float)a->head_dim);
}

/* A call that cuDNN could make. */
typedef struct taken_call {
    kept_plan *plan; /* NULL: it could not */
    bool by_cudnn;   /* it does; else we do */
    places scratch;  /* of cuDNN */
} taken_call;

/* Where scratch for cuDNN cannot be had the shape is ours from now on, unless cuDNN is insisted on. loom_trial_over() follows. */
static int begin(loom_gpu *gpu, const loom_attention_args *a, bool backward, taken_call *c)
{
    dnn_state *s = gpu->dnn;
    loom_cudnn_shape shape;

    *c = (taken_call){0};
    if (takes(a, backward, &shape) && is_open(s))
        TRY(find_plan(s, gpu, &shape, &c->plan));
    if (!c->plan || loom_trial_next(&c->plan->trial, gpu) != LOOM_TRIAL_SECOND)
        return 0;
    c->by_cudnn = take_scratch(gpu, &c->plan->plan, &c->scratch);
    if (c->by_cudnn || s->insist)
        return c->by_cudnn ? 0 : LOOM_GPU_FAILED;
    loom_log(LOOM_LOG_DEBUG, -1, "cuDNN: %s; attention is our own", loom_last_error());
    loom_clear_error();
    c->plan->trial.verdict = LOOM_TRIAL_FIRST;
    return 0;
}

static int run_forward(const loom_gpu *gpu, const taken_call *c, const loom_attention_args *a)
{
    const loom_cudnn_plan *p = &c->plan->plan;
    float scale = scale_of(a), hidden = -INFINITY;
    places where = c->scratch;

    where.at[LOOM_CUDNN_LSE] = a->lse_BHS;
    where.at[LOOM_CUDNN_SCALE] = &scale;
    where.at[LOOM_CUDNN_HIDDEN] = p->shape.causal ? &hidden : NULL;
    TRY(narrow_inputs(gpu, &p->shape, &where, a));
    TRY(execute(gpu, p, &where));
    return widen(gpu, &p->shape, &where, LOOM_CUDNN_O, a->o_BSHK, a->o_at, false);
}

static int run_backward(const loom_gpu *gpu, const taken_call *c, const loom_attention_backward_args *a)
{
    const loom_attention_args *f = &a->forward;
    const loom_cudnn_plan *p = &c->plan->plan;
    const loom_cudnn_shape *shape = &p->shape;
    float scale = scale_of(f), hidden = -INFINITY, one = 1;
    places where = c->scratch;

    where.at[LOOM_CUDNN_LSE] = f->lse_BHS;
    where.at[LOOM_CUDNN_SCALE] = &scale;
    where.at[LOOM_CUDNN_HIDDEN] = shape->causal ? &hidden : NULL;
    where.at[LOOM_CUDNN_ONE] = &one;
    TRY(narrow_inputs(gpu, shape, &where, f));
    TRY(narrow(gpu, shape, &where, LOOM_CUDNN_O, f->o_BSHK, f->o_at));
    TRY(narrow(gpu, shape, &where, LOOM_CUDNN_DO, a->do_BSHK, a->do_at));
    TRY(execute(gpu, p, &where));
    TRY(widen(gpu, shape, &where, LOOM_CUDNN_DQ, a->dq_BSHK, a->dq_at, a->accumulate_dq));
    TRY(widen(gpu, shape, &where, LOOM_CUDNN_DK, a->dk_BSGK, a->dk_at, a->accumulate_dkv));
    return widen(gpu, shape, &where, LOOM_CUDNN_DV, a->dv_BSGK, a->dv_at, a->accumulate_dkv);
}

int loom_cudnn_attention(loom_gpu *gpu, const loom_attention_args *a, bool *done)
{
    taken_call c;
    int error = begin(gpu, a, false, &c);

    *done = c.plan != NULL;
    if (error || !c.plan)
        return error;
    error = c.by_cudnn ? run_forward(gpu, &c, a) : loom_gpu_own_attention(gpu, a);
    loom_trial_over(&c.plan->trial, gpu);
    return error;
}

int loom_cudnn_attention_backward(loom_gpu *gpu, const loom_attention_backward_args *a, bool *done)
{
    taken_call c;
    int error = begin(gpu, &a->forward, true, &c);

    *done = c.plan != NULL;
    if (error || !c.plan)
        return error;
    error = c.by_cudnn ? run_backward(gpu, &c, a) : loom_gpu_own_attention_backward(gpu, a);
    loom_trial_over(&c.plan->trial, gpu);
    return error;
}
