/* The store that ranks meet in: a fresh generation each time, whatever an earlier attempt left, and failures that name who is missing. Ranks are
 * threads here; test/launch/spawn.c and test/soak run them as processes. */
#include "check.h"
#include "core/clock.h"
#include "launch/generation.h"
#include "launch/store_server.h"

#include <rankloom/launch.h>

#include <pthread.h>
#include <unistd.h>

enum { MOST_RANKS = 8, MESSAGE = 1024 };

/* One rank: what it does, and what came of it. */
typedef struct rank_thread {
    pthread_t thread;
    loom_launch launch;
    double deadline_s;
    void (*act)(struct rank_thread *self, loom_store *store); /* with its open store; NULL: nothing */
    loom_status status;
    char message[MESSAGE];
    double took_s;
} rank_thread;

static void note(rank_thread *self, loom_status status)
{
    if (self->status != LOOM_OK)
        return;
    self->status = status;
    snprintf(self->message, sizeof self->message, "%s", status == LOOM_OK ? "" : loom_last_error());
}

static void *be_rank(void *argument)
{
    rank_thread *self = argument;
    loom_store *store = NULL;
    double began = loom_now_s();

    note(self, loom_store_open(&self->launch, self->deadline_s, &store));
    if (store && self->act)
        self->act(self, store);
    loom_store_close(store);
    self->took_s = loom_now_s() - began;
    return NULL;
}

/* A port where nobody listens now. */
static int free_port(void)
{
    int listeners[2], n_listeners, port;

    assert_ok(loom_listen("127.0.0.1", 0, listeners, &n_listeners, &port));
    close(listeners[0]);
    return port;
}

static rank_thread rank_at(int rank, int size, int port, bool agent, void (*act)(rank_thread *, loom_store *))
{
    rank_thread r = {.launch = {.rank = rank, .size = size, .agent_store = agent, .master_port = port, .run_id = "test", .master_addr = "127.0.0.1"},
                     .deadline_s = 30,
                     .act = act};
    return r;
}

static void run_all(rank_thread *ranks, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, be_rank, &ranks[i]), 0);
    for (int i = 0; i < count; i++)
        pthread_join(ranks[i].thread, NULL);
}

static void expect_all_well(const rank_thread *ranks, int count)
{
    for (int i = 0; i < count; i++)
        if (ranks[i].status != LOOM_OK)
            fail_msg("rank %d: %s", ranks[i].launch.rank, ranks[i].message);
}

/* A server that stays, as a launcher's does. */
typedef struct agent {
    loom_store_server *server;
    int port;
} agent;

static agent open_agent(void)
{
    agent a;
    int listeners[2], n_listeners;

    assert_ok(loom_listen("127.0.0.1", 0, listeners, &n_listeners, &a.port));
    assert_ok(loom_store_server_open(listeners, n_listeners, &a.server));
    return a;
}

static loom_store_client *connect_to(const agent *a)
{
    const loom_store_target target = {.host = "127.0.0.1", .port = a->port, .agent = true};
    loom_store_client *client = NULL;

    assert_ok(loom_store_client_open(&target, loom_now_s() + 20, &client));
    return client;
}

static void put(loom_store_client *client, const char *key, const char *value)
{
    assert_ok(loom_store_client_set(client, loom_span_of_text(key), loom_span_of_text(value)));
}

static bool is_present(loom_store_client *client, const char *key)
{
    const loom_span span = loom_span_of_text(key);
    bool present = false;

    assert_ok(loom_store_client_check(client, &span, 1, &present));
    return present;
}

/* --- a world ----------------------------------------------------------------------------------------------------------------- */

