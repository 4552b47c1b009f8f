/* Accelerate and Axolotl: sharded data parallelism with tensor and context parallelism, no pipeline. */
#include "planner/emit/emit.h"

/* Both replicate (zero 0) or shard everything (zero 3), and know nothing between. */
static void refuse(loom_emission *e)
{
    const loom_layout *l = e->layout;

    loom_emit_no_pipeline(e, "there is no pipeline");
    loom_emit_usual_order_only(e);
    if (l->zero == 1 || l->zero == 2)
        loom_emit_cannot(e, "zero=%d: weights are replicated (zero 0) or wholly sharded (zero 3)", l->zero);
    if (l->zero == 0 && l->dp > l->ep && l->tp * l->cp > 1)
        loom_emit_cannot(e, "zero=0 with dp=%d: plain replicas are refused beside tp or cp; zero 3 goes", l->dp);
    if (l->recompute == LOOM_RECOMPUTE_SELECTIVE)
        loom_emit_cannot(e, "recompute=selective: whole layers or nothing");
}

void loom_emit_accelerate(loom_emission *e)
{
    const loom_layout *l = e->layout;

    refuse(e);
    loom_emit_no_experts(e, "ParallelismConfig has no expert axis");
    if (l->recompute == LOOM_RECOMPUTE_FULL)
        loom_emit_cannot(e, "recompute=full: is not part of ParallelismConfig");
    if (l->cp > 1 && l->cp_kind != LOOM_CP_RING && l->cp_kind != LOOM_CP_ULYSSES)
        loom_emit_cannot(e, "cp_kind=%s: cp_size is the ring, sp_size Ulysses", loom_cp_kind_name(l->cp_kind));
    bool ulysses = l->cp > 1 && l->cp_kind == LOOM_CP_ULYSSES;
    loom_text_add(&e->out, "# %s, for %d GPUs: micro-batch %lld, %lld gradient accumulation steps, sequences of %lld\n", loom_dialect_version(LOOM_DIALECT_ACCELERATE), e->world,
                  (long long)l->micro_batch, (long long)e->micro_batches, (long long)l->seq);
    loom_text_add(&e->out, "ParallelismConfig(dp_replicate_size=%d, dp_shard_size=%d, tp_size=%d, cp_size=%d, sp_size=%d)\n", l->zero == 0 ? l->dp : 1, l->zero == 0 ? 1 : l->dp,
                  l->tp, ulysses ? 1 : l->cp, ulysses ? l->cp : 1);
}

void loom_emit_axolotl(loom_emission *e)
{
    const loom_layout *l = e->layout;

    refuse(e);
    if (l->etp > 1)
        loom_emit_cannot(e, "etp=%d: experts are not split by columns", l->etp);
    if (l->dp % l->ep)
        loom_emit_cannot(e, "ep=%d: is an axis beside dp_shard and dp_replicate, so it divides dp=%d", l->ep, l->dp);
    else if (l->ep > 1 && (l->zero != 3 || l->dp == l->ep))
        loom_emit_cannot(e, "zero=%d with ep=%d and dp=%d: experts want the rest sharded over dp / ep, which is to be above 1", l->zero, l->ep, l->dp);
    if (l->ep > 1 && l->tp > 1)
        loom_emit_cannot(e, "ep=%d beside tp=%d: one of them", l->ep, l->tp);
    if (l->cp > 1 && l->cp_kind != LOOM_CP_RING)
        loom_emit_cannot(e, "cp_kind=%s: context_parallel_size is a ring", loom_cp_kind_name(l->cp_kind));
    int data = l->dp / l->ep; /* its expert axis is one of its own, and part of what we call dp */
    loom_text_add(&e->out, "# %s, for %d GPUs\ndp_replicate_size: %d\ndp_shard_size: %d\ntensor_parallel_size: %d\ncontext_parallel_size: %d\n",
                  loom_dialect_version(LOOM_DIALECT_AXOLOTL), e->world, l->zero == 0 ? data : 1, l->zero == 0 ? 1 : data, l->tp, l->cp);
    if (l->ep > 1)
        loom_text_add(&e->out, "plugins: [axolotl.integrations.expert_parallel.ExpertParallelPlugin]\nexpert_parallel_size: %d\n", l->ep);
    if (l->zero == 3)
        loom_text_add(&e->out, "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true%s}\n", l->ep > 1 ? ", state_dict_type: FULL_STATE_DICT" : "");
    if (l->cp > 1)
        loom_text_add(&e->out, "attn_implementation: flash_attention_2\n"); /* its ring takes no other */
    loom_text_add(&e->out, "micro_batch_size: %lld\ngradient_accumulation_steps: %lld\nsequence_len: %lld\ngradient_checkpointing: %s\n", (long long)l->micro_batch,
                  (long long)e->micro_batches, (long long)l->seq, l->recompute == LOOM_RECOMPUTE_FULL ? "true" : "false");
}
