/* The two regions of tensor parallelism and the communication on their borders. */
#include <rankloom/tp.h>

#include "core/settings.h"
#include "core/try.h"
#include "tp/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNKS = 4, CHUNK_TOKENS = 512 /* of a product that still fills a GPU; nothing of this has been tuned on one */ };

/* CPU ranks communicate with the very cores that multiply: chunks would gain nothing. */
static loom_status choose_chunks(loom_tp *tp, loom_device_kind kind)
{
    int64_t asked = 0;
    loom_status status = loom_setting_i64(LOOM_SETTING_TP_CHUNKS, &asked);

    tp->chunks = asked ? asked : kind == LOOM_CUDA ? CHUNKS : 1;
    tp->chunk_tokens = asked ? 1 : CHUNK_TOKENS;
    return status;
}

loom_status loom_tp_open(loom_mesh *mesh, loom_kernels *kernels, loom_stream *compute, loom_tp **tp)
{
    loom_status status;
    loom_device *device = loom_stream_device(compute);
    loom_tp *t = calloc(1, sizeof *t);

    if (!t)
        return loom_fail(LOOM_E_MEMORY, "no memory for a tensor-parallel context");
    t->mesh = mesh;
    t->kernels = kernels;
    t->compute = compute;
    t->size = loom_comm_size(mesh->axis[LOOM_AXIS_TP]);
    t->rank = loom_comm_rank(mesh->axis[LOOM_AXIS_TP]);
    t->sequence_parallel = mesh->layout.sequence_parallel && t->size > 1;
    t->blocks = calloc(3 * (size_t)t->size, sizeof *t->blocks);
    if (!t->blocks) {
        status = loom_fail(LOOM_E_MEMORY, "no memory for %d tensor-parallel ranks", t->size);
        goto fail;
    }
    LOOM_TRY(choose_chunks(t, loom_device_get_kind(device)));
    LOOM_TRY(loom_stream_open(device, LOOM_STREAM_INLINE, "tp", &t->comm));
    LOOM_TRY(loom_event_open(device, &t->computed));
    LOOM_TRY(loom_event_open(device, &t->communicated));
    *tp = t;
    return LOOM_OK;

fail:
    loom_tp_close(t);
    return status;
}

void loom_tp_close(loom_tp *tp)
{
    if (!tp)
        return;
    loom_event_close(tp->communicated);
    loom_event_close(tp->computed);
    loom_stream_close(tp->comm);
    free(tp->blocks);
    free(tp);
}

int64_t loom_tp_local_tokens(const loom_tp *tp, int64_t tokens)
{
    return tp->sequence_parallel ? tokens / tp->size : tokens;
}

loom_gradient_form loom_tp_between_gradient(const loom_tp *tp)
{
    return tp->sequence_parallel ? LOOM_GRADIENT_PARTIAL : LOOM_GRADIENT_WHOLE;
}

void loom_tp_replicated(const loom_tp *tp, const char *name, int dims, const int64_t *shape, loom_shard *shard)
{
    memset(shard, 0, sizeof *shard);
    snprintf(shard->name, sizeof shard->name, "%s", name);
    shard->dims = dims;
    memcpy(shard->shape, shape, (size_t)dims * sizeof *shape);
    shard->split_dim = -1;
    shard->split_axis = LOOM_AXIS_TP;
    shard->holders = tp->size;
    shard->holder = tp->rank;
    shard->gradient = loom_tp_between_gradient(tp);
}

/* Sequence parallelism gathers and scatters equal blocks of rows; a remainder would need padding that nobody here may invent. */
static loom_status check_tokens(const loom_tp *tp, int64_t tokens, const char *call)
{
    if (tp->sequence_parallel && tokens % tp->size != 0)
        return loom_fail(LOOM_E_INVALID, "%s: sequence parallelism over tp=%d cannot split %lld tokens; %lld and %lld can be split", call,
                         tp->size, (long long)tokens, (long long)(tokens - tokens % tp->size),
                         (long long)(tokens - tokens % tp->size + tp->size));
    return LOOM_OK;
}

