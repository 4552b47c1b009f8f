/* Our client says what PyTorch's clients said, to the byte, and understands what PyTorch's servers answered. */
#include "check.h"
#include "core/clock.h"
#include "launch/store_client.h"
#include "trace.h"

#include <pthread.h>
#include <unistd.h>

/* A peer that plays the server's part of one record: it expects the client's bytes and answers the recorded ones. */
typedef struct player {
    pthread_t thread;
    int fd;
    const trace_record *record;
    bool as_recorded;
} player;

static bool read_exactly(int fd, uint8_t *data, size_t size)
{
    for (ssize_t n; size > 0; data += n, size -= (size_t)n)
        if ((n = read(fd, data, size)) <= 0)
            return false;
    return true;
}

static void *play(void *argument)
{
    player *p = argument;
    uint8_t got[TRACE_BYTES];

    p->as_recorded = true;
    for (int i = 0; i < p->record->n_chunks; i++) {
        const trace_chunk *chunk = &p->record->chunks[i];
        if (!chunk->from_client)
            p->as_recorded &= write(p->fd, chunk->data, chunk->size) == (ssize_t)chunk->size;
        else
            p->as_recorded &= read_exactly(p->fd, got, chunk->size) && memcmp(got, chunk->data, chunk->size) == 0;
    }
    return NULL;
}

/* One record: a client connected to its player. */
typedef struct scene {
    player player;
    loom_store_client *client;
} scene;

static scene *open_scene(const trace *t, const char *name, loom_store_dialect dialect)
{
    scene *s = calloc(1, sizeof *s);
    int ends[2];

    assert_non_null(s);
    s->player.record = trace_find(t, name);
    if (!s->player.record)
        fail_msg("the trace has no record [%s]", name);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    s->player.fd = ends[1];
    assert_ok(loom_store_client_adopt(ends[0], dialect, &s->client));
    assert_int_equal(pthread_create(&s->player.thread, NULL, play, &s->player), 0);
    return s;
}

static void close_scene(scene *s)
{
    loom_store_client_close(s->client); /* a client that said too little lets its player read the end */
    pthread_join(s->player.thread, NULL);
    if (!s->player.as_recorded)
        fail_msg("[%s]: the client said something else than recorded", s->player.record->name);
    close(s->player.fd);
    free(s);
}

static loom_span span(const char *text)
{
    return loom_span_of_text(text);
}

static void sets(const trace *t, loom_store_dialect dialect)
{
    scene *s = open_scene(t, "set", dialect);
    assert_ok(loom_store_client_set(s->client, span("/k1"), span("hello")));
    close_scene(s);
    s = open_scene(t, "set_empty", dialect);
    assert_ok(loom_store_client_set(s->client, span("/ke"), span("")));
    close_scene(s);
}

static void gets(const trace *t, loom_store_dialect dialect)
{
    scene *s = open_scene(t, "get", dialect);
    loom_span key = span("/k1");
    char value[8] = "";
    size_t bytes;

    assert_ok(loom_store_client_wait(s->client, &key, 1, loom_now_s() + 20));
    assert_ok(loom_store_client_get(s->client, key, value, sizeof value, &bytes));
    assert_int_equal(bytes, 5);
    assert_string_equal(value, "hello");
    close_scene(s);

    s = open_scene(t, "get", dialect); /* a value larger than its place: what fits is copied, the rest read away, the size told */
    assert_ok(loom_store_client_wait(s->client, &key, 1, loom_now_s() + 20));
    memset(value, 0, sizeof value);
    assert_ok(loom_store_client_get(s->client, key, value, 2, &bytes));
    assert_int_equal(bytes, 5);
    assert_string_equal(value, "he");
    close_scene(s);
}

static void adds(const trace *t, loom_store_dialect dialect)
{
    scene *s = open_scene(t, "add_new", dialect);
    int64_t sum;

    assert_ok(loom_store_client_add(s->client, span("/ctr"), 5, &sum));
    assert_int_equal(sum, 5);
    close_scene(s);
    s = open_scene(t, "add_neg", dialect);
    assert_ok(loom_store_client_add(s->client, span("/ctr"), -7, &sum));
    assert_int_equal(sum, -2);
    close_scene(s);
}

static void waits(const trace *t, loom_store_dialect dialect)
{
    const loom_span both[] = {span("/k1"), span("/ctr")}, late = span("/late");

    scene *s = open_scene(t, "wait_ready", dialect);
    assert_ok(loom_store_client_wait(s->client, both, 2, loom_now_s() + 20));
    close_scene(s);
    s = open_scene(t, "wait_late", dialect);
    assert_ok(loom_store_client_wait(s->client, &late, 1, loom_now_s() + 20));
    close_scene(s);
}

