/* A mesh for a test that needs degrees and no model. */
#ifndef TEST_HARNESS_MESH_H
#define TEST_HARNESS_MESH_H

#include "check.h"

#include <rankloom/mesh.h>

/* Fills what the test left open in `layout` (degrees that are 0 become 1) and opens its mesh over `world`. */
static inline loom_mesh *test_mesh(loom_comm *world, loom_layout layout, const loom_model *model)
{
    loom_mesh *mesh = NULL;

    for (int *degree = &layout.tp; degree <= &layout.etp; degree++)
        *degree += *degree == 0;
    for (int i = 0; i < 4; i++)
        layout.order[i] = (loom_axis)i;
    layout.micro_batch = 1;
    if (layout.global_batch == 0)
        layout.global_batch = (int64_t)layout.dp * layout.pp;
    assert_ok(loom_layout_check(&layout, model, loom_comm_size(world)));
    assert_ok(loom_mesh_open(world, &layout, model, &mesh));
    return mesh;
}

#endif
