/* Text under a version counter. */
#include "comm/notice.h"

#include <stdio.h>
#include <string.h>

void loom_notice_write(loom_notice *notice, const char *text)
{
    uint64_t words[LOOM_NOTICE_BYTES / 8] = {0};
    uint64_t version = atomic_load_explicit(&notice->version, memory_order_relaxed);

    snprintf((char *)words, sizeof words, "%s", text);
    atomic_store(&notice->version, version | 1);
    for (size_t i = 0; i < LOOM_NOTICE_BYTES / 8; i++)
        atomic_store_explicit(&notice->words[i], words[i], memory_order_release);
    atomic_store(&notice->version, (version | 1) + 1);
}

const char *loom_notice_read(const loom_notice *notice, char text[LOOM_NOTICE_BYTES])
{
    uint64_t words[LOOM_NOTICE_BYTES / 8];
    uint64_t before = atomic_load(&notice->version), after;

    for (size_t i = 0; i < LOOM_NOTICE_BYTES / 8; i++)
        words[i] = atomic_load_explicit(&notice->words[i], memory_order_acquire);
    after = atomic_load(&notice->version);
    if (before != after || (before & 1)) {
        text[0] = '\0';
        return text;
    }
    memcpy(text, words, LOOM_NOTICE_BYTES);
    text[LOOM_NOTICE_BYTES - 1] = '\0';
    return text;
}
