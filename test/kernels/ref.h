/* The judges: each operation as its formula in plain f64 loops. Slow, and meant to be read. */
#ifndef TEST_KERNELS_REF_H
#define TEST_KERNELS_REF_H

#include <rankloom/kernels.h>

/* c[m][n] = (start ? start : 0) + op(a) op(b) + bias; a, b, bias as in the arguments, c tight. */
void ref_gemm(const loom_gemm_args *a, const float *start, double *c);

/* mean_T may be NULL (RMSNorm: mean 0, no bias). */
void ref_norm(const float *x, const float *weight, const float *bias, int64_t tokens, int64_t hidden, double eps, bool centred, double *y);
void ref_norm_backward(const float *dy, const float *x, const float *weight, int64_t tokens, int64_t hidden, double eps, bool centred,
                       double *dx, double *dweight, double *dbias);

double ref_gelu(double x);
double ref_gelu_slope(double x);
double ref_sigmoid(double x);

/* q [B, S, H, K] tight and so on; visible(b, i, j) from the mask. */
void ref_attention(const loom_attention_args *a, double *o, double *lse);
void ref_attention_backward(const loom_attention_args *a, const float *dout, double *dq, double *dk, double *dv);

#endif
