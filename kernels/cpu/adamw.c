/* AdamW with decoupled decay, and the factor that its gradients are clipped by. */
#include "kernels/cpu/isa.h"

typedef struct adamw_factors {
    float scale, beta1, beta2, rest1, rest2, keep, step, root, eps;
} adamw_factors;

LOOM_INLINE void adamw_step(const loom_adamw_args *a, const adamw_factors *f, int64_t i, int n)
{
    vf g = vf_get(a->gradient + i, n) * f->scale;
    vf m = vf_fma(vf_set(f->beta1), vf_get(a->m + i, n), g * f->rest1);
    vf v = vf_fma(vf_set(f->beta2), vf_get(a->v + i, n), g * g * f->rest2);

    vf_put(a->m + i, m, n);
    vf_put(a->v + i, v, n);
    vf_put(a->p + i, vf_get(a->p + i, n) * f->keep - f->step * m / vf_fma(vf_sqrt(v), vf_set(f->root), vf_set(f->eps)), n);
}

static void adamw_span(const void *context, int64_t from, int64_t to)
{
    const loom_adamw_args a = *(const loom_adamw_args *)context;
    const adamw_factors f = {
        .scale = a.gradient_scale ? *a.gradient_scale : 1.0f,
        .beta1 = (float)a.beta1,
        .beta2 = (float)a.beta2,
        .rest1 = (float)(1.0 - a.beta1),
        .rest2 = (float)(1.0 - a.beta2),
        .keep = (float)(1.0 - a.lr * a.decay),
        .step = (float)(a.lr / a.correction1),
        .root = (float)(1.0 / sqrt(a.correction2)),
        .eps = (float)a.eps,
    };

    EACH_LANES(from, to, adamw_step, &a, &f);
}

loom_status ISA(clip)(loom_cpu *cpu, const loom_clip_args *a)
{
    double norm = sqrt(*a->squares) / a->divisor, kept = a->clip > 0 && norm > a->clip ? a->clip / (norm + 1e-6) : 1;

    *a->scale = isfinite(norm) ? (float)(kept / a->divisor) : NAN;
    return LOOM_OK;
}

loom_status ISA(adamw)(loom_cpu *cpu, const loom_adamw_args *a)
{
    if (a->gradient_scale && isnan(*a->gradient_scale))
        return LOOM_OK;
    loom_parallel_spans(cpu->threads, a->count, GRAIN_ELEMENTS, adamw_span, a);
    return LOOM_OK;
}
