/* Connections of the TCP transport: who may come in. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/tcp.h"

typedef struct half_world {
    loom_world world;
    char (*cards)[LOOM_CARD_BYTES];
    loom_status status;
} half_world;

static void *connect_all(void *argument)
{
    half_world *h = argument;

    h->status = loom_tcp_connect_all(&h->world, (const char(*)[LOOM_CARD_BYTES])h->cards);
    return NULL;
}

static void open_links(half_world *h)
{
    tcp_world *w = h->world.states[LOOM_TCP];

    w->links = calloc((size_t)h->world.size, sizeof *w->links);
    for (int r = 0; r < h->world.size; r++) {
        w->links[r].fd = -1;
        w->links[r].out_last = &w->links[r].out;
    }
}

static int connect_as_stranger(const tcp_world *w, const void *words, size_t bytes)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(getsockname(w->listeners[0], (struct sockaddr *)&address, &length), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(write(fd, words, bytes), bytes);
    return fd;
}

static void close_half(half_world *h)
{
    loom_transport_tcp.close(&h->world);
}

/* Noise, a greeting with a wrong secret, and silence come in before the rank does; all are shut out, and the rank still gets in. */
static void strangers_are_shut_out(void **state)
{
    static char cards[2][LOOM_CARD_BYTES];
    struct {
        uint64_t magic;
        unsigned char half[16];
        int32_t from, to;
    } forged = {0x316d6f6f6c6b6e72, {1, 2, 3}, 1, 0};
    half_world halves[2] = {0};
    pthread_t threads[2];
    int strangers[3];
    static const char noise[40] = "GET / HTTP/1.1\r\nHost: somebody\r\n\r\n\r\n\r\n";
    char byte;

    (void)state;
    for (int r = 0; r < 2; r++) {
        halves[r].world = (loom_world){.rank = r, .size = 2, .deadline_s = 20};
        halves[r].cards = cards;
        assert_int_equal(loom_tcp_present(&halves[r].world, "127.0.0.1", cards[r]), LOOM_OK);
        open_links(&halves[r]);
    }
    strangers[0] = connect_as_stranger(halves[0].world.states[LOOM_TCP], noise, sizeof noise);
    strangers[1] = connect_as_stranger(halves[0].world.states[LOOM_TCP], &forged, sizeof forged);
    strangers[2] = connect_as_stranger(halves[0].world.states[LOOM_TCP], "", 0);
    for (int r = 0; r < 2; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, connect_all, &halves[r]), 0);
    for (int r = 0; r < 2; r++) {
        pthread_join(threads[r], NULL);
        assert_int_equal(halves[r].status, LOOM_OK);
    }
    for (int i = 0; i < 3; i++) {
        assert_true(read(strangers[i], &byte, 1) <= 0); /* closed, and not a byte of an answer */
        close(strangers[i]);
    }
    for (int r = 0; r < 2; r++)
        close_half(&halves[r]);
}

/* Once the ranks are connected nothing listens any more. */
static void a_frame_from_nowhere_ends_the_connection(void **state)
{
    int pair[2];
    tcp_link link = {0};
    tcp_world w = {.links = &link, .size = 1};
    char noise[48];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    link.fd = pair[0];
    link.out_last = &link.out;
    link.buffer = malloc(TCP_BUFFER);
    memset(noise, 0x5a, sizeof noise);
    assert_int_equal(write(pair[1], noise, sizeof noise), sizeof noise);
    loom_tcp_drive(&w);
    assert_true(link.dead);
    assert_non_null(strstr(link.why, "no frame"));
    loom_tcp_free_link(&link);
    close(pair[1]);
}

/* A parcel that is abandoned half sent is sent to its end, and what follows arrives whole. */
static void an_abandoned_parcel_keeps_the_stream_in_step(void **state)
{
    enum { BYTES = 4 << 20 };
    int pair[2];
    tcp_link links[2] = {0};
    tcp_world worlds[2] = {{.links = &links[0], .size = 1}, {.links = &links[1], .size = 1}};
    char *data = malloc(BYTES), word[6] = "";
    loom_parcel large = {.class = LOOM_PARCEL_SLICE, .comm = 1, .number = 1, .data = data, .bytes = BYTES};
    loom_parcel small = {.class = LOOM_PARCEL_SLICE, .comm = 1, .number = 2, .data = (char *)"after", .bytes = 6};
    loom_parcel expected = {.class = LOOM_PARCEL_SLICE, .comm = 1, .number = 2, .data = word, .bytes = 6};

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    for (int i = 0; i < 2; i++) {
        links[i].fd = pair[i];
        links[i].out_last = &links[i].out;
        links[i].buffer = malloc(TCP_BUFFER);
    }
    memset(data, 7, BYTES);
    loom_tcp_send(&links[0], &large);
    loom_tcp_send(&links[0], &small);
    assert_false(large.done);
    loom_tcp_forget(&links[0], &large);
    memset(data, 8, BYTES); /* it is the caller's again */
    free(data);
    loom_tcp_expect(&links[1], &expected);
    for (int i = 0; i < 100000 && !expected.done; i++) {
        loom_tcp_drive(&worlds[0]);
        loom_tcp_drive(&worlds[1]);
    }
    assert_true(expected.done && small.done);
    assert_string_equal(word, "after");
    assert_int_equal(links[1].arrived->bytes, BYTES); /* the abandoned one, as it was when it was abandoned */
    for (int i = 0; i < BYTES; i++)
        if (links[1].arrived->data[i] != 7)
            fail_msg("byte %d changed", i);
    loom_tcp_purge(&links[1], 1);
    assert_null(links[1].arrived);
    loom_tcp_free_link(&links[0]);
    loom_tcp_free_link(&links[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_are_shut_out),
        cmocka_unit_test(a_frame_from_nowhere_ends_the_connection),
        cmocka_unit_test(an_abandoned_parcel_keeps_the_stream_in_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
