/* Calibration by measured steps: Bayes' rule for the constants.
 *
 * Before anything is measured, doubt k is a factor e^x_k on some constants, x_k normal with spread s_k (doubts.c). A measured step says
 *     log(measured) = log(predicted with x) + own,
 * where `own` is what that layout has for itself: its tails are heavy (Student's t with FREEDOM degrees), so that one odd measurement does not bend the
 * constants. The x that is most likely then is the calibration: a constant moves with the square of its spread times its share in the measured step. What
 * no x explains is left to the layout, and to others the less, the less they are like it. The covariance that is left gives intervals. */
#include "planner/calibrate.h"

#include <math.h>
#include <string.h>

#include "planner/doubts.h"

static const double FREEDOM = 2, NORMAL = 1e9; /* degrees of freedom of what layouts have for themselves; as many as make it normal */
static const double KEPT = 0.8;                /* of what a layout has for itself, another run of it shows */

typedef struct problem {
    const loom_job *job;
    const loom_timed_step *steps;
    int n;
    double spread[LOOM_DOUBTS], own_spread, freedom;
} problem;

/* A point x, with what follows from it. */
typedef struct state {
    double x[LOOM_DOUBTS];
    double left[LOOM_MOST_MEASURED]; /* logarithm of measured over predicted */
    double objective;                /* minus the logarithm of its likelihood */
} state;

static void turn_all(const problem *p, const double *x, loom_job *job)
{
    *job = *p->job;
    for (int k = 0; k < LOOM_DOUBTS; k++)
        loom_doubt_turn(job, k, x[k]);
}

static void evaluate(const problem *p, state *s)
{
    loom_job job;
    loom_step_cost cost;

    turn_all(p, s->x, &job);
    s->objective = 0;
    for (int k = 0; k < LOOM_DOUBTS; k++)
        s->objective += s->x[k] * s->x[k] / (2 * p->spread[k] * p->spread[k]);
    for (int i = 0; i < p->n; i++) {
        loom_step_predict(&job, p->steps[i].degrees, p->steps[i].chunk_layers, &cost);
        s->left[i] = log(p->steps[i].seconds / cost.seconds);
        double far = s->left[i] / p->own_spread;
        s->objective += (p->freedom + 1) / 2 * log1p(far * far / p->freedom);
    }
}

/* Variance that a normal error would need to be as likely as the heavy-tailed one of this size. */
static double own_variance(const problem *p, double left)
{
    return (p->own_spread * p->own_spread * p->freedom + left * left) / (p->freedom + 1);
}

typedef struct linear {
    double slope[LOOM_MOST_MEASURED][LOOM_DOUBTS];
    double factor[LOOM_MOST_MEASURED][LOOM_MOST_MEASURED]; /* Cholesky's of slope prior slope' + own variance */
} linear;

static void factorise(const problem *p, const state *s, linear *l)
{
    loom_job job;

    turn_all(p, s->x, &job);
    for (int i = 0; i < p->n; i++)
        loom_doubt_slopes(&job, p->steps[i].degrees, p->steps[i].chunk_layers, l->slope[i]);
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j <= i; j++) {
            double sum = i == j ? own_variance(p, s->left[i]) : 0;
            for (int k = 0; k < LOOM_DOUBTS; k++)
                sum += l->slope[i][k] * l->slope[j][k] * p->spread[k] * p->spread[k];
            for (int k = 0; k < j; k++)
                sum -= l->factor[i][k] * l->factor[j][k];
            l->factor[i][j] = i == j ? sqrt(sum) : sum / l->factor[j][j];
        }
}

/* to = (factor factor')^-1 to */
static void solve(const linear *l, int n, double *to)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++)
            to[i] -= l->factor[i][j] * to[j];
        to[i] /= l->factor[i][i];
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int j = i + 1; j < n; j++)
            to[i] -= l->factor[j][i] * to[j];
        to[i] /= l->factor[i][i];
    }
}

/* The most likely x if the step were linear in it around here. */
static void aim(const problem *p, const state *s, const linear *l, double *x)
{
    double pull[LOOM_MOST_MEASURED];

    for (int i = 0; i < p->n; i++) {
        pull[i] = s->left[i];
        for (int k = 0; k < LOOM_DOUBTS; k++)
            pull[i] += l->slope[i][k] * s->x[k];
    }
    solve(l, p->n, pull);
    for (int k = 0; k < LOOM_DOUBTS; k++) {
        x[k] = 0;
        for (int i = 0; i < p->n; i++)
            x[k] += p->spread[k] * p->spread[k] * l->slope[i][k] * pull[i];
    }
}

/* Gauss and Newton's steps from nothing, halved until they help. */
static void climb(const problem *p, state *s)
{
    enum { MOST_STEPS = 12, MOST_HALVES = 6 };
    double x[LOOM_DOUBTS];
    linear l;

    memset(s, 0, sizeof *s);
    evaluate(p, s);
    for (int step = 0; step < MOST_STEPS; step++) {
        state next;
        bool better = false;
        double length = 1;
        factorise(p, s, &l);
        aim(p, s, &l, x);
        for (int half = 0; half < MOST_HALVES && !better; half++, length /= 2) {
            for (int k = 0; k < LOOM_DOUBTS; k++)
                next.x[k] = s->x[k] + length * (x[k] - s->x[k]);
            evaluate(p, &next);
            better = next.objective < s->objective - 1e-9;
        }
        if (!better)
            return;
        *s = next;
    }
}

