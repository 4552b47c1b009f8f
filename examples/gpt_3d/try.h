/* Pass a failure up: the line that decided it has already worded the message. */
#ifndef GPT_3D_TRY_H
#define GPT_3D_TRY_H

#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        loom_status try_status = (call);                                                                                                   \
        if (try_status < 0)                                                                                                                \
            return try_status;                                                                                                             \
    } while (0)

#endif