/* Each tells the next its rank, and finds what the one before told. */
static void pass_on(rank_thread *self, loom_store *store)
{
    int rank = loom_store_rank(store), size = loom_store_size(store), told = -1;
    char key[32];
    size_t bytes = 0;
    int64_t sum = 0;

    snprintf(key, sizeof key, "to/%d", (rank + 1) % size);
    note(self, loom_store_set(store, key, &rank, sizeof rank));
    snprintf(key, sizeof key, "to/%d", rank);
    note(self, loom_store_get(store, key, &told, sizeof told, &bytes, 20));
    if (told != (rank + size - 1) % size || bytes != sizeof told)
        note(self, loom_fail(LOOM_E_MISMATCH, "%s holds %d", key, told));
    note(self, loom_store_add(store, "sum", rank, &sum));
    note(self, loom_store_barrier(store, "all added", 20));
    note(self, loom_store_add(store, "sum", 0, &sum));
    if (sum != size * (size - 1) / 2)
        note(self, loom_fail(LOOM_E_MISMATCH, "the sum is %lld", (long long)sum));
    note(self, loom_store_barrier(store, "all added", 20)); /* a name may be used again */
}

static void rank_0_serves_where_no_launcher_does(void **state)
{
    rank_thread ranks[MOST_RANKS];
    int port = free_port();

    (void)state;
    for (int i = 0; i < MOST_RANKS; i++)
        ranks[i] = rank_at(i, MOST_RANKS, port, false, pass_on);
    run_all(ranks, MOST_RANKS);
    expect_all_well(ranks, MOST_RANKS);
}

/* The launcher counts restarts for each node, so the ranks of one round may have different counts; old keys, counters included, stay. */
static void attempts_on_one_store_do_not_meet(void **state)
{
    agent a = open_agent();

    (void)state;
    for (int attempt = 0; attempt < 4; attempt++) {
        rank_thread ranks[4];
        for (int i = 0; i < 4; i++) {
            ranks[i] = rank_at(i, 4, a.port, true, pass_on);
            ranks[i].launch.restart = i < 2 ? 0 : attempt;
        }
        run_all(ranks, 4);
        expect_all_well(ranks, 4);
    }
    loom_store_server_close(a.server);
}

static void the_agreement_leaves_no_hello_behind(void **state)
{
    agent a = open_agent();
    loom_store_client *client = connect_to(&a);
    rank_thread ranks[2] = {rank_at(0, 2, a.port, true, NULL), rank_at(1, 2, a.port, true, NULL)};

    (void)state;
    run_all(ranks, 2);
    expect_all_well(ranks, 2);
    assert_false(is_present(client, "/loom/test/hello/2/1"));
    loom_store_client_close(client);
    loom_store_server_close(a.server);
}

static void await(loom_store_client *client, const char *key)
{
    const loom_span span = loom_span_of_text(key);

    assert_ok(loom_store_client_wait(client, &span, 1, loom_now_s() + 20));
}

static void a_stale_hello_of_a_dead_process_is_overcome(void **state)
{
    agent a = open_agent();
    loom_store_client *client = connect_to(&a);
    rank_thread ranks[3];

    (void)state;
    put(client, "/loom/test/hello/3/1", "0123456789abcdef0123456789abcdef gone 1 1");
    put(client, "/loom/test/hello/3/2", "short"); /* and one that is no hello at all */
    for (int i = 0; i < 3; i++)
        ranks[i] = rank_at(i, 3, a.port, true, pass_on);
    assert_int_equal(pthread_create(&ranks[0].thread, NULL, be_rank, &ranks[0]), 0);
    await(client, "/loom/test/welcome/0123456789abcdef0123456789abcdef"); /* rank 0 fell for it */
    run_all(ranks + 1, 2);
    pthread_join(ranks[0].thread, NULL);
    expect_all_well(ranks, 3);
    loom_store_client_close(client);
    loom_store_server_close(a.server);
}

/* --- a rank 0 that dies before it gives the word, played by hand --------------------------------------------------------------- */

static void *agree_late(void *argument)
{
    usleep(300000);
    return be_rank(argument);
}

static void a_successor_of_rank_0_is_followed(void **state)
{
    agent a = open_agent();
    loom_store_client *client = connect_to(&a);
    rank_thread other = rank_at(1, 2, a.port, true, pass_on), successor = rank_at(0, 2, a.port, true, pass_on);
    char uid[33] = "", key[128];
    size_t bytes;

    (void)state;
    assert_int_equal(pthread_create(&other.thread, NULL, be_rank, &other), 0);
    await(client, "/loom/test/hello/2/1");
    assert_ok(loom_store_client_get(client, loom_span_of_text("/loom/test/hello/2/1"), uid, 32, &bytes));
    snprintf(key, sizeof key, "/loom/test/welcome/%s", uid);
    put(client, key, "1 deadbeefdeadbeefdeadbeefdeadbeef"); /* welcomed, and then silence */
    assert_int_equal(pthread_create(&successor.thread, NULL, agree_late, &successor), 0);
    pthread_join(other.thread, NULL);
    pthread_join(successor.thread, NULL);
    expect_all_well(&other, 1);
    expect_all_well(&successor, 1);
    loom_store_client_close(client);
    loom_store_server_close(a.server);
}

