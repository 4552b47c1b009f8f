#include <rankloom/dp.h>

#include <math.h>

double loom_warmup_cosine(int64_t step, int64_t warmup, int64_t steps, double lr, double min_lr)
{
    const double pi = 3.14159265358979323846;

    if (step < warmup)
        return lr * (double)(step + 1) / (double)warmup;
    if (step >= steps)
        return min_lr;
    return min_lr + 0.5 * (1 + cos(pi * (double)(step - warmup) / (double)(steps - warmup))) * (lr - min_lr);
}
