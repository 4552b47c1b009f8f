/* How the ranks of a job meet to open a world, any number of times over one table (bootstrap.h).
 *
 * Each rank counts in the table how often it has come and gone: the count is odd while it is here, and is its ticket. Rank 0 waits until all are here,
 * gives the meeting a number that no other one has had, and tells every ticket. So an attempt that failed leaves nothing that a later one could take for
 * its own, and ranks whose attempts failed at different times find together again: they only have to be here at one time. */
#ifndef LOOM_COMM_MEETING_H
#define LOOM_COMM_MEETING_H

#include "comm/bootstrap.h"

typedef struct loom_meeting {
    const loom_bootstrap *table;
    double deadline_s;
    int64_t *tickets; /* [size] on rank 0; else [1], of rank 0 */
    int64_t ticket;   /* mine; 0: has not come */
    int64_t number;   /* 0: has not met */
} loom_meeting;

/* Waits until all ranks are here; all[size][bytes] gets everyone's mine[bytes]. LOOM_E_PEER at the deadline, which names on every rank those that did not
 * come. */
loom_status loom_meeting_come(loom_meeting *m, const void *mine, void *all, size_t bytes);
/* The same among those who have met. Ends early when a rank has left. At most once a meeting. */
loom_status loom_meeting_exchange(loom_meeting *m, const void *mine, void *all, size_t bytes);
/* Whatever the outcome, also of a meeting that came to nothing: the rank may come again. Takes back what it wrote. */
void loom_meeting_leave(loom_meeting *m);

#endif
