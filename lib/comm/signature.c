/* The comparison that turns a silent wrong sum into an error. */
#include "comm/signature.h"

#include <string.h>

static loom_call_kind kind_of(const loom_signature *s)
{
    return (loom_call_kind)(s->what & 0xff);
}

static const char *describe(const loom_call *call, const loom_signature *s, char text[LOOM_CALL_TEXT])
{
    loom_call said = {.comm = call->comm, .sequence = call->sequence, .count = s->count, .peer = s->root};

    said.kind = kind_of(s);
    said.dtype = (loom_dtype)(s->what >> 8 & 0xff);
    said.op = (loom_reduce_op)(s->what >> 16 & 0xff);
    if (said.kind == LOOM_CALL_BARRIER)
        memcpy(said.name, s->name, sizeof said.name - 1);
    return loom_call_describe(&said, text);
}

/* What two signatures differ in, or NULL. */
static const char *difference(const loom_signature *a, const loom_signature *b)
{
    if (kind_of(a) != kind_of(b))
        return "call";
    if (kind_of(a) == LOOM_CALL_BARRIER)
        return strncmp(a->name, b->name, LOOM_COMM_NAME_BYTES) ? "name" : NULL;
    if (a->count != b->count)
        return "count";
    if ((a->what >> 8 & 0xff) != (b->what >> 8 & 0xff))
        return "dtype";
    if (a->what != b->what)
        return "op";
    return kind_of(a) == LOOM_CALL_BROADCAST && a->root != b->root ? "root" : NULL;
}

loom_status loom_signature_compare(const loom_call *call, const loom_signature *zero, const loom_signature *other, int r)
{
    const char *what = difference(zero, other);
    char here[LOOM_CALL_TEXT], there[LOOM_CALL_TEXT], first[LOOM_RANK_TEXT], second[LOOM_RANK_TEXT];

    if (!what)
        return LOOM_OK;
    return loom_fail(LOOM_E_MISMATCH, "%s mismatch: %s calls %s, %s calls %s", what, loom_rank_describe(call->comm, 0, first),
                     describe(call, zero, here), loom_rank_describe(call->comm, r, second), describe(call, other, there));
}

loom_status loom_signature_compare_counts(const loom_call *call, int from, int to, size_t sent, size_t expected)
{
    char a[LOOM_RANK_TEXT], b[LOOM_RANK_TEXT], what[LOOM_CALL_TEXT];

    if (sent == expected)
        return LOOM_OK;
    return loom_fail(LOOM_E_MISMATCH, "count mismatch in %s: %s sends %zu %s to %s, which expects %zu", loom_call_describe(call, what),
                     loom_rank_describe(call->comm, from, a), sent, loom_dtype_name(call->dtype), loom_rank_describe(call->comm, to, b),
                     expected);
}
