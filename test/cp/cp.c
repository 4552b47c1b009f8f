/* Context parallelism by itself: where tokens lie, every kind against whole sequences, what travels, what is refused. */
#include "check.h"
#include "harness/mesh.h"
#include "harness/on_ranks.h"
#include "whole.h"

#include <rankloom/cp.h>
#include <rankloom/dp.h>

#include <math.h>

static const loom_cp_kind kinds[] = {LOOM_CP_RING, LOOM_CP_ALLGATHER, LOOM_CP_ULYSSES, LOOM_CP_HYBRID};
enum { KINDS = 4 };

/* --- the cut: case A08 ----------------------------------------------------------------------------------------------------------------- */

static void a_rank_holds_an_early_and_a_late_chunk(void **state)
{
    static const int32_t cp2[2][8] = {{0, 1, 2, 3, 12, 13, 14, 15}, {4, 5, 6, 7, 8, 9, 10, 11}};
    static const int32_t cp4[4][4] = {{0, 1, 14, 15}, {2, 3, 12, 13}, {4, 5, 10, 11}, {6, 7, 8, 9}};
    int32_t mine[8];

    (void)state;
    for (int r = 0; r < 2; r++) {
        loom_cp_split(16, 2, r, mine);
        assert_memory_equal(mine, cp2[r], sizeof cp2[r]);
    }
    for (int r = 0; r < 4; r++) {
        loom_cp_split(16, 4, r, mine);
        assert_memory_equal(mine, cp4[r], sizeof cp4[r]);
    }
}

static void every_token_is_on_one_rank_and_causal_work_is_equal(void **state)
{
    int32_t mine[48];

    (void)state;
    for (int size = 1; size <= 6; size++) {
        int held[48] = {0};

        for (int r = 0; r < size; r++) {
            int64_t work = 0;

            loom_cp_split(48 / (2 * size) * 2 * size, size, r, mine);
            for (int i = 0; i < 48 / (2 * size) * 2; i++) {
                held[mine[i]]++;
                work += mine[i] + 1;
            }
            if (48 % (2 * size) == 0)
                assert_int_equal(work, 48 * 49 / 2 / size);
        }
        for (int i = 0; i < 48 / (2 * size) * 2 * size; i++)
            assert_int_equal(held[i], 1);
    }
}

/* --- an attention on ranks ----------------------------------------------------------------------------------------------------------------- */

typedef struct fixture {
    loom_comm *world;
    loom_mesh *mesh;
    loom_kernels *kernels;
    loom_stream *stream;
} fixture;

static fixture open_mesh(loom_comm *world, loom_stream *stream)
{
    fixture f = {.world = world, .stream = stream};

    f.mesh = test_mesh(world, (loom_layout){.cp = loom_comm_size(world), .seq = 2 * loom_comm_size(world)}, NULL);
    assert_ok(loom_kernels_open(loom_comm_device(world), NULL, &f.kernels));
    return f;
}

static void close_mesh(fixture *f)
{
    loom_kernels_close(f->kernels);
    loom_mesh_close(f->mesh);
}

/* What a rank computes with: q, k and v in one fused buffer of rows [q, k, v], their gradients in another. */
typedef struct job {
    whole_shape shape;
    loom_cp *cp;
    int64_t local, row, tokens;
    float *qkv, *d_qkv, *o, *d_o, *lse, *saved;
    int32_t *documents;
    loom_attention_backward_args call;
} job;

static void *room(const fixture *f, int64_t count)
{
    void *memory;

    assert_ok(loom_alloc(loom_comm_device(f->world), (size_t)count * 4, LOOM_MEM_OTHER, &memory));
    return memory;
}

static loom_attention_backward_args call_of(const job *j)
{
    const whole_shape *s = &j->shape;
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    loom_bshk at = {.token = j->row};

    return (loom_attention_backward_args){
        .forward = {.o_BSHK = j->o, .lse_BHS = j->lse, .q_BSHK = j->qkv, .k_BSGK = j->qkv + q, .v_BSGK = j->qkv + q + kv, .q_at = at, .k_at = at,
                    .v_at = at, .batch = s->batch, .heads = s->heads, .kv_heads = s->kv_heads, .q_seq = j->local, .k_seq = j->local,
                    .head_dim = s->head_dim, .mask = {.causal = true, .window = s->window, .q_documents_BS = s->documents ? j->documents : NULL}},
        .do_BSHK = j->d_o, .dq_BSHK = j->d_qkv, .dk_BSGK = j->d_qkv + q, .dv_BSGK = j->d_qkv + q + kv, .dq_at = at, .dk_at = at, .dv_at = at};
}

