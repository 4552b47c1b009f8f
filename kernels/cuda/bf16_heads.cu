/* f32 rows at any distance to and from tight rows of bf16. */
#include "kernels/cuda/bf16_heads.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/rows.cuh"

/* Row r of all sequences. */
struct rows_beside {
    float *wide;
    unsigned short *narrow;
    int64_t seq, sequence, token, width;
    __device__ float *wide_row(int64_t r) const
    {
        return wide + r / seq * sequence + r % seq * token;
    }
    __device__ uint2 *narrow_quad(int64_t r, int64_t i) const
    {
        return reinterpret_cast<uint2 *>(narrow + r * width + i);
    }
};

static rows_beside beside(const loom_bf16_heads *r)
{
    int64_t token = or_tight(r->at.token, r->width);

    return {r->wide, r->narrow, r->seq, or_tight(r->at.sequence, r->seq * token), token, r->width};
}

struct narrow_op {
    rows_beside r;
    __device__ void row_quad(int64_t row, int64_t i, int64_t cols, bool q) const
    {
        float4 v = load_some(r.wide_row(row), i, cols, q, 0);
        uint2 bits;
        bits.x = bf16_of(v.x) | static_cast<unsigned>(bf16_of(v.y)) << 16;
        bits.y = bf16_of(v.z) | static_cast<unsigned>(bf16_of(v.w)) << 16;
        *r.narrow_quad(row, i) = bits;
    }
};

struct widen_op {
    rows_beside r;
    bool accumulate;
    __device__ void row_quad(int64_t row, int64_t i, int64_t cols, bool q) const
    {
        uint2 bits = *r.narrow_quad(row, i);
        float4 v = make_float4(of_bf16(static_cast<unsigned short>(bits.x)), of_bf16(static_cast<unsigned short>(bits.x >> 16)),
                               of_bf16(static_cast<unsigned short>(bits.y)), of_bf16(static_cast<unsigned short>(bits.y >> 16)));
        store_some(r.wide_row(row), i, cols, q, accumulate ? load_some(r.wide_row(row), i, cols, q, 0) + v : v);
    }
};

static bool whole_quads(const rows_beside &r)
{
    return quads(r.wide, r.token) && r.sequence % 4 == 0;
}

int loom_gpu_narrow(const loom_gpu *gpu, const loom_bf16_heads *rows)
{
    const narrow_op op = {beside(rows)};

    return each_row(gpu, rows->batch * rows->seq, rows->width, whole_quads(op.r), op);
}

int loom_gpu_widen(const loom_gpu *gpu, const loom_bf16_heads *rows, bool accumulate)
{
    const widen_op op = {beside(rows), accumulate};

    return each_row(gpu, rows->batch * rows->seq, rows->width, whole_quads(op.r), op);
}
