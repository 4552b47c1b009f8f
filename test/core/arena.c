/* Small pieces, freed at once. */
#include "check.h"
#include "core/arena.h"

#include <stdalign.h>

static void pieces_are_zero_aligned_and_do_not_overlap(void **state)
{
    enum { PIECES = 3000 };
    static unsigned char *piece[PIECES];
    loom_arena arena = {0};

    (void)state;
    for (int i = 0; i < PIECES; i++) {
        size_t bytes = (size_t)(i * 7919 % 5000);
        piece[i] = loom_arena_alloc(&arena, bytes);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % alignof(max_align_t), 0);
        for (size_t b = 0; b < bytes; b++)
            assert_int_equal(piece[i][b], 0);
        memset(piece[i], i & 0xff, bytes);
    }
    for (int i = 0; i < PIECES; i++)
        for (size_t b = 0; b < (size_t)(i * 7919 % 5000); b++)
            assert_int_equal(piece[i][b], i & 0xff);
    loom_arena_free(&arena);
    assert_non_null(loom_arena_alloc(&arena, 10)); /* usable again */
    loom_arena_free(&arena);
}

static void impossible_sizes_are_refused(void **state)
{
    loom_arena arena = {0};

    (void)state;
    assert_null(loom_arena_alloc(&arena, SIZE_MAX));
    assert_null(loom_arena_alloc(&arena, SIZE_MAX - 100));
    assert_null(loom_arena_array(&arena, SIZE_MAX / 2, 3));
    assert_null(loom_arena_copy(&arena, "", SIZE_MAX));
    assert_string_equal(loom_arena_copy(&arena, "abcdef", 3), "abc");
    loom_arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_zero_aligned_and_do_not_overlap),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
