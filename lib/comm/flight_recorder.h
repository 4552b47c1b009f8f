/* The last operations of a comm, for the day when one of them does not end. */
#ifndef LOOM_COMM_FLIGHT_RECORDER_H
#define LOOM_COMM_FLIGHT_RECORDER_H

#include <rankloom/comm.h>

#include <stdatomic.h>

#include "core/text.h"

enum { LOOM_RECORDS = 128, LOOM_RECORD_WORDS = 13 };

/* Words are atomic (relaxed) because a dump may read them while another thread works; a record caught half-written is a wrong line in a
 * diagnosis, no more. */
typedef struct loom_recorder {
    _Atomic uint64_t words[LOOM_RECORDS][LOOM_RECORD_WORDS];
    _Atomic uint64_t count; /* of operations so far; record i is at i % LOOM_RECORDS */
} loom_recorder;

struct loom_call;
uint64_t loom_recorder_enqueued(loom_recorder *recorder, struct loom_call *call); /* sets call->record; returns the time in ns */
void loom_recorder_begun(loom_recorder *recorder, const struct loom_call *call, uint64_t now);
uint64_t loom_recorder_ended(loom_recorder *recorder, const struct loom_call *call); /* with its task's status; returns the time in ns */
/* A graph with `calls` calls, the first of which would have had this sequence, begins to run. */
void loom_recorder_replayed(loom_recorder *recorder, uint64_t sequence, uint64_t calls);

/* One JSON object a line for every operation kept. */
void loom_recorder_print(const loom_comm *comm, loom_text *text);

#endif
