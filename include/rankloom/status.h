/* Status codes and the sentence that goes with a failure. */
#ifndef RANKLOOM_STATUS_H
#define RANKLOOM_STATUS_H

#include <rankloom/api.h>
LOOM_BEGIN

/* Negative is failure. A failing call leaves one sentence for people in loom_last_error(): what was asked, which rule it
 * broke, the numbers, and the nearest thing that works. No call prints, exits or aborts on bad input. */
typedef enum loom_status {
    LOOM_OK = 0,
    LOOM_PENDING = 1,        /* under way: progress, not failure */
    LOOM_E_INVALID = -1,     /* the caller broke a rule of the call, or a file is wrong; nothing was changed */
    LOOM_E_MEMORY = -2,      /* no memory, of the host or of the device */
    LOOM_E_MISMATCH = -3,    /* ranks called different things; the message names both ranks and both calls */
    LOOM_E_PEER = -4,        /* a rank left or its deadline passed; the comm is only good for loom_comm_free() */
    LOOM_E_IO = -5,          /* the operating system refused a file or a socket; the message has its reason */
    LOOM_E_UNSUPPORTED = -6, /* legal, but not in this build or on this machine; the message says what would be needed */
} loom_status;

/* "LOOM_E_INVALID" and so on; never NULL. Static. */
LOOM_API const char *loom_status_name(loom_status status);

/* The message of the last failure in this thread, "" if none. Valid until the next failing call of this thread. */
LOOM_API const char *loom_last_error(void);

/* Forget the message of this thread. */
LOOM_API void loom_clear_error(void);

/* Words the message of this thread and returns `status`, so that the line that decides what went wrong can
 * `return loom_fail(LOOM_E_INVALID, "tp=%d does not divide %d heads", …)`. Callers up the stack pass the status on. */
LOOM_API loom_status loom_fail(loom_status status, const char *format, ...) LOOM_PRINTF(2, 3);

/* Exit status of a command-line program for `status`: 0 success, 2 bad input, 3 a peer or the network, 1 anything else. */
LOOM_API int loom_exit_code(loom_status status);

LOOM_END
#endif
