/* The proof of schedules: breaches it must name, and its verdict against a brute-force executor on random orders. The second method knows nothing
 * of the first: it really moves messages through bounded queues, stage by stage, until nothing moves, and looks at what arrived. */
#include <rankloom/schedule.h>

#include "check.h"

/* --- the brute-force executor ------------------------------------------------------------------------------------------ */

enum { MOST_STAGES = 4, MOST_CHUNKS = 8, MOST_MICRO_BATCHES = 6, MOST_MESSAGES = 2 * MOST_CHUNKS * MOST_MICRO_BATCHES + 8 };

typedef struct parcel {
    int direction, chunk, micro_batch;
} parcel;

/* What one stage sends to another: parcels in the order of sending, receives in the order of posting. Parcel i belongs to receive i. */
typedef struct pipe {
    parcel sent[MOST_MESSAGES], wanted[MOST_MESSAGES];
    int n_sent, n_wanted;
} pipe_t;

typedef struct world {
    const loom_schedule *s;
    int buffers, at[MOST_STAGES];
    pipe_t pipes[MOST_STAGES][MOST_STAGES];
    int forwards[MOST_CHUNKS][MOST_MICRO_BATCHES], inputs[MOST_CHUNKS][MOST_MICRO_BATCHES], weights[MOST_CHUNKS][MOST_MICRO_BATCHES];
    bool wrong; /* something ran that must not, or a parcel went astray */
} world;

static bool same_parcel(parcel a, parcel b)
{
    return a.direction == b.direction && a.chunk == b.chunk && a.micro_batch == b.micro_batch;
}

/* Whether the parcel has come out of the pipe: its receive was posted and the parcel for that receive has been sent. */
static bool arrived(const pipe_t *p, parcel wanted)
{
    for (int i = 0; i < p->n_wanted; i++)
        if (same_parcel(p->wanted[i], wanted))
            return i < p->n_sent;
    return false;
}

static bool posted(const pipe_t *p, parcel wanted)
{
    for (int i = 0; i < p->n_wanted; i++)
        if (same_parcel(p->wanted[i], wanted))
            return true;
    return false;
}

/* Whether the input of a pass is there. `*wait`: it is not, but may come. */
static bool has_input(world *w, int stage, int direction, int chunk, int b, bool *wait)
{
    int from = w->s->stage_of_chunk[chunk];
    parcel wanted = {direction, chunk, b};

    *wait = false;
    if (from == stage)
        return direction ? w->inputs[chunk][b] : w->forwards[chunk][b];
    if (!posted(&w->pipes[from][stage], wanted))
        return false;
    *wait = !arrived(&w->pipes[from][stage], wanted);
    return !*wait;
}

/* Runs one compute action; returns false when it has to wait. */
static bool compute(world *w, int stage, const loom_action *a)
{
    int chunks = w->s->stages * w->s->chunks_per_stage, c = a->chunk, b = a->micro_batch;
    bool wait = false, forward = a->kind == LOOM_FORWARD, weight_only = a->kind == LOOM_BACKWARD_WEIGHT;

    if (w->s->stage_of_chunk[c] != stage)
        w->wrong = true;
    else if (forward && c > 0)
        w->wrong |= !has_input(w, stage, 0, c - 1, b, &wait) && !wait;
    else if (!forward && !weight_only && c + 1 < chunks)
        w->wrong |= !has_input(w, stage, 1, c + 1, b, &wait) && !wait;
    if (wait)
        return false;
    if (forward)
        w->wrong |= w->forwards[c][b]++ > 0;
    else if (weight_only)
        w->wrong |= !w->inputs[c][b] || w->weights[c][b]++ > 0;
    else
        w->wrong |= !w->forwards[c][b] || w->inputs[c][b]++ > 0;
    if (a->kind == LOOM_BACKWARD)
        w->wrong |= w->weights[c][b]++ > 0;
    return true;
}

static bool act(world *w, int stage)
{
    const loom_action *a = &w->s->stage[stage].at[w->at[stage]];
    bool backward = a->kind == LOOM_SEND_B || a->kind == LOOM_RECV_B;
    parcel p = {backward, a->chunk, a->micro_batch};

    if (a->kind == LOOM_SEND_F || a->kind == LOOM_SEND_B) {
        pipe_t *pipe = &w->pipes[stage][a->peer];
        if (w->buffers >= 0 && pipe->n_sent >= pipe->n_wanted + w->buffers)
            return false;
        w->wrong |= w->s->stage_of_chunk[a->chunk] != stage || !(backward ? w->inputs : w->forwards)[a->chunk][a->micro_batch];
        pipe->sent[pipe->n_sent++] = p;
    } else if (a->kind == LOOM_RECV_F || a->kind == LOOM_RECV_B) {
        pipe_t *pipe = &w->pipes[a->peer][stage];
        pipe->wanted[pipe->n_wanted++] = p;
    } else if (!compute(w, stage, a)) {
        return false;
    }
    w->at[stage]++;
    return true;
}

