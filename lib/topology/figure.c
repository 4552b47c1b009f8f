/* Figures with their origin, and the names of the topology's enumerations. */
#include <rankloom/topology.h>

#include <math.h>

loom_figure loom_unknown(void)
{
    return (loom_figure){NAN, LOOM_ORIGIN_UNKNOWN};
}

loom_figure loom_assumed(double value)
{
    return (loom_figure){value, LOOM_ORIGIN_ASSUMED};
}

loom_figure loom_given(double value)
{
    return (loom_figure){value, LOOM_ORIGIN_GIVEN};
}

bool loom_known(loom_figure figure)
{
    return figure.origin != LOOM_ORIGIN_UNKNOWN;
}

double loom_figure_or(loom_figure figure, double fallback)
{
    return loom_known(figure) ? figure.value : fallback;
}

loom_figure loom_figure_min(loom_figure a, loom_figure b)
{
    if (!loom_known(a) || !loom_known(b))
        return loom_unknown();
    return a.value <= b.value ? a : b;
}

static const char *name_of(const char *const *names, int count, int index)
{
    return index >= 0 && index < count ? names[index] : "?";
}

const char *loom_origin_name(loom_origin origin)
{
    static const char *const names[LOOM_ORIGINS] = {"unknown", "assumed", "read", "given", "measured"};
    return name_of(names, LOOM_ORIGINS, (int)origin);
}

const char *loom_math_name(loom_math math)
{
    static const char *const names[LOOM_MATHS] = {"f32", "tf32", "bf16", "fp8", "fp4"};
    return name_of(names, LOOM_MATHS, (int)math);
}

const char *loom_level_name(loom_level level)
{
    static const char *const names[LOOM_LEVELS] = {"self", "domain", "node", "rack", "cluster"};
    return name_of(names, LOOM_LEVELS, (int)level);
}

const char *loom_pattern_name(loom_pattern pattern)
{
    static const char *const names[LOOM_PATTERNS] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"};
    return name_of(names, LOOM_PATTERNS, (int)pattern);
}

loom_math loom_math_of(loom_dtype dtype)
{
    switch (dtype) {
    case LOOM_BF16:
    case LOOM_F16:
        return LOOM_MATH_16;
    case LOOM_F8E4M3:
    case LOOM_F8E5M2:
    case LOOM_I8:
    case LOOM_U8:
        return LOOM_MATH_8;
    default:
        return LOOM_MATH_F32;
    }
}
