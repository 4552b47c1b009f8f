/* Every setting is checked by its row; nothing that is set is ignored. */
#include "check.h"
#include "core/log.h"
#include "core/settings.h"

#include <unistd.h>

static void unset_settings_have_the_fallback_of_their_row(void **state)
{
    double seconds;
    int64_t bytes = -1;
    int choice;
    bool flag = true;
    const char *text = "x";

    (void)state;
    assert_ok(loom_settings_check());
    assert_ok(loom_setting_f64(LOOM_SETTING_TIMEOUT_S, &seconds));
    assert_true(seconds == 600);
    assert_ok(loom_setting_i64(LOOM_SETTING_HEAP_BYTES, &bytes));
    assert_int_equal(bytes, 0);
    assert_ok(loom_setting_choice(LOOM_SETTING_LOG, &choice));
    assert_int_equal(choice, LOOM_LOG_WARNING);
    assert_ok(loom_setting_choice(LOOM_SETTING_ISA, &choice));
    assert_int_equal(choice, -1);
    assert_ok(loom_setting_bool(LOOM_SETTING_COMM_THREAD, &flag));
    assert_false(flag || loom_setting_given(LOOM_SETTING_COMM_THREAD));
    assert_ok(loom_setting_text(LOOM_SETTING_FLIGHT_RECORDER, &text));
    assert_null(text);
}

static void given_settings_win(void **state)
{
    double seconds;
    int64_t bytes;
    int choice;
    bool flag;

    (void)state;
    setenv("RANKLOOM_TIMEOUT_S", "2.5", 1);
    setenv("RANKLOOM_HEAP_BYTES", "1e9", 1);
    setenv("RANKLOOM_ISA", "avx2", 1);
    setenv("RANKLOOM_COMM_THREAD", "1", 1);
    setenv("RANKLOOM_LOG", "trace", 1);
    assert_ok(loom_settings_check());
    assert_ok(loom_setting_f64(LOOM_SETTING_TIMEOUT_S, &seconds));
    assert_ok(loom_setting_i64(LOOM_SETTING_HEAP_BYTES, &bytes));
    assert_ok(loom_setting_choice(LOOM_SETTING_ISA, &choice));
    assert_ok(loom_setting_bool(LOOM_SETTING_COMM_THREAD, &flag));
    assert_true(seconds == 2.5 && bytes == 1000000000 && choice == 1 && flag);
    assert_true(loom_log_enabled(LOOM_LOG_TRACE));
    setenv("RANKLOOM_ISA", "", 1); /* empty is not given */
    assert_false(loom_setting_given(LOOM_SETTING_ISA));
}

static void all_wrong_settings_are_named_at_once(void **state)
{
    (void)state;
    setenv("RANKLOOM_TIMEOUT_S", "-1", 1);
    setenv("RANKLOOM_HEAP_BYTES", "4GB", 1);
    setenv("RANKLOOM_ISA", "sse", 1);
    setenv("RANKLOOM_COMM_THREAD", "maybe", 1);
    setenv("RANKLOOM_TRANSPROT", "shm", 1);
    assert_refused(loom_settings_check(), LOOM_E_INVALID, "RANKLOOM_TIMEOUT_S=-1", "RANKLOOM_HEAP_BYTES=4GB: it takes bytes; write the number in full", "RANKLOOM_ISA=sse",
                   "portable|avx2|avx512", "RANKLOOM_COMM_THREAD=maybe", "RANKLOOM_TRANSPROT is no setting of Rankloom; did you mean RANKLOOM_TRANSPORT");
}

static void a_message_is_one_line_with_its_rank(void **state)
{
    char line[256] = "";
    int ends[2], saved = dup(STDERR_FILENO);

    (void)state;
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    loom_log(LOOM_LOG_WARNING, 3, "%d is odd", 7);
    loom_log(LOOM_LOG_INFO, 3, "not at this level");
    loom_log(LOOM_LOG_ERROR, -1, "no rank yet");
    dup2(saved, STDERR_FILENO);
    close(ends[1]);
    ssize_t length = 0;
    for (ssize_t got; (got = read(ends[0], line + length, sizeof line - 1 - (size_t)length)) > 0;)
        length += got;
    close(ends[0]);
    close(saved);
    assert_string_equal(line, "rankloom [rank 3] warning: 7 is odd\nrankloom error: no rank yet\n");
}

static int clear(void **state)
{
    size_t count;
    const loom_setting_row *row = loom_settings_table(&count);

    (void)state;
    for (size_t i = 0; i < count; i++)
        unsetenv(row[i].name);
    unsetenv("RANKLOOM_TRANSPROT");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(unset_settings_have_the_fallback_of_their_row, clear),
        cmocka_unit_test_setup(given_settings_win, clear),
        cmocka_unit_test_setup(all_wrong_settings_are_named_at_once, clear),
        cmocka_unit_test_setup(a_message_is_one_line_with_its_rank, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
