/* The shim's scheduler: fibers, barriers, shared memory. */
#include "kernels/cuda/shim/shim.h"

#include "kernels/cuda/cublaslt.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define LOOM_SHIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LOOM_SHIM_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define LOOM_SHIM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LOOM_SHIM_TSAN 1
#endif
#endif

#ifdef LOOM_SHIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef LOOM_SHIM_TSAN
#include <sanitizer/tsan_interface.h>
#define LOOM_SHIM_QUIET __attribute__((no_sanitize("thread"), noinline))
static void publish(void *what)
{
    __tsan_release(what);
}
static void observe(void *what)
{
    __tsan_acquire(what);
}
#else
#define LOOM_SHIM_QUIET
static void publish(void *)
{
}
static void observe(void *)
{
}
#endif

static constexpr unsigned WARP = 32, BLOCK_MAX = 1024, VARIABLES_MAX = 16;
static constexpr size_t STACK_BYTES = 256 * 1024;

/* --- switching stacks --- */

#if defined(__x86_64__)
extern "C" void loom_shim_swap(void **save, void *resume);
__asm__(".text\n.p2align 4\n.globl loom_shim_swap\n.hidden loom_shim_swap\n.type loom_shim_swap,@function\nloom_shim_swap:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
        ".size loom_shim_swap,.-loom_shim_swap\n");

struct context {
    void *sp;
};

static void make_context(context *c, char *stack, size_t bytes, void (*entry)())
{
    void **top = reinterpret_cast<void **>(stack + bytes);

    *--top = nullptr; /* where entry() would return to; also keeps the stack aligned as after a call */
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    c->sp = top;
}

static void swap_context(context *from, context *to)
{
    loom_shim_swap(&from->sp, to->sp);
}
#else
#include <ucontext.h>

struct context {
    ucontext_t u;
};

static void make_context(context *c, char *stack, size_t bytes, void (*entry)())
{
    getcontext(&c->u);
    c->u.uc_stack.ss_sp = stack;
    c->u.uc_stack.ss_size = bytes;
    c->u.uc_link = nullptr;
    makecontext(&c->u, entry, 0);
}

static void swap_context(context *from, context *to)
{
    swapcontext(&from->u, &to->u);
}
#endif

/* --- fibers --- */

enum fiber_state { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, OVER };

struct fiber {
    context where;
    char *stack;
    loom_shim_place place;
    fiber_state state;
    int line; /* of the barrier it waits at */
    unsigned index; /* in its block */
    unsigned exchanges;
    void *tsan, *fake_stack;
};

struct barrier {
    unsigned waiting, expected, generation;
    char order[2]; /* what the thread sanitizer knows it by: two, taken in turns, or the slow ones of one round would learn of the next */
};

struct warp {
    barrier at;
};

/* What the lanes of a warp exchange. The block's own, so that the thread sanitizer does not take two blocks for one. */
struct warp_lanes {
    alignas(8) unsigned char at[2][WARP][LOOM_SHIM_LANE_BYTES];
};

struct shared_variable {
    const void *key;
    char *allocation, *memory;
};

/* Everything a host thread needs to run blocks. */
struct scheduler {
    context here;
    fiber *fibers[BLOCK_MAX];
    unsigned fiber_count;
    void *tsan, *fake_stack;
    const void *host_stack; /* what the address sanitizer knows as this thread's own */
    size_t host_stack_bytes;
    fiber *running;

    /* the block at hand */
    fiber *threads[BLOCK_MAX];
    unsigned thread_count, over;
    barrier block;
    warp warps[BLOCK_MAX / WARP];
    loom_shim_kernel *kernel;
    const void *arguments;
    void *dynamic;
    warp_lanes *lanes; /* one a warp */
    shared_variable variables[VARIABLES_MAX];
    unsigned variable_count;
    uint64_t seed;
    char begun, ended;
    std::vector<void *> retired; /* with the thread sanitizer: memory of blocks that ran, until the grid is over */

    ~scheduler();
};

static thread_local scheduler schedule;

scheduler::~scheduler()
{
    for (unsigned i = 0; i < fiber_count; i++) {
        munmap(fibers[i]->stack, STACK_BYTES);
#ifdef LOOM_SHIM_TSAN
        __tsan_destroy_fiber(fibers[i]->tsan);
#endif
        delete fibers[i];
    }
}

