/* Finding the store: which of several addresses, which dialect, and who is no store at all. */
#include "check.h"
#include "core/clock.h"
#include "launch/store_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <unistd.h>

/* A server that does with each connection what a kind of server does with its first bytes, as the edge records tell. */
typedef void talk_fn(int fd);

typedef struct host {
    pthread_t thread;
    int listener, port, n_connections;
    talk_fn *talk;
} host;

static bool read_exactly(int fd, uint8_t *data, size_t size)
{
    for (ssize_t n; size > 0; data += n, size -= (size_t)n)
        if ((n = read(fd, data, size)) <= 0)
            return false;
    return true;
}

static void be_mute(int fd)
{
    uint8_t byte;

    while (read(fd, &byte, 1) > 0)
        continue;
}

static void answer_no_keys(int fd)
{
    static const uint8_t zero[8] = {0};

    if (write(fd, zero, sizeof zero) == sizeof zero)
        be_mute(fd);
}

static void talk_2_5(int fd) /* VALIDATE, PING: the nonce comes back */
{
    uint8_t got[10];

    if (read_exactly(fd, got, sizeof got) && memcmp(got, "\x00\xce\xf7\x85\x3c\x0d", 6) == 0 && write(fd, got + 6, 4) == 4)
        be_mute(fd);
}

static void talk_2_4(int fd) /* closes at PING, answers NUM_KEYS behind VALIDATE, is mute towards who did not begin with it */
{
    uint8_t got[6];

    if (!read_exactly(fd, got, 1))
        return;
    if (got[0] != 0)
        be_mute(fd);
    else if (read_exactly(fd, got + 1, 5) && got[5] == 7)
        answer_no_keys(fd);
}

static void talk_2_1(int fd) /* takes VALIDATE for a SET of an absurd length and closes; 6 is NUM_KEYS */
{
    uint8_t op;

    if (read_exactly(fd, &op, 1) && op == 6)
        answer_no_keys(fd);
}

static void talk_web(int fd)
{
    if (write(fd, "HTTP/1.1 400 Bad Request\r\n", 26) == 26)
        be_mute(fd);
}

static void hang_up(int fd)
{
    (void)fd;
}

static void *serve(void *argument)
{
    host *h = argument;

    for (int fd; (fd = accept(h->listener, NULL, NULL)) >= 0; close(fd)) {
        h->n_connections++;
        h->talk(fd);
    }
    return NULL;
}

static void open_host(host *h, talk_fn *talk)
{
    int listeners[2], n_listeners;

    *h = (host){.talk = talk};
    assert_ok(loom_listen("127.0.0.1", 0, listeners, &n_listeners, &h->port));
    h->listener = listeners[0];
    fcntl(h->listener, F_SETFL, 0); /* blocking */
    assert_int_equal(pthread_create(&h->thread, NULL, serve, h), 0);
}

static void close_host(host *h)
{
    shutdown(h->listener, SHUT_RDWR);
    pthread_join(h->thread, NULL);
    close(h->listener);
}

static loom_status dial(const host *h, bool agent, bool probe_old, double deadline_s, double *took_s)
{
    const loom_store_target target = {.host = "127.0.0.1", .port = h->port, .agent = agent, .probe_old = probe_old};
    loom_store_client *client = NULL;
    double began = loom_now_s();
    loom_status status = loom_store_client_open(&target, began + deadline_s, &client);

    *took_s = loom_now_s() - began;
    loom_store_client_close(client);
    return status;
}

static void a_modern_store_is_found_at_once(void **state)
{
    host h;
    double took_s;

    (void)state;
    open_host(&h, talk_2_5);
    assert_ok(dial(&h, false, false, 20, &took_s));
    assert_int_equal(h.n_connections, 1);
    close_host(&h);
}

static void older_stores_are_found_when_asked_for(void **state)
{
    talk_fn *const kinds[] = {talk_2_4, talk_2_1};

    (void)state;
    for (int i = 0; i < 2; i++) {
        host h;
        double took_s;
        open_host(&h, kinds[i]);
        assert_ok(dial(&h, true, true, 30, &took_s));
        close_host(&h);
    }
}

