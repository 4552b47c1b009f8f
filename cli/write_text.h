/* Writing what a command made: to the file that the user named, or to standard output. */
#ifndef CLI_WRITE_TEXT_H
#define CLI_WRITE_TEXT_H

#include <rankloom/status.h>

loom_status write_text(const char *text, const char *path); /* path NULL: standard output */

#endif