static job open_job(const fixture *f, loom_cp_kind kind, whole_shape s)
{
    job j = {.shape = s};
    loom_cp_config config = {kind, s.batch, s.seq, s.heads, s.kv_heads, s.head_dim, .documents = s.documents};

    assert_ok(loom_cp_open(f->mesh, f->kernels, f->stream, &config, &j.cp));
    j.local = loom_cp_local_seq(j.cp);
    j.tokens = s.batch * j.local;
    j.row = (s.heads + 2 * s.kv_heads) * s.head_dim;
    j.qkv = room(f, j.tokens * j.row);
    j.d_qkv = room(f, j.tokens * j.row);
    j.o = room(f, j.tokens * s.heads * s.head_dim);
    j.d_o = room(f, j.tokens * s.heads * s.head_dim);
    j.lse = room(f, j.tokens * s.heads);
    j.documents = room(f, j.tokens);
    j.saved = room(f, loom_cp_saved(j.cp));
    j.call = call_of(&j);
    return j;
}

static void close_job(const fixture *f, job *j)
{
    void *const all[] = {j->qkv, j->d_qkv, j->o, j->d_o, j->lse, j->documents, j->saved};

    loom_cp_close(j->cp);
    for (int i = 0; i < 7; i++)
        loom_free(loom_comm_device(f->world), all[i]);
}

static void take(const whole *w, const double *from, int64_t heads, int64_t token, int64_t position, int64_t b, float *to, int64_t row)
{
    int64_t width = heads * w->shape.head_dim;

    for (int64_t i = 0; i < width; i++)
        to[token * row + i] = (float)from[(b * w->shape.seq + position) * width + i];
}

static void fill_job(job *j, const whole *w)
{
    const whole_shape *s = &j->shape;
    const int32_t *positions = loom_cp_positions(j->cp);
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;

    for (int64_t t = 0; t < j->tokens; t++) {
        int64_t b = t / j->local, p = positions[t];

        take(w, w->q, s->heads, t, p, b, j->qkv, j->row);
        take(w, w->k, s->kv_heads, t, p, b, j->qkv + q, j->row);
        take(w, w->v, s->kv_heads, t, p, b, j->qkv + q + kv, j->row);
        take(w, w->d_o, s->heads, t, p, b, j->d_o, q);
        j->documents[t] = whole_document(s, b, p);
    }
}

/* Forward; then what backward may not need is destroyed; then backward. */
static void run_job(const fixture *f, job *j)
{
    assert_ok(loom_cp_attention(j->cp, &j->call.forward, j->saved));
    assert_ok(loom_stream_wait(f->stream));
    if (loom_cp_saved(j->cp) > 0)
        for (int64_t i = 0; i < j->tokens * j->row; i++)
            j->qkv[i] = NAN;
    assert_ok(loom_cp_attention_backward(j->cp, &j->call, j->saved));
    assert_ok(loom_stream_wait(f->stream));
}

static void compare(const job *j, const char *what, const float *got, int64_t row, const double *want, int64_t heads, double scale)
{
    int64_t width = heads * j->shape.head_dim;
    const int32_t *positions = loom_cp_positions(j->cp);

    for (int64_t t = 0; t < j->tokens; t++)
        for (int64_t i = 0; i < width; i++) {
            double wanted = want[(t / j->local * j->shape.seq + positions[t]) * width + i] * scale;

            if (!(fabs(got[t * row + i] - wanted) <= 4e-6)) /* sums of at most 64 products of numbers up to about 4, in f32 */
                fail_msg("%s: position %d, element %lld is %.9g, not %.9g", what, positions[t], (long long)i, got[t * row + i], wanted);
        }
}

static void compare_job(const job *j, const whole *w, double times)
{
    const whole_shape *s = &j->shape;
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;

    compare(j, "o", j->o, q, w->o, s->heads, 1);
    compare(j, "dq", j->d_qkv, j->row, w->dq, s->heads, times);
    compare(j, "dk", j->d_qkv + q, j->row, w->dk, s->kv_heads, times);
    compare(j, "dv", j->d_qkv + q + kv, j->row, w->dv, s->kv_heads, times);
}

