/* Text that the library made for its caller. */
#ifndef RANKLOOM_TEXT_H
#define RANKLOOM_TEXT_H

#include <rankloom/api.h>
LOOM_BEGIN

/* Gives back a text that a call of this library handed out as `char **text`. Accepts NULL. */
LOOM_API void loom_text_free(char *text);

LOOM_END
#endif
