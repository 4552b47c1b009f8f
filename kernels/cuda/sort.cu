/* Stable radix sort: a warp has CHUNK neighbours and goes through them in order, 32 at a time. A pass counts digits of each chunk, turns the counts
 * into the first place of each (digit, chunk), and moves. */
#include "kernels/cuda/sort.cuh"

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, CHUNK = 1024, WARPS = 4, SORT_THREADS = 32 * WARPS, SCAN_THREADS = 1024 };

struct pass_args {
    loom_sort_values values;        /* read by the first pass, which has no keys yet */
    const int32_t *key_in, *index_in; /* NULL in the first pass */
    int32_t *key_out, *index_out;
    int32_t *place; /* [DIGITS, chunks] counts, then first places */
    int64_t count, chunks;
    int shift;
};

struct digit_counters {
    int32_t count[WARPS][DIGITS];
};

LOOM_DEVICE int32_t key_at(const pass_args &a, int64_t i)
{
    if (a.key_in)
        return a.key_in[i];
    int64_t key = a.values.value[i] - a.values.first;
    return static_cast<int32_t>(key >= 0 && key < a.values.bound ? key : a.values.bound);
}

/* Lanes below this one that have the same digit, and how many have it in all. */
LOOM_DEVICE void rank_in_warp(unsigned digit, unsigned lane, int *rank, int *peers)
{
    unsigned same = __match_any_sync(LOOM_ALL_LANES, digit);

    *rank = __popc(same & ((1u << lane) - 1));
    *peers = __popc(same);
}

/* Walks the warp's chunk. With `move` each element goes to its place; without, only the counters are left. */
template <bool move> LOOM_DEVICE void walk_chunk(const pass_args &a, int32_t *counter, int64_t chunk, unsigned lane)
{
    for (int64_t from = chunk * CHUNK; from < (chunk + 1) * CHUNK && from < a.count; from += LOOM_WARP) {
        bool here = from + lane < a.count;
        int32_t key = here ? key_at(a, from + lane) : 0;
        unsigned digit = here ? static_cast<unsigned>(key) >> a.shift & (DIGITS - 1) : unsigned(DIGITS); /* those beyond the end have one of their own */
        int rank, peers;

        rank_in_warp(digit, lane, &rank, &peers);
        int32_t before = here ? counter[digit] : 0;
        if (move && here) {
            a.key_out[before + rank] = key;
            a.index_out[before + rank] = a.index_in ? a.index_in[from + lane] : static_cast<int32_t>(from + lane);
        }
        __syncwarp(); /* all have read the counter */
        if (here && rank == 0)
            counter[digit] = before + peers;
        __syncwarp();
    }
}

template <bool move> __global__ void __launch_bounds__(SORT_THREADS) sort_pass_kernel(const pass_args a)
{
    LOOM_SHARED(digit_counters, counters);
    unsigned lane = threadIdx.x % LOOM_WARP, warp = threadIdx.x / LOOM_WARP;
    int64_t chunk = static_cast<int64_t>(blockIdx.x) * WARPS + warp;
    int32_t *counter = counters.count[warp];

    for (unsigned d = lane; d < DIGITS; d += LOOM_WARP)
        counter[d] = move && chunk < a.chunks ? a.place[d * a.chunks + chunk] : 0;
    __syncwarp();
    walk_chunk<move>(a, counter, chunk, lane);
    if (!move && chunk < a.chunks)
        for (unsigned d = lane; d < DIGITS; d += LOOM_WARP)
            a.place[d * a.chunks + chunk] = counter[d];
}

struct scan_args {
    int32_t *place;
    int64_t count;
};

struct scan_slots {
    int32_t warp[SCAN_THREADS / 32];
};

/* One block: each thread sums a span, the spans' sums are scanned, each thread writes the running sum of its span. */
__global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(const scan_args a)
{
    LOOM_SHARED(scan_slots, slots);
    unsigned lane = threadIdx.x % LOOM_WARP, warp = threadIdx.x / LOOM_WARP;
    int64_t span = (a.count + SCAN_THREADS - 1) / SCAN_THREADS, from = threadIdx.x * span, to = from + span < a.count ? from + span : a.count;
    int32_t own = 0, sum, before = 0;

    for (int64_t i = from; i < to; i++)
        own += a.place[i];
    sum = own;
    for (unsigned by = 1; by < LOOM_WARP; by *= 2) {
        int32_t lower = __shfl_up_sync(LOOM_ALL_LANES, sum, by);
        sum += lane >= by ? lower : 0;
    }
    if (lane == LOOM_WARP - 1)
        slots.warp[warp] = sum;
    __syncthreads();
    for (unsigned w = 0; w < warp; w++)
        before += slots.warp[w];
    before += sum - own;
    for (int64_t i = from; i < to; i++) {
        int32_t n = a.place[i];
        a.place[i] = before;
        before += n;
    }
}

size_t loom_gpu_sort_bytes(int64_t count)
{
    return static_cast<size_t>(4 * count + DIGITS * ceil_div(count, CHUNK)) * sizeof(int32_t);
}

int loom_gpu_sort(const loom_gpu *gpu, loom_sort_values values, void *scratch, loom_sorted *sorted)
{
    int32_t *buffer = static_cast<int32_t *>(scratch);
    int64_t n = values.count;
    pass_args a = {};
    int turn = 0;

    a.values = values, a.count = n, a.chunks = ceil_div(n, CHUNK), a.place = buffer + 4 * n;
    dim3 blocks(static_cast<unsigned>(ceil_div(a.chunks, WARPS)));
    do {
        a.key_out = buffer + 2 * turn * n, a.index_out = a.key_out + n;
        LOOM_GPU_TRY(loom_launch(gpu, sort_pass_kernel<false>, blocks, dim3(SORT_THREADS), 0, a));
        LOOM_GPU_TRY(loom_launch(gpu, scan_kernel, dim3(1), dim3(SCAN_THREADS), 0, (scan_args{a.place, DIGITS * a.chunks})));
        LOOM_GPU_TRY(loom_launch(gpu, sort_pass_kernel<true>, blocks, dim3(SORT_THREADS), 0, a));
        a.key_in = a.key_out, a.index_in = a.index_out;
        a.shift += DIGIT_BITS;
        turn ^= 1;
    } while (values.bound >> a.shift != 0);
    *sorted = {a.key_out, a.index_out};
    return 0;
}
