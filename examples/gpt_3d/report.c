#include "report.h"
#include "try.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *human_bytes(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return text;
}

static void print_model(const gpt_run *run)
{
    loom_param_counts counts;

    loom_model_count(&run->model, &counts);
    printf("model    %s: %lld layers, hidden %lld, heads %lld/%lld, vocab %lld, %.2f M parameters\n", run->model.name,
           (long long)run->model.layers, (long long)run->model.hidden, (long long)run->model.heads, (long long)run->model.kv_heads,
           (long long)run->model.vocab, (double)counts.total / 1e6);
    if (run->model.unmodelled & LOOM_UNMODELLED_DROPOUT)
        printf("         the model file asks for dropout; this trainer has none\n");
}

static void print_padding(const loom_layout *layout)
{
    int64_t padded = loom_layout_padded_seq(layout, layout->seq), unit = loom_layout_padded_seq(layout, 1), below = layout->seq / unit * unit;

    if (padded == layout->seq)
        return;
    printf("padding  seq %lld is no multiple of %lld: %lld tokens are put behind each sequence, %.2f%% more work; %lld", (long long)layout->seq,
           (long long)unit, (long long)(padded - layout->seq), 100.0 * (double)(padded - layout->seq) / (double)layout->seq, (long long)padded);
    if (below > 0)
        printf(" and %lld", (long long)below);
    printf(" need none\n");
}

static void print_layout(const gpt_run *run)
{
    char text[256];

    printf("layout   %s, %d rank%s, %lld micro-batches a step\n", loom_layout_describe(&run->layout, text, sizeof text),
           loom_layout_world(&run->layout), loom_layout_world(&run->layout) == 1 ? "" : "s",
           (long long)loom_layout_micro_batches(&run->layout));
    print_padding(&run->layout);
    for (int c = 0; c < run->layout.n_chunks; c++) {
        int64_t first = loom_layout_first_layer(&run->layout, c), layers = run->layout.chunk_layers[c];

        printf("  chunk %-2d on stage %d: %s", c, loom_layout_stage_of_chunk(&run->layout, c), c == 0 ? "embedding, " : "");
        if (layers > 0)
            printf("layers %lld-%lld", (long long)first, (long long)(first + layers - 1));
        else
            printf("no layers");
        printf("%s\n", c == run->layout.n_chunks - 1 ? ", norm, head, loss" : "");
    }
}

static void print_memory(const loom_device *device)
{
    loom_ledger ledger;
    char text[32];

    loom_device_ledger(device, &ledger);
    for (int use = 0; use < LOOM_MEM_USES; use++)
        if (ledger.peak[use] > 0)
            printf("  %-12s %12s\n", loom_memory_use_name((loom_memory_use)use), human_bytes(ledger.peak[use], text));
    printf("  %-12s %12s\n", "peak", human_bytes(ledger.peak_total, text));
}

/* On processors nobody expects any. */
static void print_graphs(const gpt_trainer *t)
{
    const char *obstacle = gpt_replay_obstacle(t);

    if (loom_device_captures(t->device))
        printf("graphs   %s%s\n", obstacle ? "none: " : "forward and backward are captured in the second step, and replayed from then on", obstacle ? obstacle : "");
}

void gpt_report_start(const gpt_trainer *t)
{
    char *groups;

    if (loom_comm_rank(t->world) != 0)
        return;
    print_model(t->run);
    print_layout(t->run);
    if (loom_mesh_describe(t->mesh, &groups) == LOOM_OK) {
        fputs(groups, stdout);
        loom_text_free(groups);
    }
    printf("kernels  %s, GEMM by %s, %d thread%s a rank; transport %s\n", t->kernels->isa, t->kernels->gemm_library,
           loom_device_threads(t->device), loom_device_threads(t->device) == 1 ? "" : "s", loom_comm_transport(t->world));
    print_graphs(t);
    printf("memory   of rank 0\n");
    print_memory(t->device);
    fflush(stdout);
}

static void print_line(const gpt_trainer *t, int64_t step, const gpt_step *r, const char *end)
{
    int64_t left = t->run->train.steps - step - 1;
    double left_s = (double)left * r->seconds;

    printf("step %5lld/%lld  loss %.4f  grad %.3f  lr %.2e  %8.0f tokens/s  %6.1f ms", (long long)step + 1, (long long)t->run->train.steps, r->loss,
           r->grad_norm, r->lr, (double)r->tokens / r->seconds, r->seconds * 1e3);
    if (t->run->model.moe.experts > 0)
        printf("  busiest expert %.2f of the mean", r->load.most);
    if (t->run->experts.capacity_factor > 0)
        printf("  dropped %.2f%%", 100 * r->load.dropped);
    printf("  left %d:%02d%s", (int)(left_s / 60), (int)left_s % 60, end);
    fflush(stdout);
}

