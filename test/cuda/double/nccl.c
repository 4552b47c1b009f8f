/* Collectives, and messages from one rank to another. The device does all of it: read the peers' arenas, compute, write when all have read. */
#include "communicator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/reduce.h"

typedef enum call_kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV } call_kind;

typedef struct call {
    call_kind kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or peer */
    double_known known[2];
    ncclComm_t comm;
    cudaStream_t stream;
    bool done;   /* of a group */
    bool of_graph; /* which all its ranks have to agree on */
    bool posted; /* a send */
} call;

/* A collective, or messages that go on together. */
typedef struct nccl_op {
    double_op op;
    ncclComm_t comm;
    bool posted, computed;
    uint64_t sequence; /* of a collective, from 1 */
    char *result;
    int count;
    call calls[];
} nccl_op;

static size_t bytes_of(ncclDataType_t type)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return bytes[type];
}

static bool dtype_of(ncclDataType_t type, loom_dtype *dtype)
{
    static const int dtypes[] = {LOOM_I8, LOOM_U8, LOOM_I32, -1, LOOM_I64, -1, LOOM_F16, LOOM_F32, LOOM_F64, LOOM_BF16, LOOM_F8E4M3, LOOM_F8E5M2};

    *dtype = (loom_dtype)dtypes[type];
    return dtypes[type] >= 0;
}

void double_comm_fail(ncclComm_t comm, ncclResult_t error, const char *words)
{
    snprintf(comm->message, sizeof comm->message, "%s", words);
    fprintf(stderr, "double of NCCL, rank %d of %d: %s\n", comm->rank, comm->size, words);
    atomic_store(&comm->error, error);
}

/* --- collectives -------------------------------------------------------------------------------------------------------------------- */

static void post(nccl_op *n)
{
    const call *c = &n->calls[0];
    double_rank *mine = &n->comm->segment->ranks[n->comm->rank];

    n->sequence = ++n->comm->collectives;
    mine->post = (double_post){(int32_t)c->kind, (int32_t)c->type, (int32_t)c->op, c->root, c->of_graph, c->count, double_arena_offset(c->send), {c->known[0], c->known[1]}};
    atomic_store(&mine->posted, n->sequence);
    n->posted = true;
}

static bool all_posted(const nccl_op *n)
{
    for (int r = 0; r < n->comm->size; r++)
        if (atomic_load(&n->comm->segment->ranks[r].posted) < n->sequence)
            return false;
    return true;
}

static bool all_have_taken(const nccl_op *n)
{
    for (int r = 0; r < n->comm->size; r++)
        if (atomic_load(&n->comm->segment->ranks[r].taken) < n->sequence)
            return false;
    return true;
}

static const char *in_graph(const double_post *post)
{
    return post->of_graph ? " in a graph" : "";
}

/* The real library would hang, or give wrong sums. */
static bool agree(const nccl_op *n)
{
    const double_post *mine = &n->comm->segment->ranks[n->comm->rank].post;
    char words[200];

    for (int r = 0; r < n->comm->size; r++) {
        const double_post *other = &n->comm->segment->ranks[r].post;
        if (mine->kind == other->kind && mine->type == other->type && mine->op == other->op && mine->root == other->root &&
            mine->of_graph == other->of_graph && mine->count == other->count)
            continue;
        snprintf(words, sizeof words, "collective %llu: this rank calls kind %d, type %d, count %llu%s; rank %d kind %d, type %d, count %llu%s",
                 (unsigned long long)n->sequence, mine->kind, mine->type, (unsigned long long)mine->count, in_graph(mine), r, other->kind, other->type,
                 (unsigned long long)other->count, in_graph(other));
        double_comm_fail(n->comm, ncclInvalidUsage, words);
        return false;
    }
    return true;
}

static bool agree_on(const double_known *a, const double_known *b)
{
    return a->registered == b->registered && a->symmetric == b->symmetric && (!a->symmetric || a->offset == b->offset);
}

