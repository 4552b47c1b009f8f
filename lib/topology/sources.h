/* The sources a topology can come from. Each fills a builder; file.c chooses one. */
#ifndef LOOM_TOPOLOGY_SOURCES_H
#define LOOM_TOPOLOGY_SOURCES_H

#include "topology/build.h"

#include <rankloom/config.h>

/* The `cluster:` section, the short form (docs/topology-files.md). Problems go to the reader; the status is for memory. */
loom_status loom_cluster_read(loom_reader *reader, const loom_node *cluster, loom_builder *builder);

/* The matrix of `nvidia-smi topo -m`: fills devices, groups, cards and NUMA numbers (of the operating system) of `shape`. The caller frees
 * *wires, to which shape->wires points. */
loom_status loom_matrix_read(const char *source, const char *text, size_t bytes, loom_host_shape *shape, loom_wire **wires);
bool loom_looks_like_matrix(const char *text, size_t bytes);

/* NCCL's topology XML (<system> of <cpu>, <pci>, <gpu>, <nvlink>, <net>): one host whose cards have no names. */
loom_status loom_nccl_read(const char *source, const char *text, size_t bytes, loom_builder *builder);

/* Item `index` of a list of maps; NULL, and a problem, when it is anything else. */
const loom_node *loom_map_in_list(loom_reader *reader, const loom_node *list, size_t index);

/* The chip of a catalogue name; a name that means none is a problem at `where`, and false. */
bool loom_chip_read(loom_reader *reader, const loom_node *where, const char *name, loom_chip *chip);

#endif