LOOM_SHIM_QUIET static void arrive_on_fiber()
{
#ifdef LOOM_SHIM_ASAN
    __sanitizer_finish_switch_fiber(schedule.running->fake_stack, &schedule.host_stack, &schedule.host_stack_bytes);
#endif
}

/* From the scheduler to a fiber, until that one waits or is over. */
LOOM_SHIM_QUIET static void resume(fiber *f)
{
    scheduler *s = &schedule;

    s->running = f;
#ifdef LOOM_SHIM_ASAN
    __sanitizer_start_switch_fiber(&s->fake_stack, f->stack, STACK_BYTES);
#endif
#ifdef LOOM_SHIM_TSAN
    __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
#endif
    swap_context(&s->here, &f->where);
#ifdef LOOM_SHIM_ASAN
    __sanitizer_finish_switch_fiber(s->fake_stack, nullptr, nullptr);
#endif
}

LOOM_SHIM_QUIET static void yield_to_scheduler(fiber *f)
{
    scheduler *s = &schedule;

#ifdef LOOM_SHIM_ASAN
    __sanitizer_start_switch_fiber(&f->fake_stack, s->host_stack, s->host_stack_bytes);
#endif
#ifdef LOOM_SHIM_TSAN
    __tsan_switch_to_fiber(s->tsan, __tsan_switch_to_fiber_no_sync);
#endif
    swap_context(&f->where, &s->here);
    arrive_on_fiber();
}

/* A fiber runs one thread of one block after the other, for ever. */
LOOM_SHIM_QUIET static void fiber_main()
{
    arrive_on_fiber();
    for (;;) {
        fiber *f = schedule.running;

        observe(&schedule.begun);
        schedule.kernel(schedule.arguments);
        publish(&schedule.ended);
        f->state = OVER;
        schedule.over++;
        yield_to_scheduler(f);
    }
}

static fiber *make_fiber()
{
    fiber *f = new fiber();
    void *stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (stack == MAP_FAILED) {
        perror("shim: no memory for a thread's stack");
        abort();
    }
    f->stack = static_cast<char *>(stack);
    make_context(&f->where, f->stack, STACK_BYTES, fiber_main);
#ifdef LOOM_SHIM_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

/* --- barriers --- */

[[noreturn]] static void stuck(const char *what)
{
    scheduler *s = &schedule;
    const dim3 b = s->threads[0]->place.block;

    fprintf(stderr, "shim: block (%u, %u, %u): %s\n", b.x, b.y, b.z, what);
    for (unsigned i = 0; i < s->thread_count; i++) {
        const fiber *f = s->threads[i];
        static const char *const names[] = {"runs", "waits at __syncthreads", "waits at a warp operation", "is over"};
        if (i == 0 || f->state != s->threads[i - 1]->state || f->line != s->threads[i - 1]->line)
            fprintf(stderr, "  from thread %u on: %s, line %d\n", i, names[f->state], f->line);
    }
    abort();
}

LOOM_SHIM_QUIET static void release_waiting(barrier *b, unsigned first, unsigned count, fiber_state waiting)
{
    scheduler *s = &schedule;

    for (unsigned i = first; i < first + count; i++) {
        if (s->threads[i]->state != waiting)
            continue; /* the one that came last */
        if (s->threads[i]->line != s->running->line)
            stuck("threads of one barrier wait at different lines");
        s->threads[i]->state = READY;
    }
    b->waiting = 0;
    b->generation++;
}

LOOM_SHIM_QUIET static void wait_at(barrier *b, unsigned first, fiber_state waiting, int line)
{
    fiber *f = schedule.running;
    char *order = &b->order[b->generation & 1];

    publish(order);
    f->line = line;
    if (++b->waiting == b->expected) {
        release_waiting(b, first, b->expected, waiting);
    } else {
        f->state = waiting;
        yield_to_scheduler(f);
    }
    observe(order);
}

void loom_shim_barrier(int line)
{
    wait_at(&schedule.block, 0, AT_BLOCK_BARRIER, line);
}

LOOM_SHIM_QUIET void loom_shim_warp_barrier(int line)
{
    unsigned w = schedule.running->index / WARP;

    wait_at(&schedule.warps[w].at, w * WARP, AT_WARP_BARRIER, line);
}

LOOM_SHIM_QUIET int loom_shim_lane()
{
    return static_cast<int>(schedule.running->index % WARP);
}

LOOM_SHIM_QUIET const unsigned char *loom_shim_exchange(const void *value, size_t bytes, int line)
{
    fiber *f = schedule.running;
    unsigned char(*lanes)[LOOM_SHIM_LANE_BYTES] = schedule.lanes[f->index / WARP].at[f->exchanges++ & 1];

    if (schedule.warps[f->index / WARP].at.expected != WARP)
        stuck("a warp operation in a warp that is not whole");
    memcpy(lanes[f->index % WARP], value, bytes);
    loom_shim_warp_barrier(line);
    return lanes[0];
}

struct mma_share {
    float a[4], b[2];
};

static double of_tf32(float x)
{
    return __uint_as_float(__float_as_uint(x) & ~0x1fffu);
}

void loom_shim_mma_tf32(float *c, const float *a, float b0, float b1)
{
    const mma_share mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const unsigned char *all = loom_shim_exchange(&mine, sizeof mine, __LINE__);
    int g = loom_shim_lane() / 4, q = loom_shim_lane() % 4;

    for (int i = 0; i < 4; i++) {
        int high = i / 2, column = 2 * q + i % 2; /* C's row is g + 8 high */
        double sum = c[i];

        for (int k = 0; k < 8; k++) {
            mma_share left, right;
            memcpy(&left, all + LOOM_SHIM_LANE_BYTES * (4 * g + k % 4), sizeof left);
            memcpy(&right, all + LOOM_SHIM_LANE_BYTES * (4 * column + k % 4), sizeof right);
            sum += of_tf32(left.a[high + 2 * (k / 4)]) * of_tf32(right.b[k / 4]);
        }
        c[i] = static_cast<float>(sum);
    }
}

/* --- what a thread sees --- */

LOOM_SHIM_QUIET const loom_shim_place &loom_shim_here()
{
    return schedule.running->place;
}

static void *uninitialised(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);

    if (!memory)
        abort();
    return memset(memory, 0xff, bytes); /* NaN, or -1 */
}

