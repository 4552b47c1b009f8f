/* Edit distance (Damerau–Levenshtein, optimal string alignment) and the nearest of a few names. */
#include "core/nearest.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

enum { LONGEST = 64 };

static int folded(char c)
{
    return c == '-' || c == '.' ? '_' : tolower((unsigned char)c);
}

static int least(int a, int b, int c)
{
    int ab = a < b ? a : b;

    return ab < c ? ab : c;
}

int loom_edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    int rows[3][LONGEST + 1];
    int *before = rows[0], *last = rows[1], *now = rows[2];

    if (n > LONGEST || m > LONGEST)
        return INT_MAX;
    for (size_t j = 0; j <= m; j++)
        last[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int other = folded(a[i - 1]) != folded(b[j - 1]);
            now[j] = least(last[j] + 1, now[j - 1] + 1, last[j - 1] + other);
            if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]) && now[j] > before[j - 2] + 1)
                now[j] = before[j - 2] + 1;
        }
        int *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[m];
}

int loom_near_enough(const char *name)
{
    int third = (int)(strlen(name) / 3);

    return third > 1 ? third : 1;
}

const char *loom_nearest_name(const char *name, const char *const *names)
{
    const char *nearest = NULL;
    int least_edits = loom_near_enough(name) + 1;

    for (; *names; names++) {
        int edits = loom_edit_distance(name, *names);
        if (edits < least_edits) {
            least_edits = edits;
            nearest = *names;
        }
    }
    return nearest;
}