/* Whether this kind can split these heads over so many ranks; the refusals have a test of their own. */
static bool splits(loom_cp_kind kind, int size, const whole_shape *s)
{
    int u = kind == LOOM_CP_ULYSSES ? size : 1;

    if (kind == LOOM_CP_HYBRID)
        u = size == 4 ? 2 : size == 6 ? 3 : 0;
    return u > 0 && s->heads % u == 0 && (s->kv_heads % u == 0 || u % s->kv_heads == 0);
}

static const whole_shape shapes[] = {
    {1, 24, 1, 1, 5},                        /* one head of an odd size */
    {2, 24, 12, 3, 4},                       /* grouped heads */
    {3, 48, 4, 4, 8, .window = 7},           /* a window that crosses chunks */
    {2, 48, 12, 1, 3, .documents = WHOLE_MIXED}, /* one kv head for all; packed documents */
    {1, 24, 12, 6, 2, .window = 5, .documents = WHOLE_MIXED},
    {1, 48, 12, 3, 4, .documents = WHOLE_ONE},     /* over all shards */
    {2, 24, 12, 3, 4, .documents = WHOLE_SINGLES}, /* a query sees itself, and nothing of any other rank */
};

static void one_shape(const fixture *f, loom_cp_kind kind, const whole *w)
{
    job j = open_job(f, kind, w->shape);

    fill_job(&j, w);
    run_job(f, &j);
    compare_job(&j, w, 1);
    if (loom_cp_saved(j.cp) > 0)
        fill_job(&j, w);
    j.call.accumulate_dq = j.call.accumulate_dkv = true;
    run_job(f, &j);
    compare_job(&j, w, 2);
    close_job(f, &j);
}

static void all_kinds_and_shapes(loom_comm *world, loom_stream *stream)
{
    fixture f = open_mesh(world, stream);

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        whole w = whole_compute(shapes[i]);

        for (int k = 0; k < KINDS; k++)
            if (splits(kinds[k], loom_comm_size(world), &shapes[i]))
                one_shape(&f, kinds[k], &w);
        whole_free(&w);
    }
    close_mesh(&f);
}

static void every_kind_gives_the_attention_of_whole_sequences(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 6};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        on_ranks(sizes[i], all_kinds_and_shapes);
}

/* --- closed forms: case A08 -------------------------------------------------------------------------------------------------------------- */

static const double a08_dv[16] = {3.3807289932, 2.3807289932, 1.8807289932, 1.5473956599, 1.2973956599, 1.0973956599, 0.9307289932, 0.7878718504,
                                  0.6628718504, 0.5517607393, 0.4517607393, 0.3608516484, 0.277518315,  0.2005952381, 0.1291666667, 0.0625};

/* With q = 0 a row is the plain mean of what it sees: v = position gives half the position. */
static void means(loom_comm *world, loom_stream *stream)
{
    fixture f = open_mesh(world, stream);

    for (int k = 0; k < KINDS; k++) {
        whole_shape shape = {1, 16, 4, 4, 1};
        job j;

        if (!splits(kinds[k], loom_comm_size(world), &shape))
            continue;
        j = open_job(&f, kinds[k], shape);
        const int32_t *positions = loom_cp_positions(j.cp);
        for (int64_t t = 0; t < j.tokens; t++)
            for (int h = 0; h < 4; h++) {
                j.qkv[t * 12 + h] = 0;
                j.qkv[t * 12 + 4 + h] = (float)h;
                j.qkv[t * 12 + 8 + h] = (float)positions[t];
                j.d_o[t * 4 + h] = 1;
            }
        run_job(&f, &j);
        for (int64_t t = 0; t < j.tokens; t++)
            for (int h = 0; h < 4; h++) {
                assert_true(fabs(j.o[t * 4 + h] - 0.5 * positions[t]) <= 2e-6);
                assert_true(fabs(j.d_qkv[t * 12 + 8 + h] - a08_dv[positions[t]]) <= 2e-6);
                assert_true(fabs(j.d_qkv[t * 12 + 4 + h]) <= 2e-6);
            }
        close_job(&f, &j);
    }
    close_mesh(&f);
}

static void causal_means_have_their_closed_form_on_two_and_four_ranks(void **state)
{
    (void)state;
    on_ranks(2, means);
    on_ranks(4, means);
}

/* --- one loss over unequal ranks: case A05 -------------------------------------------------------------------------------------------------- */