void gpt_report_step(const gpt_trainer *t, int64_t step, const gpt_step *r)
{
    int64_t every = t->run->train.steps / 20 > 0 ? t->run->train.steps / 20 : 1;
    bool milestone = step == 0 || (step + 1) % every == 0 || step + 1 == t->run->train.steps;

    if (loom_comm_rank(t->world) != 0)
        return;
    if (isatty(STDOUT_FILENO))
        print_line(t, step, r, milestone ? "   \n" : "   \r");
    else if (milestone)
        print_line(t, step, r, "\n");
}

void gpt_report_end(const gpt_trainer *t, const gpt_step *last, double seconds)
{
    double all = 0;

    if (loom_comm_rank(t->world) != 0)
        return;
    printf("done     %lld steps in %.1f s, last loss %.4f nats a token\n", (long long)t->run->train.steps, seconds, last->loss);
    printf("last step of rank 0:");
    for (int kind = 0; kind < LOOM_TIME_KINDS; kind++)
        all += last->breakdown[kind];
    for (int kind = 0; kind < LOOM_TIME_KINDS; kind++)
        if (last->breakdown[kind] > 0)
            printf("  %s %.1f%%", loom_time_kind_name((loom_time_kind)kind), 100 * last->breakdown[kind] / all);
    printf("\n");
    fflush(stdout);
}

/* --- rehearsal ------------------------------------------------------------------------------------------------------------------- */

static void print_calls(const char *name, const loom_traffic *traffic)
{
    char text[32];

    for (int kind = 0; kind < LOOM_CALL_KINDS; kind++)
        if (traffic->bytes[kind] > 0)
            printf("  %-8s %-16s %8llu calls %12s\n", name, loom_call_kind_name((loom_call_kind)kind), (unsigned long long)traffic->calls[kind],
                   human_bytes(traffic->bytes[kind], text));
}

static void print_comm(const loom_comm *comm)
{
    loom_traffic traffic;

    if (!comm || loom_comm_size(comm) == 1)
        return;
    loom_comm_traffic(comm, &traffic);
    print_calls(loom_comm_name(comm), &traffic);
}

static void print_traffic(const loom_mesh *mesh, const loom_cp *cp, bool experts)
{
    loom_traffic traffic;

    print_comm(mesh->axis[LOOM_AXIS_TP]);
    loom_cp_traffic(cp, &traffic); /* a hybrid's groups too */
    print_calls("cp", &traffic);
    print_comm(mesh->axis[LOOM_AXIS_DP]);
    print_comm(mesh->axis[LOOM_AXIS_PP]);
    if (experts) {
        print_comm(mesh->axis[LOOM_AXIS_ETP]);
        print_comm(mesh->axis[LOOM_AXIS_EP]);
        print_comm(mesh->axis[LOOM_AXIS_EDP]);
        print_comm(mesh->stage);
    }
    print_comm(mesh->gradient);
    print_comm(mesh->tied);
    print_comm(mesh->kv);
    print_comm(mesh->model);
}

static void reset_traffic(const loom_mesh *mesh)
{
    loom_comm *const others[] = {mesh->gradient, mesh->tied, mesh->kv, mesh->stage, mesh->model};

    for (int axis = 0; axis < LOOM_AXES; axis++)
        loom_comm_reset_traffic(mesh->axis[axis]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i])
            loom_comm_reset_traffic(others[i]);
}

static loom_status rehearse(const gpt_run *run, int rank)
{
    loom_device *device = NULL;
    loom_comm *world = NULL;
    gpt_trainer *trainer = NULL;
    gpt_step step;
    loom_status status = loom_device_open(LOOM_DRY, NULL, &device);

    if (status == LOOM_OK)
        status = loom_comm_open_dry(rank, loom_layout_world(&run->layout), device, &world);
    if (status == LOOM_OK)
        status = gpt_trainer_open(run, world, &trainer);
    if (status == LOOM_OK) {
        reset_traffic(trainer->mesh);
        status = gpt_trainer_step(trainer, 0, &step);
    }
    if (status == LOOM_OK) {
        printf("stage %d (rank %d): memory\n", trainer->mesh->here.at[LOOM_AXIS_PP], rank);
        print_memory(device);
        printf("  what this rank sends in one step\n");
        print_traffic(trainer->mesh, trainer->stage->shape.cp, run->model.moe.experts > 0);
    }
    gpt_trainer_close(trainer);
    loom_comm_free(world);
    loom_device_close(device);
    return status;
}

loom_status gpt_dry_run(const gpt_run *run)
{
    print_model(run);
    print_layout(run);
    for (int stage = 0; stage < run->layout.pp; stage++)
        TRY(rehearse(run, loom_layout_rank(&run->layout, (int[4]){0, 0, 0, stage})));
    return LOOM_OK;
}
