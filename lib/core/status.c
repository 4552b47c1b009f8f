/* Status codes in words and as exit codes. */
#include <rankloom/status.h>

const char *loom_status_name(loom_status status)
{
    switch (status) {
    case LOOM_OK:
        return "LOOM_OK";
    case LOOM_PENDING:
        return "LOOM_PENDING";
    case LOOM_E_INVALID:
        return "LOOM_E_INVALID";
    case LOOM_E_MEMORY:
        return "LOOM_E_MEMORY";
    case LOOM_E_MISMATCH:
        return "LOOM_E_MISMATCH";
    case LOOM_E_PEER:
        return "LOOM_E_PEER";
    case LOOM_E_IO:
        return "LOOM_E_IO";
    case LOOM_E_UNSUPPORTED:
        return "LOOM_E_UNSUPPORTED";
    }
    return "unknown status";
}

int loom_exit_code(loom_status status)
{
    switch (status) {
    case LOOM_OK:
    case LOOM_PENDING:
        return 0;
    case LOOM_E_INVALID:
    case LOOM_E_UNSUPPORTED:
        return 2;
    case LOOM_E_PEER:
    case LOOM_E_MISMATCH:
        return 3;
    case LOOM_E_MEMORY:
    case LOOM_E_IO:
        return 1;
    }
    return 1;
}