LOOM_SHIM_QUIET void *loom_shim_static_shared(const void *key, size_t bytes, size_t alignment)
{
    scheduler *s = &schedule;
    unsigned i = 0;

    while (i < s->variable_count && s->variables[i].key != key)
        i++;
    if (i == VARIABLES_MAX || alignment > alignof(max_align_t))
        stuck("too many shared variables, or one of too strict an alignment");
    if (i == s->variable_count) {
        /* as aligned as its type asks, and no more, which is what the compiler for the device promises */
        char *allocation = static_cast<char *>(uninitialised(bytes + alignment));
        s->variables[s->variable_count++] = {key, allocation, allocation + alignment};
        publish(&s->variables[i]);
    }
    observe(&s->variables[i]);
    return s->variables[i].memory;
}

LOOM_SHIM_QUIET void *loom_shim_dynamic_shared()
{
    return schedule.dynamic;
}

/* --- blocks and grids --- */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

LOOM_SHIM_QUIET static void open_block(scheduler *s, dim3 grid, dim3 size, dim3 block, uint64_t number)
{
    s->thread_count = size.x * size.y * size.z;
    s->over = 0;
    s->variable_count = 0;
    s->block.waiting = 0;
    s->block.expected = s->thread_count;
    while (s->fiber_count < s->thread_count)
        s->fibers[s->fiber_count++] = make_fiber();
    for (unsigned i = 0; i < s->thread_count; i++) {
        /* another fiber for the same thread of the next block, so that blocks are not ordered by sharing one */
        fiber *f = s->fibers[(i + 7 * number) % s->thread_count];

        f->place = {dim3(i % size.x, i / size.x % size.y, i / size.x / size.y), block, size, grid};
        f->index = i;
        f->state = READY;
        f->line = 0;
        f->exchanges = 0;
        s->threads[i] = f;
    }
    for (unsigned w = 0; w * WARP < s->thread_count; w++) {
        s->warps[w].at.waiting = 0;
        s->warps[w].at.expected = s->thread_count - w * WARP < WARP ? s->thread_count - w * WARP : WARP;
    }
}