static void strangers_are_recognised_within_two_seconds(void **state)
{
    const struct {
        talk_fn *talk;
        const char *words;
    } kinds[] = {{be_mute, "accepts and is silent"}, {hang_up, "hangs up at the greeting"}, {talk_web, "answers, but not as a store"}};

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        host h;
        double took_s;
        char port[16];
        open_host(&h, kinds[i].talk);
        snprintf(port, sizeof port, ":%d", h.port);
        assert_refused(dial(&h, false, false, 60, &took_s), LOOM_E_PEER, kinds[i].words, port, "another job");
        assert_true(took_s < 2);
        close_host(&h);
    }
}

/* The client may be there first. */
static void nobody_there_yet_is_waited_for(void **state)
{
    host h;
    double took_s;

    (void)state;
    open_host(&h, talk_2_5);
    close_host(&h); /* its port is free now, and nobody listens */
    assert_refused(dial(&h, false, false, 0.3, &took_s), LOOM_E_PEER, "Connection refused", "is rank 0 running");
    assert_true(took_s >= 0.3 && took_s < 5);
}

/* Case E02: a name that stands for both families, and a server on one of them only. */
static void all_addresses_are_tried_in_turn(void **state)
{
    host h;
    loom_addresses both = {.count = 2};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    loom_store_client *client = NULL;

    (void)state;
    open_host(&h, talk_2_5);
    v6.sin6_port = v4.sin_port = htons((uint16_t)h.port);
    memcpy(&both.at[0].storage, &v6, sizeof v6);
    memcpy(&both.at[1].storage, &v4, sizeof v4);
    both.at[0].size = sizeof v6;
    both.at[1].size = sizeof v4;
    const loom_store_target target = {.host = "both", .port = h.port};
    double began = loom_now_s();
    assert_ok(loom_store_client_open_at(&target, &both, began + 20, &client));
    assert_true(loom_now_s() - began < 1);
    loom_store_client_close(client);
    close_host(&h);
}

/* The listener takes both families where there are both: "localhost" may be either. */
static void localhost_is_served_on_both_families(void **state)
{
    int listeners[2], n_listeners, port;
    loom_addresses v6;

    (void)state;
    assert_ok(loom_listen("localhost", 0, listeners, &n_listeners, &port));
    assert_ok(loom_resolve("::1", port, &v6));
    if (loom_address_is_of_this_host(&v6.at[0]))
        assert_int_equal(n_listeners, 2);
    for (int i = 0; i < n_listeners; i++)
        close(listeners[i]);
    assert_ok(loom_listen("some-host-name", 0, listeners, &n_listeners, &port)); /* whatever it resolves to: all addresses */
    const char *const loopback[] = {"127.0.0.1", "::1"};
    for (int i = 0; i < 2; i++) {
        loom_addresses address;
        assert_ok(loom_resolve(loopback[i], port, &address));
        if (!loom_address_is_of_this_host(&address.at[0]))
            continue;
        int fd = loom_socket_connect(&address.at[0], loom_now_s() + 5);
        assert_true(fd >= 0);
        close(fd);
    }
    close(listeners[0]);
}

static void a_port_in_use_is_refused_with_its_holder(void **state)
{
    int listeners[2], more[2], n_listeners, n_more, port;
    char words[64];

    (void)state;
    assert_ok(loom_listen("127.0.0.1", 0, listeners, &n_listeners, &port));
    snprintf(words, sizeof words, "port %d of 127.0.0.1 is in use", port);
    assert_refused(loom_listen("127.0.0.1", port, more, &n_more, &port), LOOM_E_PEER, words);
    char holder[128];
    if (loom_port_holder(port, holder, sizeof holder)) { /* some sandboxes show no sockets in /proc */
        snprintf(words, sizeof words, "process %d (", (int)getpid());
        assert_in_message(words);
        assert_non_null(strstr(holder, words));
    }
    close(listeners[0]);
    assert_ok(loom_listen("127.0.0.1", port, listeners, &n_listeners, &port)); /* at once: address reuse */
    close(listeners[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_modern_store_is_found_at_once),
        cmocka_unit_test(older_stores_are_found_when_asked_for),
        cmocka_unit_test(strangers_are_recognised_within_two_seconds),
        cmocka_unit_test(nobody_there_yet_is_waited_for),
        cmocka_unit_test(all_addresses_are_tried_in_turn),
        cmocka_unit_test(localhost_is_served_on_both_families),
        cmocka_unit_test(a_port_in_use_is_refused_with_its_holder),
    };

    return cmocka_run_group_tests_name("finding the store", tests, NULL, NULL);
}
