/* MaxText's YAML. One slice is assumed: every axis inside it. */
#include "planner/emit/emit.h"

#include <math.h>
#include <stdio.h>

/* --- out ---------------------------------------------------------------------------------------------------------------- */

static void refuse(loom_emission *e)
{
    const loom_layout *l = e->layout;

    loom_emit_usual_order_only(e);
    loom_emit_even_only(e, "a number of layers that pp * vpp divides has");
    if (l->zero == 2)
        loom_emit_cannot(e, "zero=2: gradients alone are not sharded; zero 0, 1 and 3 are known");
    if (l->zero == 3 && l->dp == l->ep)
        loom_emit_cannot(e, "zero=3 with dp=%d and ep=%d: no ranks are left for the fsdp axis; zero 0 is the same", l->dp, l->ep);
    if (l->pp > 1 && l->schedule != LOOM_SCHEDULE_1F1B && l->schedule != LOOM_SCHEDULE_INTERLEAVED)
        loom_emit_cannot(e, "schedule=%s: its circular pipeline is the only one, and stands for 1f1b and interleaved", loom_schedule_kind_name(l->schedule));
    if (l->pp > 1 && e->micro_batches % l->pp != 0)
        loom_emit_cannot(e, "%lld micro-batches: pp=%d has to divide them", (long long)e->micro_batches, l->pp);
    if (l->pp == 1 && l->vpp > 1)
        loom_emit_cannot(e, "vpp=%d with pp=1: repeats want a pipeline", l->vpp);
    if (l->cp > 1 && l->cp_kind == LOOM_CP_HYBRID)
        loom_emit_cannot(e, "cp_kind=hybrid: which ranks exchange heads is an axis of its own; ring, allgather and ulysses are known");
    if (e->model->moe.experts > 0 && l->etp != l->tp)
        loom_emit_cannot(e, "etp=%d: experts are split over tp=%d", l->etp, l->tp);
    if (l->dp % l->ep != 0)
        loom_emit_cannot(e, "ep=%d: the expert axis is a part of dp=%d, and has to divide it", l->ep, l->dp);
}

static void add_axes(loom_emission *e)
{
    const loom_layout *l = e->layout;
    int data = l->dp / l->ep;

    loom_text_add(&e->out, "ici_tensor_parallelism: %d\nici_tensor_sequence_parallelism: %d\nici_context_parallelism: %d\nici_pipeline_parallelism: %d\n",
                  l->sequence_parallel ? 1 : l->tp, l->sequence_parallel ? l->tp : 1, l->cp, l->pp);
    loom_text_add(&e->out, "ici_data_parallelism: %d\nici_fsdp_parallelism: %d\nici_expert_parallelism: %d\ndcn_data_parallelism: 1\n", l->zero == 3 ? 1 : data,
                  l->zero == 3 ? data : 1, l->ep);
    if (l->zero == 1)
        loom_text_add(&e->out, "shard_optimizer_over_data: true\n");
}

void loom_emit_maxtext(loom_emission *e)
{
    static const char *const strategies[] = {[LOOM_CP_RING] = "ring", [LOOM_CP_ALLGATHER] = "all_gather", [LOOM_CP_ULYSSES] = "ulysses", [LOOM_CP_HYBRID] = ""};
    static const char *const remat[] = {"none", "minimal", "full"};
    const loom_layout *l = e->layout;
    int64_t passes = l->pp > 1 ? 1 : e->micro_batches;

    refuse(e);
    loom_text_add(&e->out, "# %s, for %d devices in one slice\n", loom_dialect_version(LOOM_DIALECT_MAXTEXT), e->world);
    if (l->zero < 3 && (l->cp > 1 || l->ep > 1))
        loom_text_add(&e->out, "# MaxText shards weights over the context and expert axes whatever is said here\n");
    if (l->cp > 1 && l->cp_kind == LOOM_CP_ULYSSES)
        loom_text_add(&e->out, "# ulysses runs on TPU only\n");
    add_axes(e);
    if (l->cp > 1)
        loom_text_add(&e->out, "context_parallel_strategy: %s\ncontext_parallel_load_balance: %s\n%s", strategies[l->cp_kind], l->cp_kind == LOOM_CP_ULYSSES ? "false" : "true",
                      l->cp_kind == LOOM_CP_ULYSSES ? "attention: flash\nuse_tokamax_splash: true\n" : "");
    if (l->pp > 1)
        loom_text_add(&e->out, "num_layers_per_pipeline_stage: %lld\nnum_pipeline_repeats: %d\nnum_pipeline_microbatches: %lld\n", (long long)l->chunk_layers[0], l->vpp,
                      (long long)e->micro_batches);
    else
        loom_text_add(&e->out, "gradient_accumulation_steps: %lld\n", (long long)e->micro_batches);
    loom_text_add(&e->out, "per_device_batch_size: ");
    loom_text_add_number(&e->out, (double)l->global_batch / ((double)e->world * (double)passes));
    loom_text_add(&e->out, "\nmax_target_length: %lld\nremat_policy: %s\ndtype: bfloat16\nweight_dtype: float32\n", (long long)l->seq, remat[l->recompute]);
}

