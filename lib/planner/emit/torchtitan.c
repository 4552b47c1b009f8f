/* torchtitan's TOML. */
#include "planner/emit/emit.h"

#include <string.h>

/* --- out ---------------------------------------------------------------------------------------------------------------- */

static const char *schedule_word(loom_emission *e)
{
    const loom_layout *l = e->layout;

    switch (l->schedule) {
    case LOOM_SCHEDULE_GPIPE:
        return l->vpp > 1 ? "LoopedBFS" : "GPipe";
    case LOOM_SCHEDULE_1F1B:
        return "1F1B";
    case LOOM_SCHEDULE_INTERLEAVED:
        return l->vpp > 1 ? "Interleaved1F1B" : "1F1B";
    case LOOM_SCHEDULE_ZB_V:
        return "ZBVZeroBubble";
    default:
        loom_emit_cannot(e, "schedule=%s: no schedule of one stage a rank with split backward; 1f1b, interleaved, gpipe and zb-v are known", loom_schedule_kind_name(l->schedule));
        return "";
    }
}

/* Names of the modules of every chunk, as torchtitan's Llama and its kin call them. */
static void add_modules(loom_emission *e)
{
    const loom_layout *l = e->layout;
    int64_t layer = 0;

    loom_text_add(&e->out, "module_fqns_per_model_part = [");
    for (int c = 0; c < l->n_chunks; c++) {
        const char *between = "";
        loom_text_add(&e->out, "%s\n  [", c ? "," : "");
        if (c == 0) {
            loom_text_add(&e->out, "\"tok_embeddings\"");
            between = ", ";
        }
        for (int64_t i = 0; i < l->chunk_layers[c]; i++, between = ", ")
            loom_text_add(&e->out, "%s\"layers.%lld\"", between, (long long)layer++);
        if (c == l->n_chunks - 1)
            loom_text_add(&e->out, "%s\"norm\", \"output\"", between);
        loom_text_add(&e->out, "]");
    }
    loom_text_add(&e->out, "\n]\n");
}

static void add_pipeline(loom_emission *e)
{
    const loom_layout *l = e->layout;

    loom_text_add(&e->out, "pipeline_parallel_degree = %d\n", l->pp);
    if (l->pp == 1) {
        if (l->vpp > 1)
            loom_emit_cannot(e, "vpp=%d with pp=1: a schedule of several stages wants pp 2 or more", l->vpp);
        return;
    }
    loom_text_add(&e->out, "pipeline_parallel_schedule = \"%s\"\npipeline_parallel_microbatch_size = %lld\n", schedule_word(e), (long long)l->micro_batch);
    if (e->even)
        loom_text_add(&e->out, "pipeline_parallel_layers_per_stage = %lld\npipeline_parallel_first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 0\n",
                      (long long)l->chunk_layers[0]);
    else
        add_modules(e);
}

static void add_sharding(loom_emission *e)
{
    const loom_layout *l = e->layout;

    if (l->zero == 1)
        loom_emit_cannot(e, "zero=1: optimizer states alone are not sharded; zero 0, 2 and 3 are known");
    if (l->zero == 0 && l->cp > 1)
        loom_emit_cannot(e, "zero=0 with cp=%d: weights are always sharded over cp; zero 2 and 3 are what it does", l->cp);
    loom_text_add(&e->out, "data_parallel_replicate_degree = %d\ndata_parallel_shard_degree = %d\n", l->zero == 0 ? l->dp : 1, l->zero == 0 ? 1 : l->dp);
    if (l->zero >= 2)
        loom_text_add(&e->out, "fsdp_reshard_after_forward = \"%s\"\n", l->zero == 2 ? "never" : "always");
}

static void add_context(loom_emission *e)
{
    const loom_layout *l = e->layout;

    loom_text_add(&e->out, "context_parallel_degree = %d\n", l->cp);
    if (l->cp == 1)
        return;
    if (l->cp_kind != LOOM_CP_RING && l->cp_kind != LOOM_CP_ALLGATHER)
        loom_emit_cannot(e, "cp_kind=%s: keys and values are passed round or gathered; ring and allgather are known", loom_cp_kind_name(l->cp_kind));
    loom_text_add(&e->out, "context_parallel_rotate_method = \"%s\"\n", l->cp_kind == LOOM_CP_RING ? "alltoall" : "allgather");
}