/* The loss of token t is w * (t + 1), so the gradient of w is the mean of what is counted: 3.5 by the global count. */
static void masked_loss(loom_comm *world, loom_stream *stream)
{
    static const int mask[8] = {1, 1, 1, 0, 0, 0, 0, 1};
    fixture f = open_mesh(world, stream);
    loom_param w = {.shard = {.name = "w", .dims = 1, .shape = {1}, .split_dim = -1, .split_axis = LOOM_AXIS_TP, .holders = 1}};
    loom_param_list params = {0};
    loom_dp *dp;
    loom_dp_result result;
    double sums[2] = {0};
    int32_t mine[4];

    assert_ok(loom_param_list_add(&params, &w));
    assert_ok(loom_dp_open(f.mesh, &params, &(loom_dp_config){.adamw = {0.9, 0.95, 1e-8, 0, 0}}, stream, &dp));
    assert_ok(loom_dp_begin(dp));
    loom_cp_split(8, 2, loom_comm_rank(world), mine);
    for (int i = 0; i < 4; i++)
        if (mask[mine[i]]) {
            sums[0] += mine[i] + 1;
            sums[1] += 1;
        }
    assert_int_equal(sums[1], loom_comm_rank(world) == 0 ? 3 : 1);
    w.gradient[0] = (float)sums[0];
    assert_ok(loom_dp_sum(dp, sums, 2));
    assert_true(sums[0] / sums[1] == 3.5);
    assert_ok(loom_dp_reduce_only(dp, sums[1], &result));
    assert_true(fabs(result.grad_norm - 3.5) <= 1e-6);
    assert_true(w.gradient[0] == 14);
    loom_dp_close(dp);
    loom_param_list_free(&params);
    close_mesh(&f);
}

static void a_loss_is_divided_by_the_tokens_counted_on_all_ranks(void **state)
{
    (void)state;
    on_ranks(2, masked_loss);
}

/* --- laws ------------------------------------------------------------------------------------------------------------------------------------ */

static void twice(loom_comm *world, loom_stream *stream)
{
    fixture f = open_mesh(world, stream);
    whole w = whole_compute((whole_shape){2, 40, 4, 2, 6, .documents = WHOLE_MIXED});
    loom_ledger before, after;

    for (int k = 0; k < KINDS; k++) {
        job j = open_job(&f, kinds[k], w.shape);
        size_t bytes = (size_t)(j.tokens * j.row) * sizeof(float);
        float *first = malloc(bytes);

        assert_non_null(first);
        fill_job(&j, &w);
        run_job(&f, &j);
        memcpy(first, j.d_qkv, bytes);
        fill_job(&j, &w);
        loom_device_ledger(loom_comm_device(world), &before);
        run_job(&f, &j);
        loom_device_ledger(loom_comm_device(world), &after);
        assert_memory_equal(first, j.d_qkv, bytes);
        assert_int_equal(before.allocations, after.allocations); /* the kernels had all they need from the first call */
        free(first);
        close_job(&f, &j);
    }
    whole_free(&w);
    close_mesh(&f);
}

static void two_runs_give_the_same_bits_and_a_call_allocates_nothing(void **state)
{
    (void)state;
    on_ranks(4, twice);
}

/* One after the other in one object: long sequences, one short one, long ones again. */
static void shrink_and_grow(loom_comm *world, loom_stream *stream)
{
    fixture f = open_mesh(world, stream);
    whole w = whole_compute((whole_shape){2, 48, 4, 2, 6}), little = whole_compute((whole_shape){1, 16, 4, 2, 6});

    for (int k = 0; k < KINDS; k++) {
        job j = open_job(&f, kinds[k], w.shape), small = j;

        assert_ok(loom_cp_reshape(j.cp, 1, 16));
        small.shape = little.shape;
        small.local = small.tokens = loom_cp_local_seq(j.cp);
        small.call = call_of(&small);
        fill_job(&small, &little);
        run_job(&f, &small);
        compare_job(&small, &little, 1);
        assert_ok(loom_cp_reshape(j.cp, 2, 48));
        fill_job(&j, &w);
        run_job(&f, &j);
        compare_job(&j, &w, 1);
        assert_refused(loom_cp_reshape(j.cp, 3, 48), LOOM_E_INVALID, "at most 2 of 48");
        close_job(&f, &j);
    }
    whole_free(&w);
    whole_free(&little);
    close_mesh(&f);
}

static void another_shape_gives_its_own_attention(void **state)
{
    (void)state;
    on_ranks(4, shrink_and_grow);
}