static void another_version_of_the_agreement_is_refused(void **state)
{
    agent a = open_agent();
    loom_store_client *client = connect_to(&a);
    rank_thread other = rank_at(1, 2, a.port, true, NULL);
    char uid[33] = "", key[128];
    size_t bytes;

    (void)state;
    assert_int_equal(pthread_create(&other.thread, NULL, be_rank, &other), 0);
    await(client, "/loom/test/hello/2/1");
    assert_ok(loom_store_client_get(client, loom_span_of_text("/loom/test/hello/2/1"), uid, 32, &bytes));
    snprintf(key, sizeof key, "/loom/test/welcome/%s", uid);
    put(client, key, "99 deadbeefdeadbeefdeadbeefdeadbeef");
    pthread_join(other.thread, NULL);
    assert_int_equal(other.status, LOOM_E_MISMATCH);
    assert_non_null(strstr(other.message, "another version"));
    loom_store_client_close(client);
    loom_store_server_close(a.server);
}

/* A second process with the same rank came between our ack and the word. */
static void a_rank_that_is_not_in_the_word_does_not_start(void **state)
{
    agent a = open_agent();
    loom_store_client *client = connect_to(&a);
    rank_thread other = rank_at(1, 2, a.port, true, NULL);
    char uid[33] = "", key[128];
    size_t bytes;

    (void)state;
    assert_int_equal(pthread_create(&other.thread, NULL, be_rank, &other), 0);
    await(client, "/loom/test/hello/2/1");
    assert_ok(loom_store_client_get(client, loom_span_of_text("/loom/test/hello/2/1"), uid, 32, &bytes));
    snprintf(key, sizeof key, "/loom/test/welcome/%s", uid);
    put(client, key, "1 deadbeefdeadbeefdeadbeefdeadbeef");
    await(client, "/loom/test/g/deadbeefdeadbeefdeadbeefdeadbeef/ack/1");
    put(client, "/loom/test/g/deadbeefdeadbeefdeadbeefdeadbeef/go", "0123456789abcdef0123456789abcdef--------");
    pthread_join(other.thread, NULL);
    assert_int_equal(other.status, LOOM_E_PEER);
    assert_non_null(strstr(other.message, "another process is rank 1 of 2"));
    loom_store_client_close(client);
    loom_store_server_close(a.server);
}

static void two_processes_of_one_rank_do_not_both_start(void **state)
{
    agent a = open_agent();
    rank_thread ranks[3] = {rank_at(0, 2, a.port, true, NULL), rank_at(1, 2, a.port, true, NULL), rank_at(1, 2, a.port, true, NULL)};
    int n_started = 0;

    (void)state;
    for (int i = 0; i < 3; i++)
        ranks[i].deadline_s = 3;
    run_all(ranks, 3);
    assert_int_equal(ranks[0].status, LOOM_OK);
    for (int i = 1; i < 3; i++) {
        n_started += ranks[i].status == LOOM_OK;
        if (ranks[i].status != LOOM_OK)
            assert_true(strstr(ranks[i].message, "another process is rank 1 of 2") || strstr(ranks[i].message, "did not answer rank 1"));
    }
    assert_int_equal(n_started, 1);
    loom_store_server_close(a.server);
}

/* --- who is missing ------------------------------------------------------------------------------------------------------------- */

static void the_missing_are_named_on_every_rank(void **state)
{
    int port = free_port();
    rank_thread ranks[3] = {rank_at(0, 5, port, false, NULL), rank_at(1, 5, port, false, NULL), rank_at(4, 5, port, false, NULL)};

    (void)state;
    for (int i = 0; i < 3; i++)
        ranks[i].deadline_s = 1;
    run_all(ranks, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ranks[i].status, LOOM_E_PEER);
        if (!strstr(ranks[i].message, "ranks 2, 3 did not come"))
            fail_msg("rank %d says: %s", ranks[i].launch.rank, ranks[i].message);
        assert_true(ranks[i].took_s < 10);
    }
}