/* A heavy-tailed error has two peaks when a step is far off: the constants explain it, or the layout does. */
static void most_likely(problem *p, state *s)
{
    state explained;

    p->freedom = NORMAL;
    climb(p, &explained);
    p->freedom = FREEDOM;
    evaluate(p, &explained);
    climb(p, s);
    if (explained.objective < s->objective)
        *s = explained;
}

static void fill_covariance(const problem *p, const state *s, loom_calibration *c)
{
    linear l;

    factorise(p, s, &l);
    for (int k = 0; k < LOOM_DOUBTS; k++) {
        double gain[LOOM_MOST_MEASURED];
        for (int i = 0; i < p->n; i++)
            gain[i] = l.slope[i][k] * p->spread[k] * p->spread[k];
        solve(&l, p->n, gain);
        for (int j = 0; j < LOOM_DOUBTS; j++) {
            c->covariance[k][j] = k == j ? p->spread[k] * p->spread[k] : 0;
            for (int i = 0; i < p->n; i++)
                c->covariance[k][j] -= gain[i] * l.slope[i][j] * p->spread[j] * p->spread[j];
        }
    }
}

void loom_calibration_learn(const loom_job *job, const loom_timed_step *steps, int n, loom_calibration *c)
{
    problem p = {.job = job, .steps = steps, .n = n, .own_spread = loom_layout_spread(job)};
    state s;

    for (int k = 0; k < LOOM_DOUBTS; k++)
        p.spread[k] = loom_doubt_spread(job, k);
    most_likely(&p, &s);
    fill_covariance(&p, &s, c);
    memcpy(c->moved, s.x, sizeof c->moved);
    c->n = n;
    for (int i = 0; i < n; i++) {
        c->at[i].degrees = *steps[i].degrees;
        c->at[i].own = s.left[i];
    }
}

void loom_calibrate(loom_job *job, const loom_calibration *c)
{
    for (int k = 0; k < LOOM_DOUBTS; k++)
        loom_doubt_turn(job, k, c->moved[k]);
    job->calibration = *c;
}

/* --- what is left to a layout ----------------------------------------------------------------------------------------------------- */

static double apart(int a, int b)
{
    return fabs(log2((double)a / b));
}

/* 1: the same layout; less by e for every doubling of a degree and every other way to run. */
static double likeness(const loom_degrees *a, const loom_degrees *b)
{
    double far = apart(a->tp, b->tp) + apart(a->pp, b->pp) + apart(a->cp, b->cp) + apart(a->ep, b->ep) + apart(a->vpp, b->vpp) +
                 apart(a->micro_batch, b->micro_batch);

    return exp(-far - (a->zero != b->zero) - (a->recompute != b->recompute) - (a->pipeline != b->pipeline));
}

/* Of what the measured layouts have for themselves this one is expected to show: the mean by likeness, as much of it as the most alike speaks for. */
static double own_of(const loom_calibration *c, const loom_degrees *degrees, double *most)
{
    double weights = 0, sum = 0;

    *most = 0;
    for (int i = 0; i < c->n; i++) {
        double weight = likeness(&c->at[i].degrees, degrees);
        weights += weight;
        sum += weight * c->at[i].own;
        *most = fmax(*most, KEPT * weight);
    }
    return c->n ? *most * sum / weights : 0;
}

double loom_calibration_factor(const loom_calibration *c, const loom_degrees *degrees)
{
    double most;

    return exp(own_of(c, degrees, &most));
}

double loom_calibration_least(const loom_calibration *c)
{
    double least = 0;

    for (int i = 0; i < c->n; i++)
        least = fmin(least, KEPT * c->at[i].own);
    return exp(least);
}

void loom_calibration_apply(const loom_calibration *c, const loom_degrees *degrees, loom_step_cost *cost)
{
    double factor = loom_calibration_factor(c, degrees);

    for (int i = 0; i < LOOM_TIME_PARTS; i++)
        cost->part[i] *= factor;
    cost->seconds *= factor;
    cost->hidden_dp *= factor;
}

double loom_prediction_spread(const loom_job *job, const loom_degrees *degrees, const int *chunk_layers)
{
    const loom_calibration *c = &job->calibration;
    double slope[LOOM_DOUBTS], square = 0, own = loom_layout_spread(job), known;

    loom_doubt_slopes(job, degrees, chunk_layers, slope);
    for (int i = 0; i < LOOM_DOUBTS; i++)
        for (int j = 0; j < LOOM_DOUBTS && c->n; j++)
            square += slope[i] * c->covariance[i][j] * slope[j];
    for (int i = 0; i < LOOM_DOUBTS && !c->n; i++)
        square += pow(slope[i] * loom_doubt_spread(job, i), 2);
    own_of(c, degrees, &known);
    return sqrt(fmax(0, square) + own * own * (1 - known * known));
}