/* --- what travels ------------------------------------------------------------------------------------------------------------------------------ */

typedef struct law {
    loom_cp_kind kind;
    int size;
    whole_shape shape;
    uint64_t forward, backward;
} law;

static uint64_t bytes_of(const loom_cp *cp)
{
    loom_traffic traffic;
    uint64_t sum = 0;

    loom_cp_traffic(cp, &traffic);
    for (int kind = 0; kind < LOOM_CALL_KINDS; kind++)
        sum += traffic.bytes[kind];
    return sum;
}

/* Floats by the table of cp.h: KV = B S/cp 2 G K, Q = B S/cp H K of 2 x 64/cp tokens, 8 heads, K = 4. */
static const law laws[] = {
    {LOOM_CP_RING, 4, {2, 64, 8, 2, 4}, 3 * 512, 2 * 3 * 512},
    {LOOM_CP_ALLGATHER, 4, {2, 64, 8, 2, 4}, 3 * 512, 2 * 3 * 512},
    {LOOM_CP_ULYSSES, 4, {2, 64, 8, 8, 4}, 3 * (1024 + 2048 + 1024) / 4, 3 * (1024 + 2048 + 1024) / 4},
    {LOOM_CP_ULYSSES, 4, {2, 64, 8, 2, 4}, 3 * (1024 + 2 * 512 + 1024) / 4, 3 * (1024 + 2 * 512 + 1024) / 4},     /* each kv head sent twice */
    {LOOM_CP_HYBRID, 4, {2, 64, 8, 2, 4}, (1024 + 512 + 1024) / 2 + 512, (1024 + 512 + 1024) / 2 + 2 * 512},      /* pairs, and a ring of two */
    {LOOM_CP_HYBRID, 4, {2, 64, 8, 1, 4}, (1024 + 2 * 256 + 1024) / 2 + 512, (1024 + 2 * 256 + 1024) / 2 + 2 * 512},
    {LOOM_CP_RING, 4, {2, 64, 8, 2, 4, .documents = true}, 3 * 512 + 3 * 32, 2 * 3 * 512 + 3 * 32},
};

static const law *now;

static void counted(loom_comm *world, loom_stream *stream)
{
    fixture f = open_mesh(world, stream);
    job j = open_job(&f, now->kind, now->shape);
    uint64_t start = bytes_of(j.cp), between;

    assert_ok(loom_cp_attention(j.cp, &j.call.forward, j.saved));
    between = bytes_of(j.cp);
    assert_int_equal(between - start, now->forward * sizeof(float));
    assert_ok(loom_cp_attention_backward(j.cp, &j.call, j.saved));
    assert_int_equal(bytes_of(j.cp) - between, now->backward * sizeof(float));
    assert_ok(loom_stream_wait(stream));
    close_job(&f, &j);
    close_mesh(&f);
}

static void bytes_follow_the_law_on_ranks_and_on_a_dry_world(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++) {
        now = &laws[i];
        on_ranks(now->size, counted);
        for (int rank = 0; rank < now->size; rank++)
            on_dry_rank(rank, now->size, counted);
    }
}

/* --- memory: what one rank of many holds ------------------------------------------------------------------------------------------------------- */

static uint64_t communication_bytes;

static void long_context(loom_comm *world, loom_stream *stream)
{
    fixture f = open_mesh(world, stream);
    loom_ledger ledger;
    job j = open_job(&f, LOOM_CP_RING, (whole_shape){1, 1 << 20, 32, 8, 128});

    assert_ok(loom_cp_attention(j.cp, &j.call.forward, j.saved));
    assert_ok(loom_cp_attention_backward(j.cp, &j.call, j.saved));
    assert_ok(loom_stream_wait(stream));
    loom_device_ledger(loom_comm_device(world), &ledger);
    communication_bytes = ledger.peak[LOOM_MEM_COMM];
    close_job(&f, &j);
    close_mesh(&f);
}

static void buffers_of_a_ring_fall_with_its_size(void **state)
{
    uint64_t of_8;

    (void)state;
    on_dry_rank(3, 8, long_context);
    of_8 = communication_bytes;
    on_dry_rank(17, 64, long_context);
    assert_int_equal(of_8, 8 * communication_bytes);
}

/* --- refusals ------------------------------------------------------------------------------------------------------------------------------------ */

