/* Files come in whole and bounded, and go out completely or not at all. */
#include "check.h"
#include "core/file.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/loom-file-XXXXXX";

static const char *at(const char *name)
{
    static char path[256];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int files_in_folder(void)
{
    DIR *dir = opendir(folder);
    int count = 0;

    for (struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void what_was_written_is_read(void **state)
{
    size_t bytes, large = 3 << 20;
    char *data, *much = malloc(large);

    (void)state;
    memset(much, 'x', large);
    assert_ok(loom_file_replace(at("a"), "hello", 5));
    assert_ok(loom_file_read(at("a"), 5, &data, &bytes));
    assert_int_equal(bytes, 5);
    assert_string_equal(data, "hello");
    free(data);
    assert_ok(loom_file_replace(at("a"), much, large));
    assert_ok(loom_file_read(at("a"), large, &data, &bytes));
    assert_int_equal(bytes, large);
    assert_memory_equal(data, much, large);
    free(data);
    assert_ok(loom_file_replace(at("a"), "", 0));
    assert_ok(loom_file_read(at("a"), 0, &data, &bytes));
    assert_int_equal(bytes, 0);
    free(data);
    assert_int_equal(files_in_folder(), 1); /* no temporary file is left */
    free(much);
}

static void a_limit_a_directory_and_a_missing_file_are_refused(void **state)
{
    size_t bytes;
    char *data;

    (void)state;
    assert_ok(loom_file_replace(at("a"), "hello", 5));
    assert_refused(loom_file_read(at("a"), 4, &data, &bytes), LOOM_E_INVALID, "larger than 4 bytes");
    assert_refused(loom_file_read(folder, 100, &data, &bytes), LOOM_E_INVALID, "directory");
    assert_refused(loom_file_read(at("none"), 100, &data, &bytes), LOOM_E_IO, "none", "No such file");
    assert_refused(loom_file_read("/dev/zero", 1000, &data, &bytes), LOOM_E_INVALID, "larger than 1000");
    assert_refused(loom_file_replace(at("no/such/folder"), "x", 1), LOOM_E_IO, "No such file");
}

static void until_commit_the_old_file_stays(void **state)
{
    loom_file_writer *writer;
    size_t bytes;
    char *data;

    (void)state;
    assert_ok(loom_file_replace(at("a"), "old", 3));
    assert_ok(loom_file_create(at("a"), &writer));
    assert_ok(loom_file_write(writer, "new", 3));
    assert_ok(loom_file_read(at("a"), 10, &data, &bytes));
    assert_string_equal(data, "old");
    free(data);
    loom_file_abandon(writer);
    assert_ok(loom_file_read(at("a"), 10, &data, &bytes));
    assert_string_equal(data, "old");
    free(data);
    assert_int_equal(files_in_folder(), 1);
    loom_file_abandon(NULL);
}

static void a_full_disk_keeps_the_old_file(void **state)
{
    loom_file_writer *writer;

    (void)state;
    if (access("/dev/full", W_OK) != 0 || symlink("/dev/full", at("full")) != 0)
        skip();
    char temporary[300];
    snprintf(temporary, sizeof temporary, "%s.tmp.%ld", at("b"), (long)getpid());
    assert_int_equal(rename(at("full"), temporary), 0); /* the writer opens its temporary name and finds a full disk there */
    assert_ok(loom_file_create(at("b"), &writer));
    assert_refused(loom_file_write(writer, "new", 3), LOOM_E_IO, "No space left");
    loom_file_abandon(writer);
    assert_int_equal(access(at("b"), F_OK), -1);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(at("a"));
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(a_limit_a_directory_and_a_missing_file_are_refused),
        cmocka_unit_test(until_commit_the_old_file_stays),
        cmocka_unit_test(a_full_disk_keeps_the_old_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
