/* The two streams of tensor parallelism, and which waits for which. */
#ifndef LOOM_TP_ORDER_H
#define LOOM_TP_ORDER_H

#include <rankloom/tp.h>

loom_status loom_tp_comm_follows(loom_tp *tp);    /* what comes on tp->comm waits for what is on tp->compute now */
loom_status loom_tp_compute_follows(loom_tp *tp); /* the other way round */

#endif
