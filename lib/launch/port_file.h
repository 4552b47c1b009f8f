/* MASTER_PORT=0, for ranks that one process started on one host: rank 0 takes a free port and leaves its number in a file whose name the others
 * can work out. */
#ifndef LAUNCH_PORT_FILE_H
#define LAUNCH_PORT_FILE_H

#include <rankloom/launch.h>

enum { LOOM_PORT_FILE_BYTES = 512 };

/* Rank 0, once it listens. LOOM_E_PEER when another living job of our parent process has such a file. */
loom_status loom_port_file_write(const loom_launch *launch, int port, char path[LOOM_PORT_FILE_BYTES]);
/* The others: waits until the file of a living rank 0 is there. LOOM_E_PEER at the deadline (a time of loom_now_s()). */
loom_status loom_port_file_wait(const loom_launch *launch, double deadline, int *port);

#endif