/* --- in ------------------------------------------------------------------------------------------------------------------ */

enum { TENSOR, TENSOR_SEQUENCE, CONTEXT, PIPELINE, DATA, FSDP, EXPERT, AXES };
static const char *const axis_names[AXES] = {"tensor", "tensor_sequence", "context", "pipeline", "data", "fsdp", "expert"};

typedef struct max_file {
    int axis[AXES];      /* inside a slice and across */
    int64_t passes, micro_batches, layers_per_stage;
    int repeats;
    double per_device;
    bool shard_optimizer;
    int strategy, remat;
} max_file;

/* Degrees in and across slices. One of all may be -1: what is left of the ranks. Not said, ici_fsdp_parallelism is. */
static void read_axes(loom_reader *reader, const loom_node *root, loom_importing *in, max_file *m)
{
    int open = -1;
    int64_t product = 1;

    for (int a = 0; a < AXES; a++) {
        m->axis[a] = 1;
        for (int across = 0; across < 2; across++) {
            char key[64];
            int degree = a == FSDP && !across ? -1 : 1;
            snprintf(key, sizeof key, "%s_%s_parallelism", across ? "dcn" : "ici", axis_names[a]);
            loom_read_int(reader, root, key, -1, 1 << 24, &degree);
            if (degree < 0 && open >= 0)
                loom_reader_problem(reader, root, "%s and an axis of %s are both open; say one of them", key, axis_names[open]);
            else if (degree < 0)
                open = a;
            else
                m->axis[a] *= degree;
        }
        product *= m->axis[a];
    }
    if (open < 0 || product < 1)
        return;
    if (in->world < product || in->world % product != 0)
        loom_reader_problem(reader, root, "the %s axis is open, and the others, %lld, leave nothing whole of %d ranks (--world)", axis_names[open], (long long)product, in->world);
    else
        m->axis[open] *= (int)(in->world / product);
}

static void take_degrees(loom_reader *reader, const loom_node *root, loom_importing *in, const max_file *m)
{
    loom_layout *l = in->layout;
    const int *a = m->axis;

    if (a[TENSOR] > 1 && a[TENSOR_SEQUENCE] > 1)
        loom_reader_problem(reader, root, "axes tensor and tensor_sequence are both used; a layout here has one tp");
    if (a[DATA] > 1 && a[FSDP] > 1)
        loom_reader_problem(reader, root, "data=%d with fsdp=%d: hybrid sharding has no word in a layout here", a[DATA], a[FSDP]);
    l->tp = a[TENSOR] * a[TENSOR_SEQUENCE];
    l->sequence_parallel = a[TENSOR_SEQUENCE] > 1;
    l->cp = a[CONTEXT], l->pp = a[PIPELINE], l->ep = a[EXPERT], l->dp = a[DATA] * a[FSDP] * a[EXPERT];
    l->etp = in->model && in->model->moe.experts == 0 ? 1 : a[EXPERT] > 1 || in->model ? l->tp : 1;
    l->zero = a[FSDP] > 1 ? 3 : m->shard_optimizer ? 1 : 0;
}

