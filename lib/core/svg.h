/* The frame that our pictures share: size, title, and colours for light and dark. Class names mean the same in all of them, since several stand in
 * one page: ground, text, title, n (a label on a bar or cell), axis, faint (grid lines). */
#ifndef LOOM_CORE_SVG_H
#define LOOM_CORE_SVG_H

#include "core/text.h"

/* Opens the picture, writes its title for screen readers and as a heading. `style`: rules of this picture alone, "" for none. */
void loom_svg_open(loom_text *out, int width, int height, const char *title, const char *style);
void loom_svg_close(loom_text *out);

#endif
