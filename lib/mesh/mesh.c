/* The mesh: one table of groups, walked once to make their comms and again to tell people about them. */
#include <rankloom/mesh.h>

#include <stdlib.h>

#include "core/text.h"
#include "core/try.h"

enum { MOST_DESCRIBED_RANKS = 1024 };

/* What the public mesh leaves out: what of the model decides about groups. */
typedef struct whole_mesh {
    loom_mesh mesh; /* first: a loom_mesh of ours is one of these */
    bool tied;      /* embedding and head are one tensor on two stages */
    int kv_sharers; /* tp ranks that hold the same kv heads */
} whole_mesh;

/* --- the groups ---------------------------------------------------------------------------------------------------------- */

/* The ranks of the group of one kind that `rank` is in, in the group's order; 0 when it is in none. `members` has room for the world. */
typedef int members_fn(const whole_mesh *w, int rank, int *members);

static int tp_members(const whole_mesh *w, int rank, int *members)
{
    return loom_layout_group(&w->mesh.layout, LOOM_AXIS_TP, rank, members);
}

static int cp_members(const whole_mesh *w, int rank, int *members)
{
    return loom_layout_group(&w->mesh.layout, LOOM_AXIS_CP, rank, members);
}

static int dp_members(const whole_mesh *w, int rank, int *members)
{
    return loom_layout_group(&w->mesh.layout, LOOM_AXIS_DP, rank, members);
}

static int pp_members(const whole_mesh *w, int rank, int *members)
{
    return loom_layout_group(&w->mesh.layout, LOOM_AXIS_PP, rank, members);
}

static int etp_members(const whole_mesh *w, int rank, int *members)
{
    return loom_layout_group(&w->mesh.layout, LOOM_AXIS_ETP, rank, members);
}

static int ep_members(const whole_mesh *w, int rank, int *members)
{
    return loom_layout_group(&w->mesh.layout, LOOM_AXIS_EP, rank, members);
}

static int edp_members(const whole_mesh *w, int rank, int *members)
{
    return loom_layout_group(&w->mesh.layout, LOOM_AXIS_EDP, rank, members);
}

static int gradient_members(const whole_mesh *w, int rank, int *members)
{
    return loom_layout_gradient_group(&w->mesh.layout, rank, members);
}

/* The stages of the first and the last chunk, which hold a copy each of a tied embedding, unless that is one stage. */
static int tied_members(const whole_mesh *w, int rank, int *members)
{
    const loom_layout *l = &w->mesh.layout;
    int first = loom_layout_stage_of_chunk(l, 0), last = loom_layout_stage_of_chunk(l, l->pp * l->vpp - 1);
    loom_coords at = loom_layout_coords(l, rank);
    int stage = at.at[LOOM_AXIS_PP];

    if (!w->tied || first == last || (stage != first && stage != last))
        return 0;
    at.at[LOOM_AXIS_PP] = first;
    members[0] = loom_layout_rank(l, at.at);
    at.at[LOOM_AXIS_PP] = last;
    members[1] = loom_layout_rank(l, at.at);
    return 2;
}

/* Fewer kv heads than tp ranks: neighbours in tp hold the same ones. */
static int kv_members(const whole_mesh *w, int rank, int *members)
{
    const loom_layout *l = &w->mesh.layout;
    loom_coords at = loom_layout_coords(l, rank);
    int first = at.at[LOOM_AXIS_TP] / w->kv_sharers * w->kv_sharers;

    if (w->kv_sharers == 1)
        return 0;
    for (int i = 0; i < w->kv_sharers; i++) {
        at.at[LOOM_AXIS_TP] = first + i;
        members[i] = loom_layout_rank(l, at.at);
    }
    return w->kv_sharers;
}

static int stage_members(const whole_mesh *w, int rank, int *members)
{
    const loom_layout *l = &w->mesh.layout;
    loom_coords at = loom_layout_coords(l, rank);
    int count = 0;

    for (int d = 0; d < l->dp; d++)
        for (int c = 0; c < l->cp; c++)
            for (int t = 0; t < l->tp; t++) {
                at.at[LOOM_AXIS_DP] = d;
                at.at[LOOM_AXIS_CP] = c;
                at.at[LOOM_AXIS_TP] = t;
                members[count++] = loom_layout_rank(l, at.at);
            }
    return count;
}

static int model_members(const whole_mesh *w, int rank, int *members)
{
    const loom_layout *l = &w->mesh.layout;
    loom_coords at = loom_layout_coords(l, rank);
    int count = 0;

    for (int p = 0; p < l->pp; p++)
        for (int t = 0; t < l->tp; t++) {
            at.at[LOOM_AXIS_PP] = p;
            at.at[LOOM_AXIS_TP] = t;
            members[count++] = loom_layout_rank(l, at.at);
        }
    return count;
}

