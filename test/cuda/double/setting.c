/* What the environment says of the double (double.h). */
#include "double.h"

#include <stdlib.h>

uint64_t double_setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}
