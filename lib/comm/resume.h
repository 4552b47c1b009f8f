/* A function that can be left while it waits and entered again where it stood, so that a protocol reads from top to bottom although no call
 * of it blocks. Local variables do not survive a wait: what must is kept in memory of the call, as `resume` itself is.
 *
 *     LOOM_RESUME(&s->resume);
 *     post(s);
 *     LOOM_AWAIT(&s->resume, all_have_posted(s));
 *     ...
 *     LOOM_RESUME_END;
 */
#ifndef LOOM_COMM_RESUME_H
#define LOOM_COMM_RESUME_H

#define LOOM_RESUME(at)                                                                                                                    \
    switch (*(at)) {                                                                                                                       \
    case 0:

#define LOOM_AWAIT(at, condition)                                                                                                          \
    do {                                                                                                                                   \
        *(at) = __LINE__;                                                                                                                  \
        __attribute__((fallthrough));                                                                                                      \
    case __LINE__:                                                                                                                         \
        if (!(condition))                                                                                                                  \
            return LOOM_STEP_WAIT;                                                                                                         \
    } while (0)

/* Lets others have their turn; goes on here. */
#define LOOM_YIELD(at)                                                                                                                     \
    do {                                                                                                                                   \
        *(at) = __LINE__;                                                                                                                  \
        return LOOM_STEP_AGAIN;                                                                                                            \
    case __LINE__:;                                                                                                                        \
    } while (0)

#define LOOM_RESUME_END                                                                                                                    \
    default:                                                                                                                               \
        break;                                                                                                                             \
        }

#endif