/* All ranks give memory that the communicator knows, or none; and what is symmetric lies at one place in all. */
static bool agree_on_memory(const nccl_op *n)
{
    const double_post *mine = &n->comm->segment->ranks[n->comm->rank].post;
    char words[200];

    for (int r = 0; r < n->comm->size; r++) {
        const double_post *other = &n->comm->segment->ranks[r].post;
        for (int i = 0; i < 2; i++) {
            const double_known *a = &mine->known[i], *b = &other->known[i];
            if (agree_on(a, b))
                continue;
            snprintf(words, sizeof words, "collective %llu, kind %d: what this rank %s is registered %d, symmetric %d, at %llu; on rank %d it is %d, %d, %llu",
                     (unsigned long long)n->sequence, mine->kind, i ? "receives" : "sends", a->registered, a->symmetric, (unsigned long long)a->offset, r,
                     b->registered, b->symmetric, (unsigned long long)b->offset);
            double_comm_fail(n->comm, ncclInvalidUsage, words);
            return false;
        }
    }
    return true;
}

static const char *input_of(const nccl_op *n, int rank)
{
    return n->comm->bases[rank] + n->comm->segment->ranks[rank].post.send;
}

static size_t result_bytes(const nccl_op *n)
{
    const call *c = &n->calls[0];

    return c->count * bytes_of(c->type) * (c->kind == ALL_GATHER ? (size_t)n->comm->size : 1);
}

static void reduce(nccl_op *n, size_t from, size_t bytes)
{
    static const loom_reduce_op ops[] = {[ncclSum] = LOOM_SUM, [ncclMax] = LOOM_MAX, [ncclMin] = LOOM_MIN, [ncclAvg] = LOOM_AVG};
    const call *c = &n->calls[0];
    const void *in[DOUBLE_RANKS_MAX];
    const loom_reducer *reducers[8];
    loom_dtype dtype;

    if (!dtype_of(c->type, &dtype) || c->op == ncclProd || loom_reducer_all(reducers, 8) < 1)
        abort();
    for (int r = 0; r < n->comm->size; r++)
        in[r] = input_of(n, r) + from;
    loom_reduce(reducers[0], n->result, in, n->comm->size, bytes / bytes_of(c->type), dtype, ops[c->op]);
}

static void compute(nccl_op *n)
{
    const call *c = &n->calls[0];
    size_t bytes = c->count * bytes_of(c->type);

    n->result = malloc(result_bytes(n) + 1);
    if (!n->result)
        abort();
    switch (c->kind) {
    case ALL_REDUCE:
        reduce(n, 0, bytes);
        break;
    case REDUCE_SCATTER:
        reduce(n, bytes * (size_t)n->comm->rank, bytes);
        break;
    case ALL_GATHER:
        for (int r = 0; r < n->comm->size; r++)
            memcpy(n->result + bytes * (size_t)r, input_of(n, r), bytes);
        break;
    default:
        memcpy(n->result, input_of(n, c->root), bytes);
    }
    n->computed = true;
    atomic_store(&n->comm->segment->ranks[n->comm->rank].taken, n->sequence);
}

static double_step run_collective(nccl_op *n)
{
    if (!n->posted)
        post(n);
    if (!n->computed) {
        if (!all_posted(n))
            return DOUBLE_WAIT;
        if (!agree(n) || !agree_on_memory(n))
            return DOUBLE_OVER;
        compute(n);
    }
    if (!all_have_taken(n))
        return DOUBLE_WAIT;
    memcpy(n->calls[0].recv, n->result, result_bytes(n));
    return DOUBLE_OVER;
}

/* --- messages ------------------------------------------------------------------------------------------------------------------------- */

static void run_send(ncclComm_t comm, call *c)
{
    double_lane *lane = &comm->segment->lanes[comm->rank][c->root];
    uint64_t number = comm->sent[c->root];

    if (!c->posted) {
        lane->post = (double_post){.type = (int32_t)c->type, .of_graph = c->of_graph, .count = c->count, .send = double_arena_offset(c->send), .known = {c->known[0]}};
        atomic_store(&lane->sent, number + 1);
        c->posted = true;
    }
    if (atomic_load(&lane->taken) > number) {
        comm->sent[c->root]++;
        c->done = true;
    }
}

