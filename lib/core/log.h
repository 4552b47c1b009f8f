/* Messages for people, on stderr. Failures are not logged where they are returned: their text is in loom_last_error(). */
#ifndef LOOM_CORE_LOG_H
#define LOOM_CORE_LOG_H

#include <rankloom/api.h>

typedef enum loom_log_level { LOOM_LOG_ERROR, LOOM_LOG_WARNING, LOOM_LOG_INFO, LOOM_LOG_DEBUG, LOOM_LOG_TRACE } loom_log_level;

/* Whether RANKLOOM_LOG lets `level` through (a value it does not know counts as its default; loom_settings_check() refuses it). Reads the
 * environment each time: ask once where a path is hot. */
bool loom_log_enabled(loom_log_level level);

/* One line "rankloom [rank 3] warning: text", written by one write() so that lines of several ranks do not mix. rank -1: not known yet. */
void loom_log(loom_log_level level, int rank, const char *format, ...) LOOM_PRINTF(3, 4);

#endif