static bool all_done(const world *w)
{
    int chunks = w->s->stages * w->s->chunks_per_stage;

    for (int stage = 0; stage < w->s->stages; stage++)
        if (w->at[stage] < w->s->stage[stage].count)
            return false;
    for (int c = 0; c < chunks; c++)
        for (int b = 0; b < w->s->micro_batches; b++)
            if (w->forwards[c][b] != 1 || w->inputs[c][b] != 1 || w->weights[c][b] != 1)
                return false;
    for (int from = 0; from < w->s->stages; from++)
        for (int to = 0; to < w->s->stages; to++) {
            const pipe_t *p = &w->pipes[from][to];
            if (p->n_sent != p->n_wanted)
                return false;
            for (int i = 0; i < p->n_sent; i++)
                if (!same_parcel(p->sent[i], p->wanted[i]))
                    return false; /* went to the wrong receive */
        }
    return true;
}

/* Every message that crosses stages is sent to the stage that uses it. */
static bool sent_where_used(const loom_schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->stage[stage].count; i++) {
            const loom_action *a = &s->stage[stage].at[i];
            bool forward = a->kind == LOOM_SEND_F;
            int to = forward ? a->chunk + 1 : a->chunk - 1;
            if (a->kind != LOOM_SEND_F && a->kind != LOOM_SEND_B)
                continue;
            if (to < 0 || to >= s->stages * s->chunks_per_stage || s->stage_of_chunk[to] != a->peer || a->peer == stage)
                return false;
        }
    return true;
}

static bool runs(const loom_schedule *s, int buffers)
{
    static world w;
    bool moved = true;

    w = (world){.s = s, .buffers = buffers};
    while (moved && !w.wrong) {
        moved = false;
        for (int stage = 0; stage < s->stages; stage++)
            while (!w.wrong && w.at[stage] < s->stage[stage].count && act(&w, stage))
                moved = true;
    }
    return !w.wrong && all_done(&w) && sent_where_used(s);
}

/* --- random orders -------------------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static int random_below(int n)
{
    random_state ^= random_state << 13; /* xorshift64 */
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (int)(random_state % (uint64_t)n);
}

static loom_schedule *random_sound_schedule(void)
{
    static const struct { loom_schedule_kind kind; int v; } kinds[] = {{LOOM_SCHEDULE_GPIPE, 1}, {LOOM_SCHEDULE_GPIPE, 2}, {LOOM_SCHEDULE_1F1B, 1},
        {LOOM_SCHEDULE_INTERLEAVED, 2}, {LOOM_SCHEDULE_ZB_H1, 1}, {LOOM_SCHEDULE_ZB_V, 2}};
    int which = random_below(6), p = 1 + random_below(MOST_STAGES), m = 1 + random_below(MOST_MICRO_BATCHES);
    loom_schedule *s;

    if (kinds[which].kind == LOOM_SCHEDULE_INTERLEAVED)
        m = p;
    assert_ok(loom_schedule_generate(kinds[which].kind, p, kinds[which].v, m, &s));
    return s;
}

/* Swaps, moves, doubles, drops or alters an action; mostly swaps of neighbours, which often leave the schedule sound. */
static void disturb(loom_schedule *s)
{
    loom_stage_actions *list = &s->stage[random_below(s->stages)];
    int what = random_below(20), i, j;

    if (list->count < 2)
        return;
    i = random_below(list->count);
    j = what < 14 ? (i + 1) % list->count : random_below(list->count);
    if (what < 17) {
        loom_action kept = list->at[i];
        list->at[i] = list->at[j];
        list->at[j] = kept;
    } else if (what == 17) {
        list->at[i] = list->at[j];
    } else if (what == 18) {
        list->at[i] = list->at[--list->count];
    } else {
        list->at[i].micro_batch = random_below(s->micro_batches);
    }
}

static void one_random_order(int counts[2][2], int round)
{
    loom_schedule *s = random_sound_schedule();
    int buffers = random_below(4) - 1, changes = random_below(4);
    bool lowered = round % 4 != 0, sound, proved;

    if (lowered)
        assert_ok(loom_schedule_add_comm(s));
    for (int i = 0; i < changes; i++)
        disturb(s);
    proved = loom_schedule_verify(s, buffers, NULL) == LOOM_OK;
    if (lowered) {
        sound = runs(s, buffers);
        if (sound != proved)
            fail_msg("round %d, %d buffers: brute force says %s, the proof %s (%s)", round, buffers, sound ? "runs" : "does not run",
                     proved ? "sound" : "unsound", loom_last_error());
    } else if (proved) { /* an order that runs without posting ahead runs lowered, too */
        assert_ok(loom_schedule_add_comm(s));
        sound = runs(s, 0);
        assert_true(sound);
    }
    counts[lowered][proved]++;
    loom_schedule_free(s);
}

static void the_proof_agrees_with_brute_force(void **state)
{
    enum { ROUNDS = 100000 };
    int counts[2][2] = {{0}};

    random_state = 0x9e3779b97f4a7c15u;
    for (int round = 0; round < ROUNDS; round++)
        one_random_order(counts, round);
    print_message("lowered: %d sound, %d not; compute only: %d sound, %d not\n", counts[1][1], counts[1][0], counts[0][1], counts[0][0]);
    for (int lowered = 0; lowered < 2; lowered++)
        for (int verdict = 0; verdict < 2; verdict++)
            assert_true(counts[lowered][verdict] > ROUNDS / 40); /* both verdicts are tried */
}