/* Experts take over ranks of dp_shard, cp and tp of one replica: ep x etp of them each. */
static void add_experts(loom_emission *e)
{
    const loom_layout *l = e->layout;
    int lent = (l->zero == 0 ? 1 : l->dp) * l->cp * l->tp;

    if (e->model->moe.experts == 0)
        return;
    if (l->etp != 1 && l->etp != l->tp)
        loom_emit_cannot(e, "etp=%d: 1 and tp=%d are known", l->etp, l->tp);
    else if (l->ep == 1 && l->etp != l->tp)
        loom_emit_cannot(e, "etp=%d with ep=1: experts are then split over tp=%d", l->etp, l->tp);
    else if (l->ep > 1 && lent % (l->ep * l->etp) != 0)
        loom_emit_cannot(e, "ep=%d x etp=%d: has to divide data_parallel_shard_degree x cp x tp = %d", l->ep, l->etp, lent);
    loom_text_add(&e->out, "expert_parallel_degree = %d\nexpert_tensor_parallel_degree = %d\n", l->ep, l->etp);
}

void loom_emit_torchtitan(loom_emission *e)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    const loom_layout *l = e->layout;

    loom_emit_usual_order_only(e);
    if (l->tp > 1 && !l->sequence_parallel)
        loom_emit_cannot(e, "sequence_parallel=false at tp=%d: v0.2.2 always splits the sequence", l->tp);
    loom_text_add(&e->out, "# %s, for %d GPUs\n[parallelism]\ntensor_parallel_degree = %d\n", loom_dialect_version(LOOM_DIALECT_TORCHTITAN), e->world, l->tp);
    add_sharding(e);
    add_context(e);
    add_experts(e);
    add_pipeline(e);
    loom_text_add(&e->out, "\n[training]\nlocal_batch_size = %lld\nglobal_batch_size = %lld\nseq_len = %lld\n", (long long)(l->pp > 1 ? l->global_batch / l->dp : l->micro_batch),
                  (long long)l->global_batch, (long long)l->seq);
    loom_text_add(&e->out, "\n[activation_checkpoint]\nmode = \"%s\"\n%s", recompute[l->recompute], l->recompute == LOOM_RECOMPUTE_SELECTIVE ? "selective_ac_option = \"op\"\n" : "");
}

/* --- in ------------------------------------------------------------------------------------------------------------------ */

