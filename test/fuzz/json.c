/* JSON of anybody. */
#include "tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse_and_walk("f.json", data, size);
    return 0;
}