static loom_status follow(loom_stream *after, loom_event *event, loom_stream *before)
{
    loom_status status = loom_event_record(event, before);

    return status < 0 ? status : loom_stream_wait_event(after, event);
}

loom_status loom_tp_comm_follows(loom_tp *tp)
{
    return follow(tp->comm, tp->computed, tp->compute);
}

loom_status loom_tp_compute_follows(loom_tp *tp)
{
    return follow(tp->compute, tp->communicated, tp->comm);
}

static loom_status gather_rows(loom_tp *tp, const float *local, int64_t tokens, int64_t features, float *buffer, const float **full,
                               loom_stream *stream, const char *call)
{
    loom_status status;

    if (!tp->sequence_parallel) {
        *full = local;
        return LOOM_OK;
    }
    LOOM_TRY(check_tokens(tp, tokens, call));
    LOOM_TRY(loom_all_gather(tp->mesh->axis[LOOM_AXIS_TP], local, buffer, (size_t)(tokens / tp->size * features), LOOM_F32, stream));
    *full = buffer;
    return LOOM_OK;

fail:
    return status;
}

/* What leaves a region is summed: whole rows to everybody, or each rank its own rows. */
static loom_status sum_rows(loom_tp *tp, float *partial, int64_t tokens, int64_t features, float *local, loom_stream *stream, const char *call)
{
    loom_comm *comm = tp->mesh->axis[LOOM_AXIS_TP];
    loom_status status;

    if (tp->size == 1)
        return local == partial ? LOOM_OK : loom_stream_copy(stream, local, partial, (size_t)(tokens * features) * sizeof *local);
    if (!tp->sequence_parallel)
        return loom_all_reduce(comm, partial, local, (size_t)(tokens * features), LOOM_F32, LOOM_SUM, stream);
    LOOM_TRY(check_tokens(tp, tokens, call));
    return loom_reduce_scatter(comm, partial, local, (size_t)(tokens / tp->size * features), LOOM_F32, LOOM_SUM, stream);

fail:
    return status;
}

loom_status loom_tp_enter(loom_tp *tp, const float *x_local, int64_t tokens, int64_t features, float *buffer, const float **x_full)
{
    return gather_rows(tp, x_local, tokens, features, buffer, x_full, tp->compute, "loom_tp_enter");
}

loom_status loom_tp_enter_begin(loom_tp *tp, const float *x_local, int64_t tokens, int64_t features, float *buffer, const float **x_full)
{
    loom_status status = tp->sequence_parallel ? loom_tp_comm_follows(tp) : LOOM_OK;

    return status < 0 ? status : gather_rows(tp, x_local, tokens, features, buffer, x_full, tp->comm, "loom_tp_enter_begin");
}

loom_status loom_tp_enter_end(loom_tp *tp)
{
    return tp->sequence_parallel ? loom_tp_compute_follows(tp) : LOOM_OK;
}

loom_status loom_tp_leave_backward(loom_tp *tp, const float *dy_local, int64_t tokens, int64_t features, float *buffer, const float **dy_full)
{
    return gather_rows(tp, dy_local, tokens, features, buffer, dy_full, tp->compute, "loom_tp_leave_backward");
}

loom_status loom_tp_leave(loom_tp *tp, float *y_partial, int64_t tokens, int64_t features, float *y_local)
{
    return sum_rows(tp, y_partial, tokens, features, y_local, tp->compute, "loom_tp_leave");
}

loom_status loom_tp_enter_backward_begin(loom_tp *tp, float *dx_full, int64_t tokens, int64_t features, float *dx_local)
{
    loom_status status;

    if (tp->size == 1)
        return sum_rows(tp, dx_full, tokens, features, dx_local, tp->compute, "loom_tp_enter_backward_begin");
    LOOM_TRY(loom_tp_comm_follows(tp));
    return sum_rows(tp, dx_full, tokens, features, dx_local, tp->comm, "loom_tp_enter_backward_begin");

fail:
    return status;
}

loom_status loom_tp_enter_backward_end(loom_tp *tp)
{
    return tp->size == 1 ? LOOM_OK : loom_tp_compute_follows(tp);
}
