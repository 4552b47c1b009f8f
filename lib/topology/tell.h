/* Words for figures and sets of numbers, shared by the tree, the matrix and the picture. */
#ifndef LOOM_TOPOLOGY_TELL_H
#define LOOM_TOPOLOGY_TELL_H

#include <rankloom/topology.h>

#include "core/text.h"

/* "450 GB/s", or "unknown". */
void loom_tell_rate(loom_text *text, loom_figure bytes_per_s);
/* The same with its origin: "450 GB/s (assumed)". */
void loom_tell_rate_of(loom_text *text, loom_figure bytes_per_s);
void loom_tell_latency_of(loom_text *text, loom_figure seconds); /* "5 us (assumed)" */
void loom_tell_memory_of(loom_text *text, loom_figure bytes);    /* "79.2 GiB (read)" */
/* "3" or "0-7", from first and count. */
void loom_tell_span(loom_text *text, int first, int count);

/* Whether node `b` looks like node `a` in everything but its number, name and rack. */
bool loom_nodes_alike(const loom_topology *topology, int a, int b);
/* How many nodes from `first` on look alike and stand in one rack. */
int loom_alike_run(const loom_topology *topology, int first);

#endif