static void give_back(scheduler *s, void *memory)
{
#ifdef LOOM_SHIM_TSAN
    s->retired.push_back(memory);
#else
    (void)s;
    free(memory);
#endif
}

LOOM_SHIM_QUIET static void close_block(scheduler *s)
{
    for (unsigned i = 0; i < s->variable_count; i++)
        give_back(s, s->variables[i].allocation);
    give_back(s, s->dynamic);
    give_back(s, s->lanes);
}

LOOM_SHIM_QUIET static void run_block(scheduler *s, uint64_t *random)
{
    unsigned turn[BLOCK_MAX];

    for (unsigned i = 0; i < s->thread_count; i++)
        turn[i] = i;
    for (unsigned i = s->thread_count - 1; *random && i > 0; i--) {
        unsigned other = static_cast<unsigned>(next_random(random) % (i + 1)), kept = turn[i];
        turn[i] = turn[other], turn[other] = kept;
    }
    while (s->over < s->thread_count) {
        bool moved = false;

        for (unsigned i = 0; i < s->thread_count; i++)
            if (s->threads[turn[i]]->state == READY) {
                resume(s->threads[turn[i]]);
                moved = true;
            }
        if (!moved)
            stuck("its threads wait for one another for ever");
    }
}

void loom_shim_run(dim3 grid, dim3 block, size_t shared_bytes, loom_shim_kernel *kernel, const void *arguments)
{
    scheduler *s = &schedule;
    uint64_t blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z, random = s->seed;

    if (block.x * block.y * block.z == 0 || block.x * block.y * block.z > BLOCK_MAX) {
        fprintf(stderr, "shim: a block of %u x %u x %u threads\n", block.x, block.y, block.z);
        abort();
    }
#ifdef LOOM_SHIM_TSAN
    s->tsan = __tsan_get_current_fiber();
#endif
    s->kernel = kernel;
    s->arguments = arguments;
    for (uint64_t b = 0; b < blocks; b++) {
        s->dynamic = uninitialised(shared_bytes);
        s->lanes = static_cast<warp_lanes *>(uninitialised(sizeof(warp_lanes) * BLOCK_MAX / WARP));
        open_block(s, grid, block, dim3(static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                                        static_cast<unsigned>(b / grid.x / grid.y)), b);
        publish(&s->begun);
        run_block(s, &random);
        close_block(s);
    }
    observe(&s->ended);
    for (void *memory : s->retired)
        free(memory);
    s->retired.clear();
}

void loom_shim_set_seed(uint64_t seed)
{
    schedule.seed = seed;
}

/* --- launches --- */

/* The arguments lie behind it. */
struct alignas(max_align_t) loom_shim_work {
    dim3 grid, block;
    size_t shared_bytes;
    loom_shim_kernel *kernel;
};

static void run_work(void *context)
{
    const loom_shim_work *work = static_cast<const loom_shim_work *>(context);

    loom_shim_run(work->grid, work->block, work->shared_bytes, work->kernel, work + 1);
}

/* The limits of the hardware that a launch could break. */
static bool launchable(dim3 grid, dim3 block)
{
    uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;

    return grid.x > 0 && grid.x <= 0x7fffffffu && grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535 && threads > 0 &&
           threads <= BLOCK_MAX;
}

int loom_shim_launch(void *stream, dim3 grid, dim3 block, size_t shared_bytes, loom_shim_kernel *kernel, const void *arguments,
                     size_t arguments_bytes)
{
    enum { INVALID_VALUE = 1, INVALID_CONFIGURATION = 9 }; /* cudaErrorInvalidValue is what cudaFuncSetAttribute says to too much shared memory */
    loom_shim_work *work;

    if (shared_bytes > static_cast<size_t>(loom_gpu_shared_max()))
        return INVALID_VALUE;
    if (!launchable(grid, block))
        return INVALID_CONFIGURATION;
    work = static_cast<loom_shim_work *>(malloc(sizeof *work + arguments_bytes));
    if (!work)
        abort();
    *work = {grid, block, shared_bytes, kernel};
    memcpy(static_cast<void *>(work + 1), arguments, arguments_bytes);
    return loom_shim_enqueue(static_cast<CUstream_st *>(stream), run_work, work, free);
}
