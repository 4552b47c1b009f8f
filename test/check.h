/* What every test file starts with: cmocka and the headers it wants to see first. */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <rankloom/status.h>

/* `call` must succeed; when it does not, its message is shown. */
#define assert_ok(call)                                                                                                                    \
    do {                                                                                                                                   \
        loom_status check_status_ = (call);                                                                                                \
        if (check_status_ != LOOM_OK)                                                                                                      \
            fail_msg("%s: %s: %s", #call, loom_status_name(check_status_), loom_last_error());                                             \
    } while (0)

/* `call` must fail with `status`, and its message must hold each of the given texts. */
#define assert_refused(call, status, ...)                                                                                                  \
    do {                                                                                                                                   \
        const char *check_texts_[] = {__VA_ARGS__};                                                                                        \
        assert_int_equal((call), (status));                                                                                                \
        for (size_t check_i_ = 0; check_i_ < sizeof check_texts_ / sizeof check_texts_[0]; check_i_++)                                     \
            assert_in_message(check_texts_[check_i_]);                                                                                     \
    } while (0)

#define assert_in_message(text)                                                                                                            \
    do {                                                                                                                                   \
        if (!strstr(loom_last_error(), (text)))                                                                                            \
            fail_msg("\"%s\" is not in the message:\n%s", (text), loom_last_error());                                                      \
    } while (0)

/* How often `word` comes up in `text`. */
static inline int times_in(const char *text, const char *word)
{
    int times = 0;

    for (; (text = strstr(text, word)); text += strlen(word))
        times++;
    return times;
}

/* A file of test/data, by its path there. Static buffer, good until the next call. */
static inline const char *test_data(const char *path)
{
    static char full[4096];
    const char *folder = getenv("LOOM_TEST_DATA");

    snprintf(full, sizeof full, "%s/%s", folder ? folder : "test/data", path);
    return full;
}

#endif
