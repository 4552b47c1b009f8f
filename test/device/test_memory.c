/* The shared heap, the ledger and the dry device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/backend.h"
#include "device/host.h"

static loom_device *open_cpu(uint64_t heap_bytes)
{
    loom_device_config config = {.threads = 1, .heap_bytes = heap_bytes};
    loom_device *device;

    assert_int_equal(loom_device_open(LOOM_CPU, &config, &device), LOOM_OK);
    return device;
}

static bool is_zero(const unsigned char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (memory[i])
            return false;
    return true;
}

static void blocks_are_aligned_zeroed_and_apart(void **state)
{
    enum { BLOCKS = 200, ROUNDS = 4000 };
    loom_device *device = open_cpu(0);
    unsigned char *blocks[BLOCKS] = {0};
    size_t bytes[BLOCKS] = {0};
    uint64_t random = 1;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        int i = (int)((random = random * 6364136223846793005u + 1442695040888963407u) >> 33) % BLOCKS;
        if (blocks[i]) {
            for (size_t j = 0; j < bytes[i]; j++) /* nobody else wrote here */
                if (blocks[i][j] != (unsigned char)(i + 1))
                    fail_msg("byte %zu of block %d was overwritten", j, i);
            loom_free(device, blocks[i]);
            blocks[i] = NULL;
        } else {
            bytes[i] = (random >> 20) % (round % 16 ? 3000 : 300000) + 1;
            assert_int_equal(loom_alloc(device, bytes[i], LOOM_MEM_OTHER, (void **)&blocks[i]), LOOM_OK);
            assert_int_equal((uintptr_t)blocks[i] % 64, 0);
            assert_true(is_zero(blocks[i], bytes[i]));
            memset(blocks[i], i + 1, bytes[i]);
        }
        if (round % 64 == 0)
            assert_true(loom_heap_is_sound(device->heap));
    }
    for (int i = 0; i < BLOCKS; i++)
        loom_free(device, blocks[i]);
    assert_true(loom_heap_is_sound(device->heap));
    assert_int_equal(device->blocks.count, 0);
    loom_device_close(device);
}

static void freed_memory_is_used_again(void **state)
{
    loom_device *device = open_cpu(64 << 20);
    void *keep, *block;

    (void)state;
    assert_int_equal(loom_alloc(device, 1 << 20, LOOM_MEM_OTHER, &keep), LOOM_OK);
    for (int i = 0; i < 1000; i++) { /* 32 GB in all, through a heap of 64 MiB */
        assert_int_equal(loom_alloc(device, (32 << 20) + (size_t)i * 64, LOOM_MEM_OTHER, &block), LOOM_OK);
        loom_free(device, block);
    }
    loom_free(device, keep);
    loom_device_close(device);
}

static void ledger_rounds_to_64_and_keeps_peaks(void **state)
{
    loom_device_kind kinds[] = {LOOM_CPU, LOOM_DRY};

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        loom_device *device;
        loom_ledger ledger;
        void *a, *b, *none = &ledger;

        assert_int_equal(loom_device_open(kinds[k], NULL, &device), LOOM_OK);
        assert_int_equal(loom_alloc(device, 1, LOOM_MEM_WEIGHTS, &a), LOOM_OK);
        assert_int_equal(loom_alloc(device, 100, LOOM_MEM_ACTIVATIONS, &b), LOOM_OK);
        assert_int_equal(loom_alloc(device, 0, LOOM_MEM_ACTIVATIONS, &none), LOOM_OK);
        assert_null(none);
        loom_free(device, b);
        loom_free(device, NULL);
        loom_device_ledger(device, &ledger);
        assert_int_equal(ledger.live[LOOM_MEM_WEIGHTS], 64);
        assert_int_equal(ledger.live[LOOM_MEM_ACTIVATIONS], 0);
        assert_int_equal(ledger.peak[LOOM_MEM_ACTIVATIONS], 128);
        assert_int_equal(ledger.live_total, 64);
        assert_int_equal(ledger.peak_total, 192);
        assert_int_equal(ledger.allocations, 2);
        loom_device_reset_peak(device);
        loom_device_ledger(device, &ledger);
        assert_int_equal(ledger.peak_total, 64);
        assert_int_equal(ledger.peak[LOOM_MEM_ACTIVATIONS], 0);
        loom_free(device, a);
        loom_device_close(device);
    }
}

