/* The two compact notations of Slurm: "2(x3),1" for tasks per node, "node[01-03,7],login" for hosts. */
#ifndef LAUNCH_SLURM_H
#define LAUNCH_SLURM_H

#include <stdbool.h>
#include <stddef.h>

/* Tasks on node `node` (from 0) of a list such as "2(x3),1", which stands for 2,2,2,1. False when the text is not such a list or ends
 * before that node. */
bool loom_slurm_tasks_on_node(const char *list, int node, int *tasks);

/* The first host of a node list such as "gpu[07-09,12]-ib,login1". False when the brackets do not match or it does not fit. */
bool loom_slurm_first_host(const char *list, char *host, size_t capacity);

#endif
