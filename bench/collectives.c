/* Latency and bandwidth of our collectives. One JSON object a line.
 *
 *   collectives [--ranks N] [--pin] [--buffers heap|malloc] [--transport shm|tcp] [--calls all_reduce,…] [--bytes 8,1048576,…] [--seconds
 * S]
 *
 * Forks the ranks itself; with --launched it is one rank of a launcher (torchrun, rankloom run, Slurm …), on one host or several. `--calls`
 * takes all_reduce reduce_scatter all_gather all_to_all broadcast send_recv barrier. */
#include <rankloom/comm.h>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collectives_loop.h"

typedef struct options {
    int ranks;
    bool heap, pinned, launched;
    const char *transport;
    bench_plan plan;
} options;

typedef struct rank_context {
    loom_device *device;
    loom_comm *comm;
    loom_stream *stream;
    char *send, *recv;
    bool heap;
} rank_context;

static void must(loom_status status)
{
    if (status < 0) {
        fprintf(stderr, "bench: %s\n", loom_last_error());
        exit(loom_exit_code(status));
    }
}

static void call(void *context, bench_call kind, size_t bytes)
{
    rank_context *c = context;
    int rank = loom_comm_rank(c->comm), size = loom_comm_size(c->comm);
    size_t count = bytes / 4, part = count / (size_t)size;

    switch (kind) {
    case BENCH_ALL_REDUCE:
        must(loom_all_reduce(c->comm, c->send, c->send, count, LOOM_F32, LOOM_SUM, c->stream));
        break;
    case BENCH_REDUCE_SCATTER:
        must(loom_reduce_scatter(c->comm, c->send, c->recv, part, LOOM_F32, LOOM_SUM, c->stream));
        break;
    case BENCH_ALL_GATHER:
        must(loom_all_gather(c->comm, c->send, c->recv, part, LOOM_F32, c->stream));
        break;
    case BENCH_ALL_TO_ALL:
        must(loom_all_to_all(c->comm, c->send, c->recv, part, LOOM_F32, c->stream));
        break;
    case BENCH_BROADCAST:
        must(loom_broadcast(c->comm, c->send, count, LOOM_F32, 0, c->stream));
        break;
    case BENCH_SEND_RECV:
        must(loom_group_begin(c->comm));
        must(loom_send(c->comm, c->send, count, LOOM_F32, (rank + 1) % size, 0, c->stream));
        must(loom_recv(c->comm, c->recv, count, LOOM_F32, (rank + size - 1) % size, 0, c->stream));
        must(loom_group_end(c->comm, c->stream));
        break;
    default:
        must(loom_barrier(c->comm, "bench", c->stream));
        break;
    }
    must(loom_stream_wait(c->stream));
}

static void barrier(void *context)
{
    call(context, BENCH_BARRIER, 0);
}

static void touch(void *context, size_t bytes)
{
    rank_context *c = context;
    float *send = (float *)(void *)c->send, *recv = (float *)(void *)c->recv;
    float sum = 0;

    for (size_t i = 0; i < bytes / 4; i++)
        sum += send[i] + recv[i];
    for (size_t i = 0; i < bytes / 4; i++)
        send[i] = sum * 0 + (float)(i & 7);
}

static double max_over_ranks(void *context, double value)
{
    rank_context *c = context;

    must(loom_all_reduce(c->comm, &value, &value, 1, LOOM_F64, LOOM_MAX, c->stream));
    must(loom_stream_wait(c->stream));
    return value;
}

static char *make_buffer(rank_context *c, size_t bytes)
{
    void *memory;

    if (c->heap) {
        must(loom_alloc(c->device, bytes, LOOM_MEM_OTHER, &memory));
    } else {
        memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!memory) {
            fprintf(stderr, "bench: no memory\n");
            exit(1);
        }
        memset(memory, 0, bytes);
    }
    return memory;
}

static void run_rank(const options *o, const loom_launch *launch)
{
    loom_comm_config config = {.deadline_s = 60, .transport = o->transport};
    rank_context c = {.heap = o->heap};
    size_t most = bench_plan_most(&o->plan);
    loom_store *store;
    bench_maker maker;
    char variant[64];

    must(loom_device_open(LOOM_CPU, NULL, &c.device));
    must(loom_store_open(launch, 60, &store));
    must(loom_comm_open_world(launch, store, c.device, &config, &c.comm));
    must(loom_stream_open(c.device, LOOM_STREAM_INLINE, "bench", &c.stream));
    c.send = make_buffer(&c, most);
    c.recv = make_buffer(&c, most);
    snprintf(variant, sizeof variant, "%s %s", loom_comm_transport(c.comm), o->heap ? "heap" : "malloc");
    maker = (bench_maker){"rankloom", variant, launch->rank, launch->size, &c, call, barrier, max_over_ranks, touch};
    bench_plan_run(&o->plan, &maker);
    loom_stream_close(c.stream);
    loom_comm_free(c.comm);
    loom_store_close(store);
}

/* Rank r on the r-th core it may use, as launchers do; with more ranks than cores they share. */
static void pin(int rank)
{
    cpu_set_t all, one;
    int wanted;

    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    wanted = rank % CPU_COUNT(&all);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &all) && wanted-- == 0)
            CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static int find_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        exit(1);
    close(fd);
    return ntohs(address.sin_port);
}

static options read_options(int argc, char **argv)
{
    options o = {.ranks = 2, .heap = true, .plan = bench_plan_default()};

    for (int i = 1; i < argc; i++) {
        if (bench_plan_option(&o.plan, argc, argv, &i))
            continue;
        if (i + 1 < argc && strcmp(argv[i], "--ranks") == 0)
            o.ranks = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--transport") == 0)
            o.transport = argv[++i];
        else if (strcmp(argv[i], "--launched") == 0)
            o.launched = true;
        else if (strcmp(argv[i], "--pin") == 0)
            o.pinned = true;
        else if (i + 1 < argc && strcmp(argv[i], "--buffers") == 0)
            o.heap = strcmp(argv[++i], "malloc") != 0;
        else {
            fprintf(stderr, "bench: what is %s?\n", argv[i]);
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    options o = read_options(argc, argv);
    loom_launch launch = {.launcher = LOOM_LAUNCH_ENV, .size = o.ranks, .master_addr = "127.0.0.1", .master_port = find_port()};
    int failed = 0, status;

    if (o.launched) {
        must(loom_launch_from_env(&launch));
        run_rank(&o, &launch);
        return 0;
    }

    for (int r = 0; r < o.ranks; r++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (o.pinned)
                pin(r);
            launch.rank = r;
            run_rank(&o, &launch);
            exit(0);
        }
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
