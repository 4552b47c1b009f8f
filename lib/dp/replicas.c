/* Whether all copies of the weights are the same bits: after a load, when a wrong file on one rank would otherwise train on unnoticed. */
#include "dp/dp.h"

#include "core/try.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 16 }; /* bytes hashed at a time */

/* FNV-1a over 64-bit words; the count of a parameter's bytes is a multiple of 4, and the tail is filled up with zeros. */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, at + i, bytes - i < 8 ? bytes - i : 8);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 32;
    }
    return hash;
}

/* 62 bits: neither the hash nor its negation overflows an i64. The value is whole. */
static loom_status hash_param(loom_dp *dp, const loom_param *param, int64_t *hash)
{
    unsigned char host[CHUNK];
    size_t bytes = (size_t)loom_shard_local_count(&param->shard) * sizeof(float);
    uint64_t h = 0xcbf29ce484222325u;
    loom_status status;

    for (size_t done = 0; done < bytes; done += CHUNK) {
        size_t n = bytes - done < CHUNK ? bytes - done : CHUNK;
        LOOM_TRY(loom_stream_copy(dp->compute, host, (const char *)param->value + done, n));
        LOOM_TRY(loom_stream_wait(dp->compute));
        h = hash_bytes(h, host, n);
    }
    *hash = (int64_t)(h >> 2);
    return LOOM_OK;

fail:
    return status;
}

/* Every rank gives (hash, -hash) of each parameter; the maxima are opposite exactly where all are equal. */
static loom_status give_hashes(loom_dp *dp, loom_param *const *params, int count, int64_t *pair)
{
    loom_status status = LOOM_OK;

    for (int i = 0; i < count && status >= 0; i++) {
        int64_t both[2];
        if (params[i]->value_cut && (i == 0 || !params[i - 1]->value_cut || params[i - 1]->unit != params[i]->unit))
            LOOM_TRY(loom_dp_gather_weights(dp, params[i]->unit));
        LOOM_TRY(hash_param(dp, params[i], &both[0]));
        both[1] = -both[0];
        LOOM_TRY(loom_stream_copy(dp->compute, pair + 2 * i, both, sizeof both));
        LOOM_TRY(loom_stream_wait(dp->compute));
    }

fail:
    return status;
}

static loom_status first_difference(loom_dp *dp, loom_comm *comm, loom_param *const *params, int count, const int64_t *pair)
{
    loom_status status = LOOM_OK;

    for (int i = 0; i < count && status >= 0; i++) {
        int64_t most[2];
        LOOM_TRY(loom_stream_copy(dp->compute, most, pair + 2 * i, sizeof most));
        LOOM_TRY(loom_stream_wait(dp->compute));
        if (most[0] != -most[1])
            return loom_fail(LOOM_E_MISMATCH, "%s: its copies on the %d ranks of the %s group are not the same bits; were all loaded from one file?",
                             params[i]->shard.name, loom_comm_size(comm), loom_comm_name(comm));
    }

fail:
    return status;
}

static loom_status compare(loom_dp *dp, loom_comm *comm, loom_param *const *params, int count)
{
    int64_t *pair = NULL;
    loom_status status;

    LOOM_TRY(loom_alloc(dp->device, 2 * (size_t)count * sizeof *pair, LOOM_MEM_OTHER, (void **)&pair));
    LOOM_TRY(give_hashes(dp, params, count, pair));
    LOOM_TRY(loom_all_reduce(comm, pair, pair, 2 * (size_t)count, LOOM_I64, LOOM_MAX, dp->compute));
    LOOM_TRY(loom_stream_wait(dp->compute));
    status = first_difference(dp, comm, params, count, pair);

fail:
    loom_free(dp->device, pair);
    return status;
}

/* The parameters of this rank of which every rank of `comm` has a copy, in the caller's order. */
static loom_status copies_in(loom_dp *dp, const loom_comm *comm, loom_param **params, int *count)
{
    *count = 0;
    for (const loom_dp_class *c = dp->class_; c < dp->class_ + dp->classes; c++)
        for (int i = 0; i < c->params; i++) {
            loom_comm *holders;
            loom_status status = loom_dp_holders(dp->mesh, &c->param[i]->shard, &holders);
            if (status < 0)
                return status;
            if ((c->reduce == comm && !c->cut_value) || c->tied == comm || holders == comm)
                params[(*count)++] = c->param[i];
        }
    return LOOM_OK;
}

/* Goes through all groups even after a difference: the other ranks of the next group may know of none and call. */
loom_status loom_dp_values_changed(loom_dp *dp)
{
    const loom_mesh *mesh = dp->mesh;
    loom_comm *const group[] = {mesh->gradient, mesh->axis[LOOM_AXIS_EDP], mesh->axis[LOOM_AXIS_TP], mesh->axis[LOOM_AXIS_ETP], mesh->kv, mesh->tied};
    loom_param **params = malloc((size_t)(dp->places + 1) * sizeof *params);
    loom_status status = LOOM_OK, differs = LOOM_OK;
    char message[1024] = "";

    if (!params)
        return loom_fail(LOOM_E_MEMORY, "no memory to compare %d parameters", dp->places);
    for (size_t i = 0; i < sizeof group / sizeof *group && loom_device_get_kind(dp->device) != LOOM_DRY; i++) {
        int count = 0;
        if (!group[i] || loom_comm_size(group[i]) == 1)
            continue;
        LOOM_TRY(copies_in(dp, group[i], params, &count));
        if (count == 0 || (status = compare(dp, group[i], params, count)) >= 0)
            continue;
        if (status != LOOM_E_MISMATCH)
            break;
        if (differs >= 0)
            snprintf(message, sizeof message, "%s", loom_last_error());
        differs = status;
        status = LOOM_OK;
    }
    if (status >= 0 && differs < 0)
        status = loom_fail(differs, "%s", message);

fail:
    free(params);
    return status;
}