static void refusals(loom_comm *world, loom_stream *stream)
{
    fixture f = open_mesh(world, stream);
    loom_cp *cp;
    job j;

    assert_refused(loom_cp_open(f.mesh, f.kernels, stream, &(loom_cp_config){LOOM_CP_RING, 1, 4098, 4, 4, 8}, &cp), LOOM_E_INVALID, "4098", "2 x cp=4 = 8",
                   "4096 and 4104");
    assert_refused(loom_cp_open(f.mesh, f.kernels, stream, &(loom_cp_config){LOOM_CP_ULYSSES, 1, 64, 6, 6, 8}, &cp), LOOM_E_INVALID, "4 ranks", "6 heads",
                   "ring");
    assert_refused(loom_cp_open(f.mesh, f.kernels, stream, &(loom_cp_config){LOOM_CP_HYBRID, 1, 64, 3, 3, 8}, &cp), LOOM_E_INVALID, "cp=4", "3 heads");
    assert_refused(loom_cp_open(f.mesh, f.kernels, stream, &(loom_cp_config){LOOM_CP_RING, 1, 64, 6, 4, 8}, &cp), LOOM_E_INVALID, "6 heads over 4");
    j = open_job(&f, LOOM_CP_ULYSSES, (whole_shape){2, 32, 4, 4, 8});
    assert_refused(loom_cp_attention(j.cp, &j.call.forward, NULL), LOOM_E_INVALID, "saved is NULL");
    j.call.forward.q_seq = 32;
    assert_refused(loom_cp_attention(j.cp, &j.call.forward, j.saved), LOOM_E_INVALID, "32 queries", "2 of 8");
    j.call.forward.q_seq = 8;
    j.call.forward.mask.q_start = 8;
    assert_refused(loom_cp_attention(j.cp, &j.call.forward, j.saved), LOOM_E_INVALID, "positions");
    j.call.forward.mask.q_start = 0;
    j.call.forward.mask.q_documents_BS = j.documents;
    assert_refused(loom_cp_attention(j.cp, &j.call.forward, j.saved), LOOM_E_INVALID, "documents");
    close_job(&f, &j);
    close_mesh(&f);
}

static void what_cannot_be_split_is_refused_with_what_can(void **state)
{
    (void)state;
    on_ranks(4, refusals);
}

/* --- a rank that does not come ----------------------------------------------------------------------------------------------------------------- */

static loom_cp_kind lonely_kind;

/* The last rank opens and goes; the others wait for what it would have sent, and end with a message instead of for ever. */
static void without_the_last(loom_comm *world, loom_stream *stream)
{
    fixture f = open_mesh(world, stream);
    job j = open_job(&f, lonely_kind, (whole_shape){1, 24, 6, 3, 4});
    loom_status status = LOOM_OK;

    if (loom_comm_rank(world) < 2) {
        status = loom_cp_attention(j.cp, &j.call.forward, j.saved);
        if (status == LOOM_OK)
            status = loom_stream_wait(stream);
        assert_int_equal(status, LOOM_E_PEER);
        assert_in_message("cp");
    }
    close_job(&f, &j);
    close_mesh(&f);
}

static void a_rank_that_does_not_come_ends_the_wait(void **state)
{
    static const loom_cp_kind some[] = {LOOM_CP_RING, LOOM_CP_ALLGATHER, LOOM_CP_ULYSSES};

    (void)state;
    for (int i = 0; i < 3; i++) {
        lonely_kind = some[i];
        on_ranks_with(&(rank_options){.comm_deadline_s = 1}, 3, without_the_last);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_holds_an_early_and_a_late_chunk),
        cmocka_unit_test(every_token_is_on_one_rank_and_causal_work_is_equal),
        cmocka_unit_test(every_kind_gives_the_attention_of_whole_sequences),
        cmocka_unit_test(causal_means_have_their_closed_form_on_two_and_four_ranks),
        cmocka_unit_test(a_loss_is_divided_by_the_tokens_counted_on_all_ranks),
        cmocka_unit_test(two_runs_give_the_same_bits_and_a_call_allocates_nothing),
        cmocka_unit_test(another_shape_gives_its_own_attention),
        cmocka_unit_test(bytes_follow_the_law_on_ranks_and_on_a_dry_world),
        cmocka_unit_test(buffers_of_a_ring_fall_with_its_size),
        cmocka_unit_test(a_rank_that_does_not_come_ends_the_wait),
        cmocka_unit_test(what_cannot_be_split_is_refused_with_what_can),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