/* The one global order. Every rank walks it from top to bottom, so no two ranks can make groups in different orders. */
static const struct group_kind {
    const char *name;
    members_fn *members;
    size_t slot; /* of the comm in loom_mesh */
} group_kinds[] = {
    {"tp", tp_members, offsetof(loom_mesh, axis[LOOM_AXIS_TP])},
    {"cp", cp_members, offsetof(loom_mesh, axis[LOOM_AXIS_CP])},
    {"dp", dp_members, offsetof(loom_mesh, axis[LOOM_AXIS_DP])},
    {"pp", pp_members, offsetof(loom_mesh, axis[LOOM_AXIS_PP])},
    {"etp", etp_members, offsetof(loom_mesh, axis[LOOM_AXIS_ETP])},
    {"ep", ep_members, offsetof(loom_mesh, axis[LOOM_AXIS_EP])},
    {"edp", edp_members, offsetof(loom_mesh, axis[LOOM_AXIS_EDP])},
    {"gradient", gradient_members, offsetof(loom_mesh, gradient)},
    {"tied", tied_members, offsetof(loom_mesh, tied)},
    {"kv", kv_members, offsetof(loom_mesh, kv)},
    {"stage", stage_members, offsetof(loom_mesh, stage)},
    {"model", model_members, offsetof(loom_mesh, model)},
};
enum { GROUP_KINDS = sizeof group_kinds / sizeof *group_kinds };

static loom_comm **comm_of(loom_mesh *mesh, int kind)
{
    return (loom_comm **)((char *)mesh + group_kinds[kind].slot);
}

/* --- making -------------------------------------------------------------------------------------------------------------- */

static int kv_sharers(const loom_layout *layout, const loom_model *model)
{
    return model && model->kv_heads > 0 && model->kv_heads < layout->tp ? layout->tp / (int)model->kv_heads : 1;
}

loom_status loom_mesh_open(loom_comm *world, const loom_layout *layout, const loom_model *model, loom_mesh **mesh)
{
    int size = loom_comm_size(world), rank = loom_comm_rank(world), *members;
    loom_layout whole = *layout;
    loom_status status = loom_layout_check(&whole, model, size);
    whole_mesh *w;

    if (status < 0)
        return status;
    w = calloc(1, sizeof *w);
    members = calloc((size_t)size, sizeof *members);
    if (!w || !members) {
        free(w);
        free(members);
        return loom_fail(LOOM_E_MEMORY, "no memory for a mesh of %d ranks", size);
    }
    w->mesh.layout = whole;
    w->mesh.world = world;
    w->mesh.here = loom_layout_coords(&whole, rank);
    w->tied = model && model->tied_embeddings;
    w->kv_sharers = kv_sharers(&whole, model);
    for (int k = 0; k < GROUP_KINDS; k++) {
        int count = group_kinds[k].members(w, rank, members);
        LOOM_TRY(loom_comm_create(world, members, count, group_kinds[k].name, comm_of(&w->mesh, k)));
    }
    free(members);
    *mesh = &w->mesh;
    return LOOM_OK;

fail:
    free(members);
    loom_mesh_close(&w->mesh);
    return status;
}

void loom_mesh_close(loom_mesh *mesh)
{
    if (!mesh)
        return;
    for (int k = GROUP_KINDS - 1; k >= 0; k--)
        loom_comm_free(*comm_of(mesh, k));
    free(mesh); /* the first member of a whole_mesh */
}

/* --- telling ------------------------------------------------------------------------------------------------------------- */

static void tell_rank(loom_text *text, const loom_layout *layout, int rank)
{
    loom_coords at = loom_layout_coords(layout, rank);

    loom_text_add(text, "rank %d:", rank);
    for (int axis = 0; axis < LOOM_AXES; axis++)
        loom_text_add(text, " %s%d", loom_axis_name((loom_axis)axis), at.at[axis]);
    loom_text_add(text, "\n");
}

static void tell_group(loom_text *text, const int *members, int count)
{
    for (int i = 0; i < count; i++)
        loom_text_add(text, "%s%d", i ? " " : " {", members[i]);
    loom_text_add(text, "}");
}

/* Each group once: at its first member. */
static void tell_kind(loom_text *text, const whole_mesh *w, int kind, int only_rank, int *members)
{
    int world = loom_layout_world(&w->mesh.layout), told = 0;

    loom_text_add(text, "%d. %s:", kind + 1, group_kinds[kind].name);
    for (int rank = only_rank < 0 ? 0 : only_rank; rank < (only_rank < 0 ? world : only_rank + 1); rank++) {
        int count = group_kinds[kind].members(w, rank, members);
        if (count > 0 && (members[0] == rank || only_rank >= 0)) {
            tell_group(text, members, count);
            told++;
        }
    }
    loom_text_add(text, "%s\n", told ? "" : " none");
}

loom_status loom_mesh_describe(const loom_mesh *mesh, char **text)
{
    const whole_mesh *w = (const whole_mesh *)mesh;
    int world = loom_layout_world(&mesh->layout), only = world > MOST_DESCRIBED_RANKS ? loom_comm_rank(mesh->world) : -1;
    int *members = calloc((size_t)world, sizeof *members);
    char line[256];
    loom_text out = {0};

    if (!members)
        return loom_fail(LOOM_E_MEMORY, "no memory to describe a mesh of %d ranks", world);
    loom_text_add(&out, "%s, %d ranks\n", loom_layout_describe(&mesh->layout, line, sizeof line), world);
    for (int rank = only < 0 ? 0 : only; rank < (only < 0 ? world : only + 1); rank++)
        tell_rank(&out, &mesh->layout, rank);
    loom_text_add(&out, "groups, in the order in which every rank makes them:\n");
    for (int k = 0; k < GROUP_KINDS; k++)
        tell_kind(&out, w, k, only, members);
    free(members);
    return loom_text_take(&out, text);
}