static void without_rank_0_the_others_say_so(void **state)
{
    agent a = open_agent();
    rank_thread alone = rank_at(1, 2, a.port, true, NULL);

    (void)state;
    alone.deadline_s = 0.5;
    run_all(&alone, 1);
    assert_int_equal(alone.status, LOOM_E_PEER);
    assert_non_null(strstr(alone.message, "rank 0 did not answer rank 1"));
    loom_store_server_close(a.server);
}

static void skip_the_second_barrier(rank_thread *self, loom_store *store)
{
    note(self, loom_store_barrier(store, "first", 20));
    if (loom_store_rank(store) != 1)
        note(self, loom_store_barrier(store, loom_store_rank(store) == 2 ? "other" : "second", 0.5));
    else
        usleep(800000);
}

static void a_barrier_names_who_is_missing_and_who_is_elsewhere(void **state)
{
    rank_thread ranks[3];
    agent a = open_agent(); /* stays, so that nobody sees its end instead */

    (void)state;
    for (int i = 0; i < 3; i++)
        ranks[i] = rank_at(i, 3, a.port, true, skip_the_second_barrier);
    run_all(ranks, 3);
    assert_int_equal(ranks[1].status, LOOM_OK);
    assert_int_equal(ranks[0].status, LOOM_E_PEER);
    assert_non_null(strstr(ranks[0].message, "barrier \"second\": after 0.5 s 2 of 3 ranks are missing: rank 1, rank 2 (it is at barrier \"other\")"));
    assert_int_equal(ranks[2].status, LOOM_E_PEER);
    assert_non_null(strstr(ranks[2].message, "rank 0 (it is at barrier \"second\"), rank 1"));
    loom_store_server_close(a.server);
}

static void pass_many_barriers(rank_thread *self, loom_store *store)
{
    for (int i = 0; i < 50; i++)
        note(self, loom_store_barrier(store, i % 2 ? "odd" : "even", 20));
}