static void run_recv(ncclComm_t comm, call *c)
{
    double_lane *lane = &comm->segment->lanes[c->root][comm->rank];
    char words[160];

    if (atomic_load(&lane->sent) <= comm->received[c->root])
        return;
    if (lane->post.known[0].registered != c->known[1].registered) {
        snprintf(words, sizeof words, "recv from %d of count %zu: of what is sent and what is received only one is registered", c->root, c->count);
        double_comm_fail(comm, ncclInvalidUsage, words);
    } else if (lane->post.count == c->count && lane->post.type == (int32_t)c->type && lane->post.of_graph == c->of_graph) {
        memmove(c->recv, comm->bases[c->root] + lane->post.send, c->count * bytes_of(c->type));
    } else {
        snprintf(words, sizeof words, "recv from %d of type %d, count %zu%s: the message has type %d, count %llu%s", c->root, c->type, c->count,
                 c->of_graph ? " in a graph" : "", lane->post.type, (unsigned long long)lane->post.count, in_graph(&lane->post));
        double_comm_fail(comm, ncclInvalidUsage, words);
    }
    comm->received[c->root]++;
    atomic_store(&lane->taken, comm->received[c->root]);
    c->done = true;
}

/* Messages to one peer go in order, those to several at once. */
static bool is_first_of_its_lane(const nccl_op *n, int i)
{
    for (int j = 0; j < i; j++)
        if (!n->calls[j].done && n->calls[j].kind == n->calls[i].kind && n->calls[j].root == n->calls[i].root)
            return false;
    return true;
}

static double_step run_messages(nccl_op *n)
{
    bool all = true;

    for (int i = 0; i < n->count; i++) {
        call *c = &n->calls[i];
        if (!c->done && is_first_of_its_lane(n, i)) {
            if (c->kind == SEND)
                run_send(n->comm, c);
            else
                run_recv(n->comm, c);
        }
        all &= c->done;
    }
    return all ? DOUBLE_OVER : DOUBLE_WAIT;
}

/* --- as work of a stream ------------------------------------------------------------------------------------------------------------------ */

static double_step run_op(double_op *op)
{
    nccl_op *n = (nccl_op *)op;
    _Atomic uint64_t *stuck = &n->comm->segment->ranks[n->comm->rank].stuck;
    double_step step;

    if (atomic_load(&n->comm->aborted) || atomic_load(&n->comm->error))
        return DOUBLE_OVER;
    step = n->calls[0].kind >= SEND ? run_messages(n) : run_collective(n);
    atomic_store(stuck, step == DOUBLE_WAIT);
    return step;
}

static bool peer_is_stuck(double_op *op)
{
    const nccl_op *n = (const nccl_op *)op;

    for (int r = 0; r < n->comm->size; r++)
        if (r != n->comm->rank && atomic_load(&n->comm->segment->ranks[r].stuck))
            return true;
    return false;
}

static void drop_op(double_op *op)
{
    nccl_op *n = (nccl_op *)op;

    double_comm_drop(n->comm);
    free(n->result);
    free(n);
}

static double_op *clone_op(const double_op *op);

static nccl_op *new_op(ncclComm_t comm, const call *calls, int count)
{
    nccl_op *n = calloc(1, sizeof *n + (size_t)count * sizeof *calls);

    if (!n)
        abort();
    n->comm = comm;
    n->count = count;
    memcpy(n->calls, calls, (size_t)count * sizeof *calls);
    n->op = (double_op){.run = run_op, .drop = drop_op, .wanted_by_peer = peer_is_stuck, .clone = clone_op, .order = &comm->order};
    atomic_fetch_add(&comm->users, 1);
    return n;
}

static double_op *clone_op(const double_op *op)
{
    const nccl_op *n = (const nccl_op *)op;
    nccl_op *clone = new_op(n->comm, n->calls, n->count);

    for (int i = 0; i < clone->count; i++)
        clone->calls[i].of_graph = true;
    return &clone->op;
}

/* --- groups ------------------------------------------------------------------------------------------------------------------------------ */

enum { GROUP_MAX = 256 };

/* What a group has called. A thread of the real library's launches it; here the first to ask about one of its communicators does, so that who does not ask finds nothing
 * in the stream. */
typedef struct double_job {
    int users; /* communicators */
    int count;
    nccl_op *ops[GROUP_MAX];
    cudaStream_t streams[GROUP_MAX];
} double_job;

static pthread_mutex_t jobs_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local struct {
    int depth, count;
    call calls[GROUP_MAX];
    double_job *job; /* of the group that ends */
} group;

void double_launch(ncclComm_t comm)
{
    double_job *job;

    pthread_mutex_lock(&jobs_lock);
    job = comm->job;
    comm->job = NULL;
    for (int i = 0; job && i < job->count; i++)
        if (double_push(job->streams[i], &job->ops[i]->op) != cudaSuccess)
            double_comm_fail(job->ops[i]->comm, ncclUnhandledCudaError, "a call cannot be launched");
    if (job) {
        job->count = 0;
        if (--job->users == 0)
            free(job);
    }
    pthread_mutex_unlock(&jobs_lock);
}

