/* DeepSpeed's JSON. */
#include "planner/emit/emit.h"

/* --- out ---------------------------------------------------------------------------------------------------------------- */

static void refuse(loom_emission *e)
{
    const loom_layout *l = e->layout;

    loom_emit_no_pipeline(e, "stages are made in code, PipelineModule(num_stages=); the JSON has no word for them");
    loom_emit_usual_order_only(e);
    if (l->tp > 1 && l->sequence_parallel)
        loom_emit_cannot(e, "sequence_parallel=true at tp=%d: AutoTP does not split the sequence", l->tp);
    if (l->cp > 1 && l->cp_kind != LOOM_CP_ULYSSES)
        loom_emit_cannot(e, "cp_kind=%s: the sequence is split the Ulysses way only", loom_cp_kind_name(l->cp_kind));
    if (l->etp > 1)
        loom_emit_cannot(e, "etp=%d: only 1 is accepted", l->etp);
    if (l->recompute != LOOM_RECOMPUTE_NONE)
        loom_emit_cannot(e, "recompute=%s: is set in the model's code; the JSON has it for pipelines only", loom_recompute_name(l->recompute));
}

void loom_emit_deepspeed(loom_emission *e)
{
    const loom_layout *l = e->layout;
    loom_text *out = &e->out;

    refuse(e);
    loom_text_add(out, "{\n  \"train_batch_size\": %lld,\n  \"train_micro_batch_size_per_gpu\": %lld,\n  \"gradient_accumulation_steps\": %lld,\n", (long long)l->global_batch,
                  (long long)l->micro_batch, (long long)e->micro_batches);
    if (l->tp > 1)
        loom_text_add(out, "  \"tensor_parallel\": {\"autotp_size\": %d},\n", l->tp);
    if (l->cp > 1)
        loom_text_add(out, "  \"sequence_parallel_size\": %d,\n  \"data_parallel_size\": %d,\n", l->cp, l->dp);
    if (l->ep > 1) {
        loom_text_add(out, "  \"expert_parallel\": {\"enabled\": true, \"autoep_size\": %d", l->ep);
        const char *preset = e->model->hf_type[0] ? e->model->hf_type : e->model->names == LOOM_NAMES_MIXTRAL ? "mixtral" : NULL;
        if (preset) {
            loom_text_add(out, ", \"preset_model\": ");
            loom_text_add_json(out, preset);
        }
        loom_text_add(out, "},\n");
    }
    loom_text_add(out, "  \"zero_optimization\": {\"stage\": %d},\n  \"bf16\": {\"enabled\": true}\n}\n", l->zero);
}

/* --- in ------------------------------------------------------------------------------------------------------------------ */

typedef struct speed {
    int64_t train, micro, steps; /* 0: not said */
    int tp, cp, ep, dp, zero;
    bool experts;
} speed;

/* Of batch, micro-batch, accumulation and dp each follows from the other three. */
static void take_batch(loom_reader *reader, const loom_node *root, loom_importing *in, speed *s)
{
    loom_layout *l = in->layout;
    int rest = s->tp * s->cp;

    if (s->dp == 0 && in->world > 0 && in->world % rest == 0)
        s->dp = in->world / rest;
    if (s->steps == 0 && (s->train == 0 || s->micro == 0 || s->dp == 0))
        s->steps = 1; /* its default */
    if (s->dp == 0 && s->train > 0 && s->micro > 0 && s->train % (s->micro * s->steps) == 0)
        s->dp = (int)(s->train / (s->micro * s->steps));
    if (s->dp == 0) {
        loom_reader_problem(reader, root, "dp is open: --world N, or train_batch_size with train_micro_batch_size_per_gpu and gradient_accumulation_steps, say it");
        return;
    }
    if (s->micro == 0 && s->train > 0 && s->train % (s->dp * s->steps) == 0)
        s->micro = s->train / (s->dp * s->steps);
    if (s->steps == 0 && s->train % (s->micro * s->dp) == 0)
        s->steps = s->train / (s->micro * s->dp);
    if (s->train == 0)
        s->train = s->micro * s->steps * s->dp;
    if (s->micro == 0 || s->steps == 0 || s->train != s->micro * s->steps * s->dp)
        loom_reader_problem(reader, root, "train_batch_size=%lld is not micro-batch %lld x accumulation %lld x dp %d", (long long)s->train, (long long)s->micro,
                            (long long)s->steps, s->dp);
    l->dp = s->dp, l->micro_batch = s->micro, l->global_batch = s->train;
}

static const loom_node *open_map(loom_reader *reader, const loom_node *root, const char *key)
{
    const loom_node *map = loom_read_map(reader, root, key);

    if (map)
        loom_reader_allow_unknown(reader, map);
    return map;
}

static void read_all(loom_reader *reader, const loom_node *root, loom_importing *in)
{
    speed s = {.tp = 1, .cp = 1, .ep = 1};
    loom_layout *l = in->layout;

    loom_reader_allow_unknown(reader, root);
    loom_read_i64(reader, root, "train_batch_size", 1, INT32_MAX, &s.train);
    loom_read_i64(reader, root, "train_micro_batch_size_per_gpu", 1, INT32_MAX, &s.micro);
    loom_read_i64(reader, root, "gradient_accumulation_steps", 1, INT32_MAX, &s.steps);
    loom_read_int(reader, open_map(reader, root, "tensor_parallel"), "autotp_size", 0, 1 << 20, &s.tp);
    loom_read_int(reader, root, "sequence_parallel_size", 1, 1 << 20, &s.cp);
    loom_read_int(reader, root, "data_parallel_size", 1, 1 << 20, &s.dp);
    loom_read_int(reader, open_map(reader, root, "zero_optimization"), "stage", 0, 3, &s.zero);
    const loom_node *experts = open_map(reader, root, "expert_parallel");
    loom_read_bool(reader, experts, "enabled", &s.experts);
    loom_read_int(reader, experts, "autoep_size", 1, 1 << 20, &s.ep);
    if (loom_reader_problems(reader) > 0)
        return;
    s.tp += s.tp == 0; /* 0: off */
    l->tp = s.tp, l->cp = s.cp, l->pp = 1, l->vpp = 1, l->ep = s.experts ? s.ep : 1, l->etp = 1, l->zero = s.zero, l->n_chunks = 0;
    l->sequence_parallel = false;
    l->cp_kind = s.cp > 1 ? LOOM_CP_ULYSSES : LOOM_CP_RING;
    l->recompute = LOOM_RECOMPUTE_NONE;
    l->schedule = LOOM_SCHEDULE_1F1B;
    take_batch(reader, root, in, &s);
    loom_import_note(in, "pp, recompute and the sequence length are not in DeepSpeed's JSON: pp 1, none%s", l->seq > 0 ? "" : ", unknown");
}

loom_status loom_import_deepspeed(loom_importing *in)
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