static const char *const schedules[] = {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZBVZeroBubble", "InterleavedZeroBubble", "DualPipeV", NULL};
enum { GPIPE, ONE_F_ONE_B, INTERLEAVED, LOOPED, ZBV, INTERLEAVED_ZB, DUAL };

typedef struct titan {
    int tp, pp, cp, ep, etp, replicate, shard, schedule, reshard, rotate, mode, first_less, last_less;
    int64_t layers_per_stage, micro_batch, local_batch, global_batch;
} titan;

/* Chunks from the names of their modules: how many layers.N each holds. */
static void take_modules(loom_reader *reader, const loom_node *list, loom_importing *in)
{
    loom_layout *l = in->layout;
    size_t parts = loom_node_count(list);

    if (parts > LOOM_MAX_STAGES || parts % (size_t)l->pp != 0) {
        loom_reader_problem(reader, list, "has %zu parts, which pipeline_parallel_degree=%d does not divide", parts, l->pp);
        return;
    }
    l->n_chunks = (int)parts;
    l->vpp = (int)parts / l->pp;
    for (size_t c = 0; c < parts; c++) {
        const loom_node *part = loom_node_at(list, c);
        l->chunk_layers[c] = 0;
        for (size_t i = 0; i < loom_node_count(part); i++) {
            const char *name = loom_node_text(loom_node_at(part, i));
            l->chunk_layers[c] += name && strncmp(name, "layers.", 7) == 0;
        }
    }
}

static void take_stages(loom_reader *reader, const loom_node *map, loom_importing *in, const titan *t)
{
    loom_layout *l = in->layout;
    bool several = t->schedule != GPIPE && t->schedule != ONE_F_ONE_B;
    int64_t layers = in->model ? in->model->layers : 0, stages;

    l->vpp = several ? 2 : 1; /* its default for schedules of several stages a rank */
    if (t->layers_per_stage == 0)
        return;
    if (layers == 0) {
        loom_reader_problem(reader, map, "pipeline_parallel_layers_per_stage=%lld: how many stages that makes depends on the number of layers; name the model",
                            (long long)t->layers_per_stage);
        return;
    }
    stages = (layers + t->first_less + t->last_less + t->layers_per_stage - 1) / t->layers_per_stage;
    if (stages % l->pp != 0)
        loom_reader_problem(reader, map, "%lld layers in stages of %lld make %lld stages, which pipeline_parallel_degree=%d does not divide", (long long)layers,
                            (long long)t->layers_per_stage, (long long)stages, l->pp);
    else
        l->vpp = (int)(stages / l->pp);
    if (t->first_less + t->last_less > 0)
        loom_import_note(in, "embedding and head count as layers when torchtitan splits; here the layers are split evenly: list them in layers_per_stage if it matters");
}

static void take_schedule(loom_reader *reader, const loom_node *map, loom_importing *in, const titan *t)
{
    static const loom_schedule_kind kinds[] = {LOOM_SCHEDULE_GPIPE, LOOM_SCHEDULE_1F1B, LOOM_SCHEDULE_INTERLEAVED, LOOM_SCHEDULE_GPIPE, LOOM_SCHEDULE_ZB_V};

    if (t->schedule >= INTERLEAVED_ZB)
        loom_reader_problem(reader, map, "pipeline_parallel_schedule %s has no counterpart here; 1F1B, Interleaved1F1B, GPipe, LoopedBFS and ZBVZeroBubble have", schedules[t->schedule]);
    else
        in->layout->schedule = kinds[t->schedule];
}

static void take_sharding(loom_reader *reader, const loom_node *map, loom_importing *in, const titan *t)
{
    loom_layout *l = in->layout;
    int shard = t->shard, rest = t->tp * t->pp * t->cp * t->replicate;

    if (shard < 0) {
        if (in->world < rest || in->world % rest != 0) {
            loom_reader_problem(reader, map, "data_parallel_shard_degree=-1 is what %d leaves of the ranks, and there are %d (--world)", rest, in->world);
            return;
        }
        shard = in->world / rest;
    }
    if (t->replicate > 1 && shard > 1)
        loom_reader_problem(reader, map, "data_parallel_replicate_degree=%d with data_parallel_shard_degree=%d: hybrid sharding has no word in a layout here", t->replicate, shard);
    l->dp = t->replicate * shard;
    l->zero = t->reshard == 1 ? 3 : t->reshard == 2 ? 2 : shard * t->cp == 1 ? 0 : t->pp > 1 ? 2 : 3;
}

static void read_parallelism(loom_reader *reader, const loom_node *map, titan *t)
{
    static const char *const reshard[] = {"default", "always", "never", NULL}, *const rotate[] = {"allgather", "alltoall", NULL};
    const int most = 1 << 24;

    loom_read_int(reader, map, "tensor_parallel_degree", 1, most, &t->tp);
    loom_read_int(reader, map, "pipeline_parallel_degree", 1, LOOM_MAX_STAGES, &t->pp);
    loom_read_int(reader, map, "context_parallel_degree", 1, most, &t->cp);
    loom_read_int(reader, map, "expert_parallel_degree", 1, most, &t->ep);
    loom_read_int(reader, map, "expert_tensor_parallel_degree", 1, most, &t->etp);
    loom_read_int(reader, map, "data_parallel_replicate_degree", 1, most, &t->replicate);
    loom_read_int(reader, map, "data_parallel_shard_degree", -1, most, &t->shard);
    loom_read_choice(reader, map, "fsdp_reshard_after_forward", reshard, &t->reshard);
    loom_read_choice(reader, map, "context_parallel_rotate_method", rotate, &t->rotate);
    loom_read_choice(reader, map, "pipeline_parallel_schedule", schedules, &t->schedule);
    loom_read_i64(reader, map, "pipeline_parallel_layers_per_stage", 1, INT32_MAX, &t->layers_per_stage);
    loom_read_int(reader, map, "pipeline_parallel_first_stage_less_layers", 0, 1024, &t->first_less);
    loom_read_int(reader, map, "pipeline_parallel_last_stage_less_layers", 0, 1024, &t->last_less);
    loom_read_i64(reader, map, "pipeline_parallel_microbatch_size", 1, INT32_MAX, &t->micro_batch);
    if (t->shard == 0)
        loom_reader_problem(reader, map, "data_parallel_shard_degree=0; -1 or 1 and more are possible");
}

static void take(loom_reader *reader, const loom_node *map, loom_importing *in, const titan *t)
{
    loom_layout *l = in->layout;

    l->tp = t->tp, l->pp = t->pp, l->cp = t->cp, l->ep = t->ep, l->etp = t->etp;
    l->sequence_parallel = t->tp > 1;
    l->cp_kind = t->cp > 1 && t->rotate == 1 ? LOOM_CP_RING : t->cp > 1 ? LOOM_CP_ALLGATHER : LOOM_CP_RING;
    l->recompute = (loom_recompute)t->mode;
    l->vpp = 1;
    l->n_chunks = 0;
    take_sharding(reader, map, in, t);
    if (t->ep == 1 && in->model && in->model->moe.experts > 0)
        l->etp = t->tp; /* without ep, experts are split like any MLP */
    l->micro_batch = t->pp > 1 ? t->micro_batch : t->local_batch;
    l->global_batch = t->global_batch > 0 ? t->global_batch : t->local_batch * l->dp;
    l->schedule = LOOM_SCHEDULE_1F1B;
    if (t->pp == 1)
        return;
    take_schedule(reader, map, in, t);
    const loom_node *modules = loom_read_list(reader, map, "module_fqns_per_model_part");
    if (modules)
        take_modules(reader, modules, in);
    else
        take_stages(reader, map, in, t);
}

static void read_all(loom_reader *reader, const loom_node *root, loom_importing *in)
{
    static const char *const modes[] = {"none", "selective", "full", NULL};
    titan t = {.tp = 1, .pp = 1, .cp = 1, .ep = 1, .etp = 1, .replicate = 1, .shard = -1, .schedule = ONE_F_ONE_B, .mode = LOOM_RECOMPUTE_SELECTIVE, .first_less = 1,
               .last_less = 1, .micro_batch = 1, .local_batch = 8};
    const loom_node *parallelism = loom_read_map(reader, root, "parallelism"), *training = loom_read_map(reader, root, "training"),
                    *checkpoint = loom_read_map(reader, root, "activation_checkpoint");

    loom_reader_allow_unknown(reader, root);
    if (parallelism)
        loom_reader_allow_unknown(reader, parallelism);
    if (training)
        loom_reader_allow_unknown(reader, training);
    if (checkpoint)
        loom_reader_allow_unknown(reader, checkpoint);
    read_parallelism(reader, parallelism, &t);
    if (!loom_read_i64(reader, training, "local_batch_size", 1, INT32_MAX, &t.local_batch))
        loom_import_note(in, "local_batch_size is not said: torchtitan takes 8");
    int64_t global = -1;
    if (loom_read_i64(reader, training, "global_batch_size", -1, INT32_MAX, &global) && global > 0)
        t.global_batch = global;
    loom_read_i64(reader, training, "seq_len", 1, INT32_MAX, &in->layout->seq);
    if (!loom_read_choice(reader, checkpoint, "mode", modes, &t.mode))
        loom_import_note(in, "activation_checkpoint.mode is not said: torchtitan takes selective");
    if (loom_reader_problems(reader) == 0)
        take(reader, parallelism, in, &t);
}

loom_status loom_import_torchtitan(loom_importing *in)
{
    loom_config *config;
    loom_reader *reader;
    loom_status status = loom_toml_parse(in->source, in->text, in->bytes, &config);

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