static void checks(const trace *t, loom_store_dialect dialect)
{
    const loom_span ready[] = {span("/k1"), span("/ctr")}, not_ready[] = {span("/k1"), span("/nope")};
    bool present = false;

    scene *s = open_scene(t, "check_ready", dialect);
    assert_ok(loom_store_client_check(s->client, ready, 2, &present));
    assert_true(present);
    close_scene(s);
    s = open_scene(t, "check_notready", dialect);
    assert_ok(loom_store_client_check(s->client, not_ready, 2, &present));
    assert_false(present);
    close_scene(s);
}

static void cancels(const trace *t)
{
    const loom_span key = span("/nope");
    scene *s = open_scene(t, "wait_timeout", LOOM_STORE_MODERN);

    assert_int_equal(loom_store_client_wait(s->client, &key, 1, loom_now_s() + 0.05), LOOM_PENDING);
    assert_false(loom_store_client_lost(s->client));
    close_scene(s);
}

static void deletes(const trace *t)
{
    scene *s = open_scene(t, "delete_hit", LOOM_STORE_MODERN);
    assert_ok(loom_store_client_delete(s->client, span("/ke")));
    close_scene(s);
    s = open_scene(t, "delete_miss", LOOM_STORE_MODERN);
    assert_ok(loom_store_client_delete(s->client, span("/ke")));
    close_scene(s);
}

static void speaks_as_the_modern_clients(void **state)
{
    const char *const files[] = {"torch-2.15.0-libuv.trace", "torch-2.15.0-legacy.trace", "torch-2.4.1-libuv.trace", "torch-2.4.1-legacy.trace"};

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        trace *t = trace_load(files[i]);
        sets(t, LOOM_STORE_MODERN);
        gets(t, LOOM_STORE_MODERN);
        adds(t, LOOM_STORE_MODERN);
        waits(t, LOOM_STORE_MODERN);
        checks(t, LOOM_STORE_MODERN);
        cancels(t);
        deletes(t);
        free(t);
    }
}

static void speaks_as_the_old_clients(void **state)
{
    const char *const files[] = {"torch-2.1.2-legacy.trace", "torch-1.13.1-legacy.trace"};

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        trace *t = trace_load(files[i]);
        sets(t, LOOM_STORE_OLD);
        gets(t, LOOM_STORE_OLD);
        adds(t, LOOM_STORE_OLD);
        waits(t, LOOM_STORE_OLD);
        free(t);
    }
}

/* --- a key that comes just before the cancel ------------------------------------------------------------------------------- */

static void a_key_that_meets_the_cancel_is_there(void **state)
{
    static const trace crossing = {1, {{"crossing", true, 4, {
        {true, 22, {0x06, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, '/', 'n', 'o', 'p', 'e'}},
        {true, 1, {0x0c}},
        {false, 2, {0x00, 0x01}},
        {true, 20, {0x05, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, '/', 'k', '1'}}, /* the stream is in step again */
    }}}};
    const loom_span key = span("/nope");
    scene *s = open_scene(&crossing, "crossing", LOOM_STORE_MODERN);

    (void)state;
    assert_ok(loom_store_client_wait(s->client, &key, 1, loom_now_s() + 0.05));
    assert_false(loom_store_client_lost(s->client));
    const loom_span other = span("/k1");
    bool present;
    shutdown(s->player.fd, SHUT_WR); /* no answer will come: only what is sent matters here */
    assert_int_equal(loom_store_client_check(s->client, &other, 1, &present), LOOM_E_PEER);
    close_scene(s);
}

static void a_server_that_hangs_up_ends_the_client(void **state)
{
    int ends[2];
    loom_store_client *client;
    const loom_span key = span("/k");
    int64_t sum;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_ok(loom_store_client_adopt(ends[0], LOOM_STORE_MODERN, &client));
    close(ends[1]);
    assert_refused(loom_store_client_wait(client, &key, 1, loom_now_s() + 20), LOOM_E_PEER, "is gone");
    assert_true(loom_store_client_lost(client));
    assert_refused(loom_store_client_add(client, key, 1, &sum), LOOM_E_PEER, "lost before");
    loom_store_client_close(client);
}

static void keys_and_values_that_no_server_takes_are_refused_here(void **state)
{
    static char large[8388609];
    int ends[2];
    loom_store_client *client;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_ok(loom_store_client_adopt(ends[0], LOOM_STORE_MODERN, &client));
    assert_refused(loom_store_client_set(client, (loom_span){(uint8_t *)large, 8193}, span("")), LOOM_E_INVALID, "8193", "8192");
    assert_refused(loom_store_client_set(client, span("/k"), (loom_span){(uint8_t *)large, sizeof large}), LOOM_E_INVALID, "8388609", "8388608");
    assert_false(loom_store_client_lost(client));
    loom_store_client_close(client);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speaks_as_the_modern_clients),
        cmocka_unit_test(speaks_as_the_old_clients),
        cmocka_unit_test(a_key_that_meets_the_cancel_is_there),
        cmocka_unit_test(a_server_that_hangs_up_ends_the_client),
        cmocka_unit_test(keys_and_values_that_no_server_takes_are_refused_here),
    };

    return cmocka_run_group_tests_name("store client", tests, NULL, NULL);
}
