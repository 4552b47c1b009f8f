/* The same loop on MPI, to compare with: mpirun -n 2 [--oversubscribe --mca mpi_yield_when_idle 1] mpi_collectives [--calls …] [--bytes …]
 */
#include <mpi.h>

#include "collectives_loop.h"

typedef struct buffers {
    float *send, *recv;
    int rank, size;
} buffers;

static void call(void *context, bench_call kind, size_t bytes)
{
    buffers *b = context;
    int count = (int)(bytes / 4), part = count / b->size;

    switch (kind) {
    case BENCH_ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, b->send, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(b->send, b->recv, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_GATHER:
        MPI_Allgather(b->send, part, MPI_FLOAT, b->recv, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_TO_ALL:
        MPI_Alltoall(b->send, part, MPI_FLOAT, b->recv, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BENCH_BROADCAST:
        MPI_Bcast(b->send, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case BENCH_SEND_RECV:
        MPI_Sendrecv(b->send, count, MPI_FLOAT, (b->rank + 1) % b->size, 0, b->recv, count, MPI_FLOAT, (b->rank + b->size - 1) % b->size, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    default:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    }
}

static void barrier(void *context)
{
    (void)context;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void touch(void *context, size_t bytes)
{
    buffers *b = context;
    float *send = b->send, *recv = b->recv;
    float sum = 0;

    for (size_t i = 0; i < bytes / 4; i++)
        sum += send[i] + recv[i];
    for (size_t i = 0; i < bytes / 4; i++)
        send[i] = sum * 0 + (float)(i & 7);
}

static double max_over_ranks(void *context, double value)
{
    double most;

    (void)context;
    MPI_Allreduce(&value, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

int main(int argc, char **argv)
{
    bench_plan plan = bench_plan_default();
    buffers b = {0};
    bench_maker maker = {
        .name = "mpi", .variant = "", .context = &b, .call = call, .barrier = barrier, .max = max_over_ranks, .touch = touch};

    MPI_Init(&argc, &argv);
    for (int i = 1; i < argc; i++)
        if (!bench_plan_option(&plan, argc, argv, &i)) {
            fprintf(stderr, "bench: what is %s?\n", argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.size);
    maker.rank = b.rank;
    maker.size = b.size;
    b.send = calloc(1, bench_plan_most(&plan));
    b.recv = calloc(1, bench_plan_most(&plan));
    bench_plan_run(&plan, &maker);
    MPI_Finalize();
    return 0;
}