static void push(ncclComm_t comm, const call *calls, int count, cudaStream_t stream)
{
    double_job *job = group.job ? group.job : calloc(1, sizeof *job);

    if (!job)
        abort();
    group.job = job;
    job->ops[job->count] = new_op(comm, calls, count);
    job->streams[job->count++] = stream;
    if (comm->job == job)
        return;
    comm->job = job;
    job->users++;
}

/* All messages of one communicator are one piece of work. */
static ncclResult_t push_messages(int first)
{
    ncclComm_t comm = group.calls[first].comm;
    call together[GROUP_MAX];
    int count = 0;

    for (int i = first; i < group.count; i++)
        if (group.calls[i].comm == comm && group.calls[i].kind >= SEND && !group.calls[i].done) {
            if (group.calls[i].stream != group.calls[first].stream)
                return ncclInvalidUsage; /* legal, but none of ours does it */
            together[count++] = group.calls[i];
            group.calls[i].done = true;
        }
    push(comm, together, count, group.calls[first].stream);
    return ncclSuccess;
}

bool double_is_grouped(void)
{
    return group.depth > 0;
}

ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclSuccess;

    if (group.depth < 1 || --group.depth > 0)
        return group.depth < 0 ? ncclInvalidUsage : ncclSuccess;
    for (int i = 0; i < group.count && result == ncclSuccess; i++) {
        if (group.calls[i].kind < SEND)
            push(group.calls[i].comm, &group.calls[i], 1, group.calls[i].stream);
        else if (!group.calls[i].done)
            result = push_messages(i);
    }
    if (group.job && result == ncclSuccess)
        result = ncclInProgress;
    group.count = 0;
    group.job = NULL;
    double_end_grouped_closing();
    return result;
}

/* Bytes that a rank sends in all, and receives. */
static size_t sent_bytes(const call *c)
{
    return c->count * bytes_of(c->type) * (c->kind == REDUCE_SCATTER ? (size_t)c->comm->size : 1);
}

static size_t received_bytes(const call *c)
{
    return c->count * bytes_of(c->type) * (c->kind == ALL_GATHER ? (size_t)c->comm->size : 1);
}

static bool is_valid(const call *c)
{
    size_t send = sent_bytes(c), recv = received_bytes(c);

    if (c->root < 0 || c->root >= c->comm->size)
        return false;
    if (c->kind != RECV && (c->kind != BROADCAST || c->root == c->comm->rank) && send && !double_is_device(c->send, send))
        return false;
    return c->kind == SEND || !recv || double_is_device(c->recv, recv);
}

static ncclResult_t add(call c)
{
    ncclResult_t result;

    if (double_fails("nccl"))
        return ncclUnhandledCudaError;
    if ((result = double_comm_enter(c.comm)) != ncclSuccess)
        return result;
    if (!is_valid(&c))
        return ncclInvalidArgument;
    if (c.send)
        c.known[0] = double_find_registration(c.comm, c.send, sent_bytes(&c));
    if (c.recv)
        c.known[1] = double_find_registration(c.comm, c.recv, received_bytes(&c));
    ncclGroupStart();
    if (group.count == GROUP_MAX)
        abort();
    group.calls[group.count++] = c;
    result = ncclGroupEnd();
    return result;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return add((call){.kind = ALL_REDUCE, .send = send, .recv = recv, .count = count, .type = type, .op = op, .comm = comm, .stream = stream});
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t recvcount, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    return add((call){.kind = REDUCE_SCATTER, .send = send, .recv = recv, .count = recvcount, .type = type, .op = op, .comm = comm, .stream = stream});
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t sendcount, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    return add((call){.kind = ALL_GATHER, .send = send, .recv = recv, .count = sendcount, .type = type, .comm = comm, .stream = stream});
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
    return add((call){.kind = BROADCAST, .send = send, .recv = recv, .count = count, .type = type, .root = root, .comm = comm, .stream = stream});
}

ncclResult_t ncclSend(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return add((call){.kind = SEND, .send = buffer, .count = count, .type = type, .root = peer, .comm = comm, .stream = stream});
}

ncclResult_t ncclRecv(void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return add((call){.kind = RECV, .recv = buffer, .count = count, .type = type, .root = peer, .comm = comm, .stream = stream});
}
