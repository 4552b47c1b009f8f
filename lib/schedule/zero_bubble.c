/* Zero-bubble schedules (Qi et al. 2024): the backward is split into the input gradient I, which the stage before waits for, and the weight gradient
 * W, which nobody waits for and which therefore fills waits. */
#include "schedule/schedule.h"

/* ZB-H1: the order of 1F1B, W behind its I; but stage i keeps i weight gradients back until it has nothing else to do. So the last
 * stage ends with a run of I at twice the pace of F, I, W, and those before it do not wait in the cool-down. Every stage holds at most `stages`
 * micro-batches, as 1F1B's first one does; the bubble is (stages - 1) * (F + I - W). */
void loom_emit_zb_h1(loom_schedule *s, int stage)
{
    int m = s->micro_batches, warm_up = s->stages - stage, forwards = 0, weights = 0;

    while (forwards < warm_up && forwards < m)
        loom_emit(s, stage, LOOM_FORWARD, stage, forwards++);
    for (int b = 0; b < m; b++) {
        loom_emit(s, stage, LOOM_BACKWARD_INPUT, stage, b);
        if (b + 1 - weights > stage)
            loom_emit(s, stage, LOOM_BACKWARD_WEIGHT, stage, weights++);
        if (forwards < m)
            loom_emit(s, stage, LOOM_FORWARD, stage, forwards++);
    }
    while (weights < m)
        loom_emit(s, stage, LOOM_BACKWARD_WEIGHT, stage, weights++);
}

/* How far a stage of ZB-V has come: `down` is its chunk on the way down the V, `up` the one on the way back. */
typedef struct v_stage {
    loom_schedule *schedule;
    int stage, chunk[2];
    int done[2][LOOM_PASSES];
} v_stage;
enum { DOWN, UP };

/* The next micro-batch of a pass through a leg, if there is one whose pass before is in the list. */
static void next(v_stage *v, int leg, loom_pass pass)
{
    static const loom_action_kind kinds[LOOM_PASSES] = {LOOM_FORWARD, LOOM_BACKWARD_INPUT, LOOM_BACKWARD_WEIGHT};
    int b = v->done[leg][pass];
    int limit = pass != LOOM_PASS_FORWARD ? v->done[leg][pass - 1] : leg == UP ? v->done[DOWN][LOOM_PASS_FORWARD] : v->schedule->micro_batches;

    if (b >= limit)
        return;
    loom_emit(v->schedule, v->stage, kinds[pass], v->chunk[leg], b);
    v->done[leg][pass]++;
}

static void forward(v_stage *v, int leg)
{
    next(v, leg, LOOM_PASS_FORWARD);
}

static void input(v_stage *v, int leg)
{
    next(v, leg, LOOM_PASS_INPUT);
}

static void weight(v_stage *v, int leg)
{
    next(v, leg, LOOM_PASS_WEIGHT);
}

static void rest(v_stage *v, int leg, loom_pass pass)
{
    while (v->done[leg][pass] < v->schedule->micro_batches)
        next(v, leg, pass);
}

/* ZB-V: with F, I and W of one unit, the first micro-batch reaches stage i at i, comes back to it at 2p-1-i, and its first gradient at 2p+i. Up to then
 * there is one forward for every slot: down alone, then up and down in turn. Then up, I, W until the gradient of the lower leg comes; then all six
 * in turn. 2 * stages micro-batch-chunks are held, and from 2 * stages - 1 micro-batches on no stage waits for another, but for one unit. */
void loom_emit_zb_v(loom_schedule *s, int stage)
{
    v_stage v = {.schedule = s, .stage = stage, .chunk = {stage, 2 * s->stages - 1 - stage}};
    int below = s->stages - stage;

    for (int i = 0; i < 2 * below - 1; i++)
        forward(&v, DOWN);
    for (int i = 0; i < stage; i++)
        forward(&v, UP), forward(&v, DOWN);
    for (int i = 0; i < below; i++)
        forward(&v, UP), input(&v, UP), weight(&v, UP);
    while (v.done[UP][LOOM_PASS_FORWARD] < s->micro_batches) {
        forward(&v, DOWN), input(&v, DOWN), weight(&v, DOWN);
        forward(&v, UP), input(&v, UP), weight(&v, UP);
    }
    for (int i = 0; i < stage; i++) /* cool-down: gradients first, others wait for them */
        input(&v, UP), input(&v, DOWN);
    for (int i = 0; i < below; i++)
        input(&v, DOWN), weight(&v, DOWN);
    rest(&v, UP, LOOM_PASS_INPUT);
    rest(&v, DOWN, LOOM_PASS_INPUT);
    rest(&v, UP, LOOM_PASS_WEIGHT);
    rest(&v, DOWN, LOOM_PASS_WEIGHT);
}