static void take_batch(loom_reader *reader, const loom_node *root, loom_importing *in, const max_file *m)
{
    loom_layout *l = in->layout;
    int64_t passes = l->pp > 1 ? m->micro_batches > 0 ? m->micro_batches : l->pp : m->passes;
    double batch = m->per_device * loom_layout_world(l) * (l->pp > 1 ? 1.0 : (double)passes), whole = nearbyint(batch);

    if (!(fabs(batch - whole) <= 1e-6 * batch) || whole < 1) {
        loom_reader_problem(reader, root, "per_device_batch_size=%g over %d devices is a batch of %g sequences", m->per_device, loom_layout_world(l), batch);
        return;
    }
    l->global_batch = (int64_t)whole;
    if (l->global_batch % (l->dp * passes) != 0)
        loom_reader_problem(reader, root, "a batch of %lld is not dp %d x %lld micro-batches", (long long)l->global_batch, l->dp, (long long)passes);
    else
        l->micro_batch = l->global_batch / (l->dp * passes);
}

static void take_pipeline(loom_reader *reader, const loom_node *root, loom_importing *in, const max_file *m)
{
    loom_layout *l = in->layout;
    int64_t layers = in->model ? in->model->layers : 0, chunk = m->layers_per_stage * l->pp;

    l->vpp = 1;
    l->n_chunks = 0;
    l->schedule = LOOM_SCHEDULE_1F1B;
    if (l->pp == 1)
        return;
    if (m->repeats > 0)
        l->vpp = m->repeats;
    else if (layers > 0 && layers % chunk == 0)
        l->vpp = (int)(layers / chunk);
    else
        loom_reader_problem(reader, root, "num_pipeline_repeats is open: %s", layers > 0 ? "num_layers_per_pipeline_stage times stages does not divide the layers" : "name the model");
    l->schedule = l->vpp > 1 ? LOOM_SCHEDULE_INTERLEAVED : LOOM_SCHEDULE_1F1B;
    loom_import_note(in, "MaxText's circular pipeline is taken as %s", loom_schedule_kind_name(l->schedule));
}

static void read_all(loom_reader *reader, const loom_node *root, loom_importing *in)
{
    static const char *const strategies[] = {"ring", "all_gather", "ulysses", "usp", NULL}, *const remat[] = {"none", "minimal", "full", NULL};
    max_file m = {.passes = 1, .layers_per_stage = 1, .repeats = -1, .per_device = 12, .strategy = LOOM_CP_ALLGATHER, .remat = LOOM_RECOMPUTE_FULL};

    loom_reader_allow_unknown(reader, root);
    read_axes(reader, root, in, &m);
    loom_read_i64(reader, root, "gradient_accumulation_steps", 1, INT32_MAX, &m.passes);
    loom_read_i64(reader, root, "num_pipeline_microbatches", -1, INT32_MAX, &m.micro_batches);
    loom_read_i64(reader, root, "num_layers_per_pipeline_stage", 1, INT32_MAX, &m.layers_per_stage);
    loom_read_int(reader, root, "num_pipeline_repeats", -1, LOOM_MAX_STAGES, &m.repeats);
    loom_read_f64(reader, root, "per_device_batch_size", 1e-9, 1e9, &m.per_device);
    loom_read_bool(reader, root, "shard_optimizer_over_data", &m.shard_optimizer);
    loom_read_choice(reader, root, "context_parallel_strategy", strategies, &m.strategy);
    loom_read_choice(reader, root, "remat_policy", remat, &m.remat);
    loom_read_i64(reader, root, "max_target_length", 1, INT32_MAX, &in->layout->seq);
    if (loom_reader_problems(reader) > 0)
        return;
    take_degrees(reader, root, in, &m);
    in->layout->cp_kind = in->layout->cp > 1 ? (loom_cp_kind)m.strategy : LOOM_CP_RING;
    in->layout->recompute = (loom_recompute)m.remat;
    take_pipeline(reader, root, in, &m);
    take_batch(reader, root, in, &m);
}

loom_status loom_import_maxtext(loom_importing *in)
{
    loom_config *config;
    loom_reader *reader;
    loom_status status = loom_config_parse(in->source, in->text, in->bytes, &config);

    if (status < 0)
        return status;
    status = loom_reader_open(config, &reader);
    if (status == LOOM_OK) {
        read_all(reader, loom_config_root(config), in);
        status = loom_reader_finish(reader);
    }
    loom_config_free(config);
    return status;
}