static void barriers_do_not_fill_the_store(void **state)
{
    enum { NUM_KEYS_REPLY = 8 };
    agent a = open_agent();
    rank_thread ranks[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        ranks[i] = rank_at(i, 3, a.port, true, pass_many_barriers);
    run_all(ranks, 3);
    expect_all_well(ranks, 3);

    loom_addresses address;
    uint64_t n_keys = 0;
    const uint8_t ask[] = {0x00, 0xce, 0xf7, 0x85, 0x3c, 0x07};
    assert_ok(loom_resolve("127.0.0.1", a.port, &address));
    int fd = loom_socket_connect(&address.at[0], loom_now_s() + 20);
    assert_int_equal(loom_socket_send(fd, ask, sizeof ask, loom_now_s() + 20), LOOM_IO_OK);
    assert_int_equal(loom_socket_receive(fd, &n_keys, NUM_KEYS_REPLY, loom_now_s() + 20), LOOM_IO_OK);
    close(fd);
    assert_in_range(n_keys, 1, 20); /* two of the 50 barriers, acks, go, goodbye */
    loom_store_server_close(a.server);
}

/* --- the end -------------------------------------------------------------------------------------------------------------------- */

static void be_slow_unless_serving(rank_thread *self, loom_store *store)
{
    int64_t sum;

    if (loom_store_rank(store) == 0)
        return;
    usleep(300000);
    note(self, loom_store_add(store, "late", 1, &sum));
}

static void the_serving_rank_waits_for_the_goodbyes(void **state)
{
    int port = free_port();
    rank_thread ranks[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        ranks[i] = rank_at(i, 3, port, false, be_slow_unless_serving);
    run_all(ranks, 3);
    expect_all_well(ranks, 3);
    assert_true(ranks[0].took_s >= 0.3 && ranks[0].took_s < 5);
}

static void *end_soon(void *argument)
{
    usleep(200000);
    loom_store_server_close(argument);
    return NULL;
}

static void wait_in_vain(rank_thread *self, loom_store *store)
{
    char value;
    size_t bytes;

    note(self, loom_store_get(store, "never", &value, 1, &bytes, 60));
}

static void the_end_of_the_server_ends_every_wait(void **state)
{
    agent a = open_agent();
    rank_thread ranks[2] = {rank_at(0, 2, a.port, true, wait_in_vain), rank_at(1, 2, a.port, true, wait_in_vain)};
    pthread_t killer;

    (void)state;
    assert_int_equal(pthread_create(&killer, NULL, end_soon, a.server), 0);
    run_all(ranks, 2);
    pthread_join(killer, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, LOOM_E_PEER);
        assert_non_null(strstr(ranks[i].message, "is gone"));
        assert_true(ranks[i].took_s < 10);
    }
}

static void *come_back(void *argument)
{
    usleep(500000);
    return be_rank(argument);
}

/* Static rendezvous: the launcher of one node restarts its ranks and tells nobody. The ranks of the other node, which wait in the old generation, have
 * to notice, or the new ones would wait for them as long. */
static void a_rank_that_was_started_anew_ends_the_waits_of_its_old_peers(void **state)
{
    agent a = open_agent();
    rank_thread old[3] = {rank_at(0, 3, a.port, true, wait_in_vain), rank_at(1, 3, a.port, true, wait_in_vain), rank_at(2, 3, a.port, true, NULL)};
    rank_thread anew = rank_at(2, 3, a.port, true, NULL);

    (void)state;
    anew.deadline_s = 2;
    assert_int_equal(pthread_create(&anew.thread, NULL, come_back, &anew), 0);
    run_all(old, 3);
    pthread_join(anew.thread, NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(old[i].status, LOOM_E_PEER);
        if (!strstr(old[i].message, "started anew"))
            fail_msg("rank %d says: %s", i, old[i].message);
        assert_true(old[i].took_s < 10);
    }
    assert_int_equal(old[2].status, LOOM_OK);
    loom_store_server_close(a.server);
}

/* --- alone ----------------------------------------------------------------------------------------------------------------------- */

static void a_world_of_one_needs_no_network(void **state)
{
    const loom_launch launch = {.size = 1, .master_addr = "no.such.host", .master_port = 1};
    loom_store *store;
    char value[8] = "";
    size_t bytes;
    int64_t sum;
    bool present;
    double began = loom_now_s();

    (void)state;
    assert_ok(loom_store_open(&launch, 10, &store));
    assert_ok(loom_store_set(store, "k", "hello", 5));
    assert_ok(loom_store_get(store, "k", value, 3, &bytes, 10));
    assert_int_equal(bytes, 5);
    assert_string_equal(value, "hel");
    assert_ok(loom_store_add(store, "n", 5, &sum));
    assert_ok(loom_store_add(store, "n", -7, &sum));
    assert_int_equal(sum, -2);
    assert_refused(loom_store_add(store, "k", 1, &sum), LOOM_E_INVALID, "does not hold a number");
    assert_ok(loom_store_barrier(store, "b", 10));
    assert_ok(loom_store_barrier(store, "b", 10));
    assert_ok(loom_store_delete(store, "k"));
    assert_ok(loom_store_check(store, "k", &present));
    assert_false(present);
    assert_refused(loom_store_get(store, "k", value, 3, &bytes, 100), LOOM_E_PEER, "\"k\"", "nobody set it");
    assert_true(loom_now_s() - began < 10); /* nobody else could set it: no wait */
    loom_store_close(store);
}

/* --- cases of real reports --------------------------------------------------------------------------------------------------------- */

/* Case E07: rank 0 is not where MASTER_ADDR says. 192.0.2.0/24 is set aside for documentation: nobody has it. */
static void case_e07_rank_0_is_not_on_the_master(void **state)
{
    rank_thread serving = rank_at(0, 2, 29501, false, NULL);

    (void)state;
    strcpy(serving.launch.master_addr, "192.0.2.1");
    run_all(&serving, 1);
    assert_int_equal(serving.status, LOOM_E_INVALID);
    assert_non_null(strstr(serving.message, "MASTER_ADDR is not an address of this host"));
    assert_true(serving.took_s < 2);
}

/* Case E01: somebody else listens on MASTER_PORT. All ranks end, within two seconds. */
static void case_e01_the_port_is_in_use(void **state)
{
    int listeners[2], n_listeners, port;
    char words[64];

    (void)state;
    assert_ok(loom_listen("127.0.0.1", 0, listeners, &n_listeners, &port));
    rank_thread ranks[2] = {rank_at(0, 2, port, false, NULL), rank_at(1, 2, port, false, NULL)};
    run_all(ranks, 2);
    snprintf(words, sizeof words, "port %d of 127.0.0.1 is in use", port);
    assert_int_equal(ranks[0].status, LOOM_E_PEER);
    assert_non_null(strstr(ranks[0].message, words));
    assert_int_equal(ranks[1].status, LOOM_E_PEER);
    assert_non_null(strstr(ranks[1].message, "another job"));
    assert_true(ranks[0].took_s < 2 && ranks[1].took_s < 2);
    close(listeners[0]);
}

/* The same, when the somebody is a store of another job: our ranks would wait in it for ever. */
static void case_e01_the_port_is_in_use_by_another_store(void **state)
{
    agent a = open_agent();
    rank_thread ranks[2] = {rank_at(0, 2, a.port, false, NULL), rank_at(1, 2, a.port, false, NULL)};

    (void)state;
    run_all(ranks, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, LOOM_E_PEER);
        assert_non_null(strstr(ranks[i].message, "is in use"));
        assert_true(ranks[i].took_s < 2);
    }
    loom_store_server_close(a.server);
}

