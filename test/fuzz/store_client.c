/* Replies of anybody to our store client: the input is all that the server ever says. */
#include "fuzz.h"
#include "launch/store_client.h"

#include "core/clock.h"

#include <assert.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 32 << 10 /* fits the socket's buffer, so that the whole reply can be written ahead */ };

/* Takes what the client said: a socket's buffer counts messages more than bytes and would fill up after some hundred of them. */
static void drain(int server)
{
    char said[1 << 12];

    while (recv(server, said, sizeof said, MSG_DONTWAIT) > 0)
        ;
}

static void use(loom_store_client *client, int server)
{
    const loom_span key = loom_span_of_text("/k1");
    char value[16];
    int64_t sum;
    bool present;

    for (int i = 0; i < 64 && !loom_store_client_lost(client); i++) {
        size_t bytes = 0;
        loom_store_client_set(client, key, loom_span_of_text("hello"));
        loom_store_client_wait(client, &key, 1, loom_now_s() + 5);
        if (loom_store_client_get(client, key, value, sizeof value, &bytes) == LOOM_OK)
            assert(bytes <= MOST);
        loom_store_client_add(client, key, 1, &sum);
        loom_store_client_check(client, &key, 1, &present);
        loom_store_client_delete(client, key);
        drain(server);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    loom_store_client *client;
    int ends[2];

    if (size > MOST || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return 0;
    if (write(ends[1], data, size) == (ssize_t)size && shutdown(ends[1], SHUT_WR) == 0 &&
        loom_store_client_adopt(ends[0], size % 2 ? LOOM_STORE_OLD : LOOM_STORE_MODERN, &client) == LOOM_OK) {
        use(client, ends[1]);
        loom_store_client_close(client);
    } else {
        close(ends[0]);
    }
    close(ends[1]);
    return 0;
}
