/* Calls and ranks in words, for messages. */
#include <stdio.h>

#include "comm/transport.h"

const char *loom_call_describe(const loom_call *call, char text[LOOM_CALL_TEXT])
{
    const char *kind = loom_call_kind_name(call->kind), *comm = call->comm->name, *dtype = loom_dtype_name(call->dtype);
    unsigned long long sequence = call->sequence, tag = call->tag;

    switch (call->kind) {
    case LOOM_CALL_ALL_REDUCE:
    case LOOM_CALL_REDUCE_SCATTER:
        snprintf(text, LOOM_CALL_TEXT, "%s #%llu (%zu %s, %s) on comm \"%s\"", kind, sequence, call->count, dtype,
                 loom_reduce_op_name(call->op), comm);
        break;
    case LOOM_CALL_BROADCAST:
        snprintf(text, LOOM_CALL_TEXT, "%s #%llu (%zu %s from rank %d) on comm \"%s\"", kind, sequence, call->count, dtype, call->peer,
                 comm);
        break;
    case LOOM_CALL_SEND:
        snprintf(text, LOOM_CALL_TEXT, "%s #%llu (%zu %s to rank %d, tag %llu) on comm \"%s\"", kind, sequence, call->count, dtype,
                 call->peer, tag, comm);
        break;
    case LOOM_CALL_RECV:
        snprintf(text, LOOM_CALL_TEXT, "%s #%llu (%zu %s from rank %d, tag %llu) on comm \"%s\"", kind, sequence, call->count, dtype,
                 call->peer, tag, comm);
        break;
    case LOOM_CALL_BARRIER:
        snprintf(text, LOOM_CALL_TEXT, "%s \"%s\" #%llu on comm \"%s\"", kind, call->name, sequence, comm);
        break;
    case LOOM_CALL_SPLIT:
        snprintf(text, LOOM_CALL_TEXT, "%s #%llu on comm \"%s\"", kind, sequence, comm);
        break;
    default:
        snprintf(text, LOOM_CALL_TEXT, "%s #%llu (%zu %s) on comm \"%s\"", kind, sequence, call->count, dtype, comm);
        break;
    }
    return text;
}

const char *loom_rank_describe(const loom_comm *comm, int rank, char text[LOOM_RANK_TEXT])
{
    if (comm->members[rank] == rank)
        snprintf(text, LOOM_RANK_TEXT, "rank %d", rank);
    else
        snprintf(text, LOOM_RANK_TEXT, "rank %d (rank %d of the world)", rank, comm->members[rank]);
    return text;
}

const char *loom_missed_verb(loom_call_kind kind)
{
    switch (kind) {
    case LOOM_CALL_SEND:
        return "did not take it";
    case LOOM_CALL_RECV:
        return "did not send it";
    default:
        return "did not arrive";
    }
}
