/* A rank's memory and traffic, to the byte. */
#include "planner/forecast.h"

#include <stdio.h>
#include <string.h>

#include <rankloom/engine.h>

const char *loom_rank_group_name(loom_rank_group group)
{
    static const char *const names[LOOM_GROUPS] = {"tp", "cp", "dp", "pp", "etp", "ep", "edp", "gradient", "tied", "kv", "stage", "world"};

    return (unsigned)group < LOOM_GROUPS ? names[group] : "?";
}

loom_status loom_forecast_check(const loom_run_options *options)
{
    char unknown[128] = "";

    snprintf(unknown, sizeof unknown, "%s%s%s", options->packed ? ", packed documents" : "", options->gathers_experts ? ", experts by all-gather" : "",
             options->capacity_factor > 0 ? ", a capacity of experts" : "");
    if (unknown[0])
        return loom_fail(LOOM_E_UNSUPPORTED, "the forecast to the byte does not know %s", unknown + 2);
    return LOOM_OK;
}

static void view_layers(loom_rank_view *v)
{
    const loom_layout *l = v->layout;

    for (int c = 0; c < l->n_chunks; c++) {
        if (loom_layout_stage_of_chunk(l, c) != v->stage)
            continue;
        v->embedding |= c == 0;
        v->head |= c == l->n_chunks - 1;
        for (int64_t i = 0, first = loom_layout_first_layer(l, c); i < l->chunk_layers[c]; i++)
            *(loom_model_layer_has_experts(v->model, first + i) ? &v->expert_layers : &v->dense_layers) += 1;
    }
    v->tied_across = v->model->tied_embeddings && loom_layout_stage_of_chunk(l, 0) != loom_layout_stage_of_chunk(l, l->n_chunks - 1);
}

static void view_of(const loom_model *m, const loom_layout *l, int rank, const loom_schedule *schedule, loom_rank_view *v)
{
    int inner;

    *v = (loom_rank_view){.model = m, .layout = l, .schedule = schedule, .here = loom_layout_coords(l, rank)};
    v->stage = v->here.at[LOOM_AXIS_PP];
    v->micro_batches = loom_layout_micro_batches(l);
    loom_rank_shape_of(m, l, &v->here, l->micro_batch, l->seq, &v->shape);
    inner = l->cp_inner > 0 ? l->cp_inner : loom_cp_inner(l->cp_kind, l->cp, v->shape.heads, v->shape.kv_heads);
    loom_cp_shape_of(l->cp_kind, l->cp, inner, l->micro_batch, v->shape.seq, v->shape.heads, v->shape.kv_heads, m->head_dim, &v->cp);
    v->exchanged = loom_cp_kept(&v->cp);
    if (m->moe.experts > 0)
        loom_expert_shape_of(m, l, &v->here, &v->experts);
    view_layers(v);
}

/* A rehearsal's counts: every expert gets the same, as far as that goes. */
void loom_balanced_rows(const loom_rank_view *v, loom_expert_rows *rows)
{
    const loom_expert_shape *e = &v->experts;
    int64_t choices = v->shape.routed_tokens * e->top_k, here = 0, others = 0;

    for (int64_t i = 0; i < e->experts; i++) {
        loom_range share = loom_cut(choices, (int)e->experts, (int)i);
        *(i / e->here == v->here.at[LOOM_AXIS_EP] ? &here : &others) += share.end - share.begin;
    }
    *rows = (loom_expert_rows){.sent = others, .received = here * (e->ep - 1), .arrived = here * e->ep, .peers = here * e->ep * (e->etp - 1)};
}

static void choose_rows(const loom_rank_view *v, const loom_expert_rows *given, loom_expert_rows *rows)
{
    int64_t passes = v->expert_layers * v->micro_batches;

    *rows = (loom_expert_rows){0};
    if (given)
        *rows = *given;
    else if (passes > 0) {
        loom_balanced_rows(v, rows);
        rows->sent *= passes;
        rows->received *= passes;
        rows->arrived *= passes;
        rows->peers *= passes;
    }
}

loom_status loom_forecast_on(const loom_model *model, const loom_layout *layout, const loom_schedule *schedule, int rank, const loom_expert_rows *rows,
                             loom_rank_forecast *f)
{
    loom_rank_view view;

    memset(f, 0, sizeof *f);
    view_of(model, layout, rank, schedule, &view);
    choose_rows(&view, rows, &f->rows);
    f->parameters = loom_view_params(&view);
    loom_status status = loom_forecast_memory(&view, f);
    if (status >= 0)
        loom_forecast_traffic(&view, f);
    return status;
}

loom_status loom_forecast_rank(const loom_model *model, const loom_layout *layout, int rank, const loom_expert_rows *rows, loom_rank_forecast *f)
{
    loom_schedule *schedule;
    loom_status status = loom_engine_check_model(model);

    memset(f, 0, sizeof *f);
    if (status < 0 || (status = loom_engine_check_layout(layout)) < 0 || (status = loom_schedule_for_layout(layout, &schedule)) < 0)
        return status;
    status = loom_forecast_on(model, layout, schedule, rank, rows, f);
    loom_schedule_free(schedule);
    return status;
}