/* --- breaches and their words ------------------------------------------------------------------------------------------------ */

static loom_schedule *from_text(const char *text)
{
    loom_schedule *s;

    assert_ok(loom_schedule_parse_csv("orders", text, strlen(text), 0, 0, &s));
    return s;
}

static void assert_breach(const char *csv, int buffers, const char *words)
{
    loom_schedule *s = from_text(csv);

    assert_refused(loom_schedule_verify(s, buffers, NULL), LOOM_E_INVALID, words);
    loom_schedule_free(s);
}

static void assert_sound(const char *csv, int buffers)
{
    loom_schedule *s = from_text(csv);

    assert_ok(loom_schedule_verify(s, buffers, NULL));
    loom_schedule_free(s);
}

static void the_reported_order_is_named_as_a_cycle(void **state)
{
    static const char order[] = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n";
    static const char cycle[] = "stage 0 waits in B of micro-batch 0, chunk 0 for stage 1, which waits in F of micro-batch 1, chunk 1 for stage 0";

    for (int buffers = -1; buffers < 4; buffers++)
        assert_breach(order, buffers, cycle);
}

static void blocking_sends_against_each_other_are_a_cycle(void **state)
{
    static const char order[] = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";

    assert_breach(order, 0, "deadlock with 0 buffers a channel: stage 0 waits in send F of micro-batch 1, chunk 0 for stage 1, which waits in send B of "
                            "micro-batch 0, chunk 1 for stage 0");
    assert_sound(order, 1);
    assert_sound(order, -1);
}

static void of_two_cycles_the_shorter_is_told(void **state)
{
    /* stages 0, 2 and 1 wait in a ring of three (chunks 3, 2, 1), stages 3 and 4 for each other (chunks 6, 5) */
    assert_breach("3F0,0F0,3B0,0B0\n1F0,8F0,8B0,1B0\n2F0,9F0,9B0,2B0\n6F0,4F0,6B0,4B0\n5F0,7F0,7B0,5B0\n", -1,
                  "buffers a channel has: stage 3 waits in F of micro-batch 0, chunk 6 for stage 4, which waits in F of micro-batch 0, chunk 5 for stage 3");
}

static void every_kind_of_breach_is_told(void **state)
{
    assert_breach("0F0,0B0\n1F0\n", -1, "stage 1: B or I of micro-batch 0, chunk 1 is missing");
    assert_breach("0F0,0I0\n1F0,1B0\n", -1, "stage 0: B or W of micro-batch 0, chunk 0 is missing");
    assert_breach("0F0,0F0,0B0\n1F0,1B0\n", -1, "stage 0: F of micro-batch 0, chunk 0 is there twice");
    assert_breach("0F0,0B0,0W0\n1F0,1B0\n", -1, "W (weight gradient) of micro-batch 0, chunk 0 is there twice");
    assert_breach("0F0,0W0,0I0\n1F0,1B0\n", -1, "comes before its I");
    assert_breach("0B0,0F0\n1F0,1B0\n", -1, "comes before its F");
    assert_breach("1F0,0F0,1B0,0B0\n", -1, "comes before the F of the chunk that feeds it");
    assert_breach("0F0,1F0,0B0,1B0\n", -1, "comes before the B or I of the chunk that feeds it");
    assert_breach("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", -1, "never received");
    assert_breach("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", -1, "never sent");
    assert_breach("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", -1, "comes before what it sends is made");
    assert_breach("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", -1, "comes after the action that uses it");
    assert_breach("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", -1, "is there twice");
    assert_breach("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n", -1,
                  "stands behind a message that stage 1 receives later");
}

static void actions_outside_of_the_schedule_are_told(void **state)
{
    loom_schedule *s = from_text("0F0,0B0\n1F0,1B0\n");

    s->stage[0].at[0].chunk = 7;
    assert_refused(loom_schedule_verify(s, -1, NULL), LOOM_E_INVALID, "chunk 7: there are 2 chunks");
    s->stage[0].at[0].chunk = 1;
    assert_refused(loom_schedule_verify(s, -1, NULL), LOOM_E_INVALID, "that chunk is on stage 1");
    s->stage[0].at[0] = (loom_action){LOOM_FORWARD, -1, 0, -3};
    assert_refused(loom_schedule_verify(s, -1, NULL), LOOM_E_INVALID, "there are 1 micro-batches");
    s->stage[0].at[0].kind = 200;
    assert_refused(loom_schedule_verify(s, -1, NULL), LOOM_E_INVALID, "unknown action 200");
    loom_schedule_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_proof_agrees_with_brute_force),
        cmocka_unit_test(the_reported_order_is_named_as_a_cycle),
        cmocka_unit_test(blocking_sends_against_each_other_are_a_cycle),
        cmocka_unit_test(of_two_cycles_the_shorter_is_told),
        cmocka_unit_test(every_kind_of_breach_is_told),
        cmocka_unit_test(actions_outside_of_the_schedule_are_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
