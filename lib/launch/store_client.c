/* The operations of a store client: one request, one reply. */
#include "launch/store_client.h"

#include "launch/protocol.h"
#include "launch/store_greeting.h"

#include "core/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPLY_S = 60 }; /* for requests that a live server answers at once */

struct loom_store_client {
    int fd; /* -1: lost */
    loom_store_dialect dialect;
    loom_address address; /* size 0: adopted */
    char name[LOOM_ADDRESS_TEXT];
};

/* --- the connection ---------------------------------------------------------------------------------------------------- */

loom_status loom_store_client_adopt(int fd, loom_store_dialect dialect, loom_store_client **client)
{
    loom_store_client *c = calloc(1, sizeof *c);

    if (!c) {
        close(fd);
        return loom_fail(LOOM_E_MEMORY, "store: no memory for the client");
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    c->fd = fd;
    c->dialect = dialect;
    strcpy(c->name, "a given connection");
    *client = c;
    return LOOM_OK;
}

loom_status loom_store_client_open_at(const loom_store_target *target, const loom_addresses *addresses, double deadline,
                                      loom_store_client **client)
{
    loom_store_connection connection;
    loom_status status = loom_store_connect(target, addresses, deadline, &connection);

    if (status == LOOM_OK)
        status = loom_store_client_adopt(connection.fd, connection.dialect, client);
    if (status != LOOM_OK)
        return status;
    (*client)->address = connection.address;
    loom_address_text(&connection.address, (*client)->name);
    return LOOM_OK;
}

loom_status loom_store_client_open(const loom_store_target *target, double deadline, loom_store_client **client)
{
    return loom_store_client_open_at(target, NULL, deadline, client);
}

void loom_store_client_close(loom_store_client *client)
{
    if (!client)
        return;
    if (client->fd >= 0)
        close(client->fd);
    free(client);
}

bool loom_store_client_lost(const loom_store_client *client)
{
    return client->fd < 0;
}

/* The connection cannot be used any more: nobody can tell which reply would come next. */
static loom_status lose(loom_store_client *client, loom_io io, const char *doing)
{
    const char *reason = io == LOOM_IO_CLOSED    ? "the connection was closed: who served the store, the launcher or rank 0, is gone"
                         : io == LOOM_IO_TIMEOUT ? "no answer within its deadline"
                                                 : strerror(errno);

    loom_status status = loom_fail(LOOM_E_PEER, "store at %s, %s: %s", client->name, doing, reason);
    close(client->fd);
    client->fd = -1;
    return status;
}

/* --- messages ------------------------------------------------------------------------------------------------------------ */

static uint8_t opcode(const loom_store_client *client, loom_store_op op)
{
    return (uint8_t)(client->dialect == LOOM_STORE_OLD ? op - 1 : op);
}

static loom_bytes begin(const loom_store_client *client, loom_store_op op)
{
    loom_bytes message = {0};

    loom_bytes_append_u8(&message, opcode(client, op));
    return message;
}

/* Sends and frees the message. */
static loom_status send_message(loom_store_client *client, loom_bytes *message, const char *doing)
{
    loom_status status = LOOM_OK;

    if (message->failed)
        status = loom_fail(LOOM_E_MEMORY, "store: no memory for a message of %zu bytes", message->size);
    else if (client->fd < 0)
        status = loom_fail(LOOM_E_PEER, "store at %s, %s: the connection was lost before", client->name, doing);
    if (status == LOOM_OK) {
        loom_io io = loom_socket_send(client->fd, message->data, message->size, loom_now_s() + REPLY_S);
        if (io != LOOM_IO_OK)
            status = lose(client, io, doing);
    }
    loom_bytes_free(message);
    return status;
}

static loom_status receive(loom_store_client *client, void *data, size_t size, const char *doing)
{
    loom_io io = loom_socket_receive(client->fd, data, size, loom_now_s() + REPLY_S);

    return io == LOOM_IO_OK ? LOOM_OK : lose(client, io, doing);
}

static loom_status check_key(loom_span key)
{
    if (key.size <= LOOM_STORE_KEY_BYTES)
        return LOOM_OK;
    return loom_fail(LOOM_E_INVALID, "store: a key of %zu bytes; at most %d are possible, prefix included", key.size, LOOM_STORE_KEY_BYTES);
}

/* A request whose only field is one key. */
static loom_status send_key(loom_store_client *client, loom_store_op op, loom_span key, const char *doing)
{
    loom_bytes message = begin(client, op);

    loom_bytes_append_string(&message, key);
    return send_message(client, &message, doing);
}

static loom_status send_keys(loom_store_client *client, loom_store_op op, const loom_span *keys, int n_keys, const char *doing)
{
    loom_status status = LOOM_OK;

    for (int i = 0; i < n_keys && status == LOOM_OK; i++)
        status = check_key(keys[i]);
    if (status != LOOM_OK)
        return status;
    loom_bytes message = begin(client, op);
    loom_bytes_append_u64(&message, (uint64_t)n_keys);
    for (int i = 0; i < n_keys; i++)
        loom_bytes_append_string(&message, keys[i]);
    return send_message(client, &message, doing);
}

/* --- operations ----------------------------------------------------------------------------------------------------------- */

loom_status loom_store_client_set(loom_store_client *client, loom_span key, loom_span value)
{
    loom_status status = check_key(key);

    if (status != LOOM_OK)
        return status;
    if (value.size > LOOM_STORE_VALUE_BYTES)
        return loom_fail(LOOM_E_INVALID, "store: a value of %zu bytes; at most %d are possible", value.size, LOOM_STORE_VALUE_BYTES);

    loom_bytes message = begin(client, LOOM_OP_SET);
    loom_bytes_append_string(&message, key);
    loom_bytes_append_string(&message, value);
    return send_message(client, &message, "setting a key");
}

/* Reads `size` bytes away that the caller has no room for. */
static loom_status skip(loom_store_client *client, uint64_t size)
{
    char nowhere[4096];
    loom_status status = LOOM_OK;

    while (status == LOOM_OK && size > 0) {
        size_t part = size < sizeof nowhere ? (size_t)size : sizeof nowhere;
        status = receive(client, nowhere, part, "reading a value");
        size -= part;
    }
    return status;
}

loom_status loom_store_client_get(loom_store_client *client, loom_span key, void *value, size_t capacity, size_t *bytes)
{
    uint64_t size = 0;
    loom_status status = check_key(key);

    if (status == LOOM_OK)
        status = send_key(client, LOOM_OP_GET, key, "getting a key");
    if (status == LOOM_OK)
        status = receive(client, &size, sizeof size, "getting a key");
    if (status == LOOM_OK && size > LOOM_STORE_REQUEST_BYTES)
        status = lose(client, LOOM_IO_CLOSED, "getting a value longer than any store holds");
    if (status == LOOM_OK)
        status = receive(client, value, size < capacity ? (size_t)size : capacity, "reading a value");
    if (status == LOOM_OK && size > capacity)
        status = skip(client, size - capacity);
    if (status == LOOM_OK)
        *bytes = (size_t)size;
    return status;
}

loom_status loom_store_client_add(loom_store_client *client, loom_span key, int64_t delta, int64_t *sum)
{
    int64_t reply;
    loom_bytes message = begin(client, LOOM_OP_ADD);
    loom_status status = check_key(key);

    loom_bytes_append_string(&message, key);
    loom_bytes_append_u64(&message, (uint64_t)delta);
    if (status != LOOM_OK) {
        loom_bytes_free(&message);
        return status;
    }
    status = send_message(client, &message, "adding to a key");
    if (status == LOOM_OK)
        status = receive(client, &reply, sizeof reply, "adding to a key (it may hold no number)");
    if (status == LOOM_OK)
        *sum = reply;
    return status;
}

loom_status loom_store_client_check(loom_store_client *client, const loom_span *keys, int n_keys, bool *all_present)
{
    uint8_t reply;
    loom_status status = send_keys(client, LOOM_OP_CHECK, keys, n_keys, "checking keys");

    if (status == LOOM_OK)
        status = receive(client, &reply, sizeof reply, "checking keys");
    if (status == LOOM_OK)
        *all_present = reply == LOOM_STORE_READY;
    return status;
}

/* The old dialect cannot take a wait back: a new connection forgets it. */
static loom_status reconnect(loom_store_client *client)
{
    close(client->fd);
    client->fd = client->address.size ? loom_socket_connect(&client->address, loom_now_s() + REPLY_S) : -1;
    if (client->fd < 0)
        return loom_fail(LOOM_E_PEER, "store at %s: cannot connect again after a wait: %s", client->name, strerror(errno));
    return LOOM_PENDING;
}

/* The key may have come just before the cancel: then two replies stand in the stream, and both have to be read. */
static loom_status cancel_wait(loom_store_client *client)
{
    uint8_t reply;
    loom_bytes message = begin(client, LOOM_OP_CANCEL_WAIT);
    loom_status status = send_message(client, &message, "cancelling a wait");

    if (status == LOOM_OK)
        status = receive(client, &reply, sizeof reply, "cancelling a wait");
    if (status != LOOM_OK || reply == LOOM_STORE_WAIT_CANCELED)
        return status == LOOM_OK ? LOOM_PENDING : status;
    return receive(client, &reply, sizeof reply, "cancelling a wait");
}

loom_status loom_store_client_wait(loom_store_client *client, const loom_span *keys, int n_keys, double deadline)
{
    uint8_t reply;
    loom_status status = send_keys(client, LOOM_OP_WAIT, keys, n_keys, "waiting for a key");

    if (status != LOOM_OK)
        return status;
    switch (loom_socket_receive(client->fd, &reply, sizeof reply, deadline)) {
    case LOOM_IO_OK:
        return LOOM_OK;
    case LOOM_IO_TIMEOUT:
        return client->dialect == LOOM_STORE_OLD ? reconnect(client) : cancel_wait(client);
    case LOOM_IO_CLOSED:
        return lose(client, LOOM_IO_CLOSED, "waiting for a key");
    default:
        return lose(client, LOOM_IO_FAILED, "waiting for a key");
    }
}

loom_status loom_store_client_delete(loom_store_client *client, loom_span key)
{
    int64_t n_deleted;
    loom_status status = check_key(key);

    if (client->dialect == LOOM_STORE_OLD)
        return LOOM_OK;
    if (status == LOOM_OK)
        status = send_key(client, LOOM_OP_DELETE_KEY, key, "deleting a key");
    if (status == LOOM_OK)
        status = receive(client, &n_deleted, sizeof n_deleted, "deleting a key");
    return status;
}
