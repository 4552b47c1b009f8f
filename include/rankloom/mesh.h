/* The mesh: a layout's ranks with a comm for every axis and every folded axis, made once at set-up in one global order. */
#ifndef RANKLOOM_MESH_H
#define RANKLOOM_MESH_H

#include <rankloom/comm.h>
#include <rankloom/layout.h>
#include <rankloom/text.h>
LOOM_BEGIN

typedef struct loom_mesh {
    loom_layout layout; /* resolved */
    loom_coords here;
    loom_comm *world;    /* borrowed */
    loom_comm *axis[LOOM_AXES]; /* tp cp dp pp etp ep edp; size-1 groups exist too */
    loom_comm *gradient; /* dp x cp: who sums a dense gradient */
    loom_comm *tied;     /* ranks that hold a copy of the tied embedding (first and last stage); NULL elsewhere or when pp is 1 */
    loom_comm *kv;       /* tp ranks that share my kv heads; NULL when each has its own */
    loom_comm *stage;    /* tp x cp x dp of my stage */
    loom_comm *model;    /* tp x pp of my (cp, dp): who holds one copy of the weights; for the global norm */
} loom_mesh;

/* Collective over `world`. `layout` must be whole (loom_layout_check) and of the world's size. `model` says whether kv heads are shared and
 * embeddings tied; may be NULL. All groups are made here, in one global order (tp cp dp pp etp ep edp gradient tied kv stage model), and none
 * later; every rank makes as many calls, also for groups that it is not in. */
LOOM_API loom_status loom_mesh_open(loom_comm *world, const loom_layout *layout, const loom_model *model, loom_mesh **mesh);
LOOM_API void loom_mesh_close(loom_mesh *mesh); /* accepts NULL; leaves world open */

/* Tells the layout, where every rank sits, and every group with its ranks, in the order in which groups were made: the same text on every
 * rank. Above 1,024 ranks only this rank and its own groups. */
LOOM_API loom_status loom_mesh_describe(const loom_mesh *mesh, char **text); /* caller frees with loom_text_free() */

LOOM_END
#endif
