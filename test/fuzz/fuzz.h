/* What a fuzz target is: one function that takes any bytes. A broken promise aborts. */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* assert() that no build option turns off. */
#define PROMISE(condition)                                                                                                                 \
    do {                                                                                                                                   \
        if (!(condition))                                                                                                                  \
            abort();                                                                                                                       \
    } while (0)

#endif