/* MASTER_PORT=0: no port has to be thought up at all. */
static void case_e01_a_free_port_is_found_and_passed_on(void **state)
{
    rank_thread ranks[3];
    char folder[] = "/tmp/loom-store-test-XXXXXX";

    (void)state;
    assert_non_null(mkdtemp(folder));
    setenv("TMPDIR", folder, 1);
    for (int attempt = 0; attempt < 2; attempt++) {
        for (int i = 0; i < 3; i++)
            ranks[i] = rank_at(i, 3, 0, false, pass_on);
        run_all(ranks, 3);
        expect_all_well(ranks, 3);
    }
    ranks[0] = rank_at(1, 3, 0, false, NULL);
    ranks[0].deadline_s = 0.2;
    run_all(ranks, 1);
    assert_int_equal(ranks[0].status, LOOM_E_PEER);
    assert_non_null(strstr(ranks[0].message, "rank 0 did not tell its port"));
    unsetenv("TMPDIR");
    assert_int_equal(rmdir(folder), 0); /* nothing was left in it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_0_serves_where_no_launcher_does),
        cmocka_unit_test(attempts_on_one_store_do_not_meet),
        cmocka_unit_test(the_agreement_leaves_no_hello_behind),
        cmocka_unit_test(a_stale_hello_of_a_dead_process_is_overcome),
        cmocka_unit_test(a_successor_of_rank_0_is_followed),
        cmocka_unit_test(another_version_of_the_agreement_is_refused),
        cmocka_unit_test(a_rank_that_is_not_in_the_word_does_not_start),
        cmocka_unit_test(two_processes_of_one_rank_do_not_both_start),
        cmocka_unit_test(the_missing_are_named_on_every_rank),
        cmocka_unit_test(without_rank_0_the_others_say_so),
        cmocka_unit_test(a_barrier_names_who_is_missing_and_who_is_elsewhere),
        cmocka_unit_test(barriers_do_not_fill_the_store),
        cmocka_unit_test(the_serving_rank_waits_for_the_goodbyes),
        cmocka_unit_test(the_end_of_the_server_ends_every_wait),
        cmocka_unit_test(a_rank_that_was_started_anew_ends_the_waits_of_its_old_peers),
        cmocka_unit_test(a_world_of_one_needs_no_network),
        cmocka_unit_test(case_e07_rank_0_is_not_on_the_master),
        cmocka_unit_test(case_e01_the_port_is_in_use),
        cmocka_unit_test(case_e01_the_port_is_in_use_by_another_store),
        cmocka_unit_test(case_e01_a_free_port_is_found_and_passed_on),
    };

    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
