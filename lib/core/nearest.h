/* Finding what somebody meant. */
#ifndef LOOM_CORE_NEAREST_H
#define LOOM_CORE_NEAREST_H

#include <rankloom/config.h> /* loom_nearest_name() */

/* Edits (insert, delete, replace, swap neighbours) from `a` to `b`; case does not count, nor does '-' against '_' or '.'. INT_MAX when
 * either is longer than 64 bytes. */
int loom_edit_distance(const char *a, const char *b);
/* The most edits that still count as the same word misspelt: a third of its length, at least one. */
int loom_near_enough(const char *name);

#endif