static void lack_of_memory_is_an_error_in_time(void **state)
{
    loom_device *device = open_cpu(UINT64_C(1) << 46);
    uint64_t more = loom_host_available_bytes() + (UINT64_C(1) << 32);
    void *block = NULL;

    (void)state;
    assert_int_equal(loom_alloc(device, more, LOOM_MEM_OTHER, &block), LOOM_E_MEMORY);
    assert_null(block);
    assert_non_null(strstr(loom_last_error(), "other"));
    assert_int_equal(loom_alloc(device, 1000, LOOM_MEM_OTHER, &block), LOOM_OK); /* and the heap is as good as before */
    loom_free(device, block);
    loom_device_close(device);

    device = open_cpu(1 << 20);
    assert_int_equal(loom_alloc(device, 2 << 20, LOOM_MEM_WEIGHTS, &block), LOOM_E_MEMORY);
    assert_non_null(strstr(loom_last_error(), "RANKLOOM_HEAP_BYTES"));
    loom_device_close(device);
}

static void dry_memory_is_as_large_as_asked(void **state)
{
    loom_device *device;
    void *a, *b;

    (void)state;
    assert_int_equal(loom_device_open(LOOM_DRY, NULL, &device), LOOM_OK);
    assert_int_equal(loom_alloc(device, (size_t)80 << 30, LOOM_MEM_WEIGHTS, &a), LOOM_OK);
    assert_int_equal(loom_alloc(device, (size_t)1 << 45, LOOM_MEM_OPTIMIZER, &b), LOOM_OK);
    assert_true((char *)b - (char *)a >= (ptrdiff_t)80 << 30);
    loom_free(device, a);
    loom_free(device, b);
    loom_device_close(device);
}

static void a_cuda_device_that_is_not_there_is_unsupported(void **state)
{
    loom_device *device = NULL;

    (void)state;
    if (loom_device_open(LOOM_CUDA, NULL, &device) == LOOM_OK)
        skip(); /* this machine has one */
    assert_null(device);
    assert_non_null(strstr(loom_last_error(), "CUDA"));
}

static void a_peer_maps_the_heap_and_the_last_user_unmaps(void **state)
{
    loom_device *device = open_cpu(1 << 20);
    loom_segment_name name;
    loom_segment segment = {0};
    char *block;

    (void)state;
    assert_int_equal(loom_alloc(device, 100, LOOM_MEM_OTHER, (void **)&block), LOOM_OK);
    strcpy(block, "kept");
    loom_segment_get_name(loom_device_segment(device), &name);
    assert_int_equal(loom_segment_attach(&name, &segment), LOOM_OK);
    assert_ptr_equal(segment.base, loom_device_segment(device)->base); /* same process, same address */
    loom_free(device, block);
    loom_device_close(device);
    assert_int_equal(loom_segment_get_head(&segment)->nonce, name.nonce); /* still mapped */
    loom_segment_close(&segment);

    name.pid = 1; /* not a rank of ours */
    name.fd = 1000000;
    assert_true(loom_segment_attach(&name, &segment) < 0);
}

/* Spinning is for ranks that have a core each, whether they share a set of cores or are pinned to one. */
static void ranks_fit_their_cores_or_not(void **state)
{
    loom_core_set two = {.words = {3}, .quota = INT32_MAX}, first = {.words = {1}, .quota = INT32_MAX},
                  second = {.words = {2}, .quota = INT32_MAX};
    loom_core_set half = {.words = {3}, .quota = 1};

    (void)state;
    assert_true(loom_host_fits((loom_core_set[]){two, two}, 2, 0));
    assert_false(loom_host_fits((loom_core_set[]){two, two, two}, 3, 0));
    assert_true(loom_host_fits((loom_core_set[]){first, second}, 2, 0)); /* pinned apart */
    assert_false(loom_host_fits((loom_core_set[]){first, first}, 2, 1)); /* pinned together */
    assert_true(loom_host_fits((loom_core_set[]){first, second, second}, 3, 0));
    assert_false(loom_host_fits((loom_core_set[]){half, half}, 2, 0));
    assert_true(loom_host_cores() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_zeroed_and_apart),
        cmocka_unit_test(freed_memory_is_used_again),
        cmocka_unit_test(ledger_rounds_to_64_and_keeps_peaks),
        cmocka_unit_test(lack_of_memory_is_an_error_in_time),
        cmocka_unit_test(dry_memory_is_as_large_as_asked),
        cmocka_unit_test(a_cuda_device_that_is_not_there_is_unsupported),
        cmocka_unit_test(a_peer_maps_the_heap_and_the_last_user_unmaps),
        cmocka_unit_test(ranks_fit_their_cores_or_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
