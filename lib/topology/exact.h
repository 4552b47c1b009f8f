/* The exact form of a topology file: every fact of the struct, each with its origin. Named once here. */
#ifndef LOOM_TOPOLOGY_EXACT_H
#define LOOM_TOPOLOGY_EXACT_H

#include "topology/sources.h"

/* A figure of a struct by its name in files. */
typedef struct loom_figure_field {
    const char *name;
    size_t offset;
} loom_figure_field;

enum { LOOM_CHIP_FIGURES = 10, LOOM_GEMM_FIGURES = 5, LOOM_LEVEL_FIGURES = 3 };
extern const loom_figure_field loom_chip_figures[LOOM_CHIP_FIGURES];        /* of loom_chip; peak and gemm stand beside them */
extern const loom_figure_field loom_gemm_figures[LOOM_GEMM_FIGURES];        /* of loom_gemm_law */
extern const loom_figure_field loom_level_figure_names[LOOM_LEVEL_FIGURES]; /* of loom_level_figures */

static inline loom_figure *loom_figure_at(void *of, const loom_figure_field *field)
{
    return (loom_figure *)((char *)of + field->offset);
}

static inline loom_figure loom_figure_in(const void *of, const loom_figure_field *field)
{
    return *(const loom_figure *)((const char *)of + field->offset);
}

bool loom_figure_equal(loom_figure a, loom_figure b); /* same origin, and same value unless unknown */
bool loom_chip_equal(const loom_chip *a, const loom_chip *b);

extern const char *const loom_chip_class_names[];       /* "gpu", "tpu", "cpu", NULL */
extern const char *const loom_path_names[];             /* "X", "NV", "PIX" … "N/A", NULL: in the order of loom_path */
bool loom_wire_read(const char *text, loom_wire *wire); /* "NV4", "SYS" … */

/* The `topology:` section. Problems go to the reader; the status is for memory. */
loom_status loom_exact_read(loom_reader *reader, const loom_node *topology, loom_builder *builder);

#endif
