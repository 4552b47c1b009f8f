/* The store of a job: connection and generation, keys relative to it, barriers. A world of one keeps its keys in a table of its own. */
#include <rankloom/launch.h>

#include "core/clock.h"
#include "core/settings.h"
#include "core/try.h"
#include "launch/generation.h"
#include "launch/port_file.h"
#include "launch/store_client.h"
#include "launch/store_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BIND_AGAIN_S 0.3 /* a predecessor that is about to end may still hold the port */
#define GOODBYE_S 10.0
#define WATCH_S 1.0 /* between looks at whether the generation is over */

enum { BASE_BYTES = 160, PREFIX_BYTES = 256, MOST_NAMED = 16 };

struct loom_store {
    int rank, size;
    char base[BASE_BYTES];     /* "/loom/RUN_ID/": PyTorch shows keys without the first slash */
    char prefix[PREFIX_BYTES]; /* base, "g/GENERATION/" */
    loom_generation generation;
    loom_store_client *client; /* NULL in a world of one */
    loom_store_server *server; /* on a rank that serves */
    loom_store_table table;    /* of a world of one */
    uint64_t n_barriers;       /* so far; all ranks count alike */
    char last_barrier[128];    /* its name */
};

/* --- opening ------------------------------------------------------------------------------------------------------------- */

/* Rank 0 can serve MASTER_ADDR only where that address is. Refused here, or the others would wait for nothing. */
static loom_status check_address(const loom_launch *launch)
{
    loom_addresses addresses;
    loom_status status = loom_resolve(launch->master_addr, launch->master_port, &addresses);

    if (status != LOOM_OK)
        return status;
    for (int i = 0; i < addresses.count; i++)
        if (loom_address_is_of_this_host(&addresses.at[i]))
            return LOOM_OK;

    char host[256] = "?", address[LOOM_ADDRESS_TEXT] = "nothing";
    gethostname(host, sizeof host - 1);
    if (addresses.count)
        loom_address_text(&addresses.at[0], address);
    return loom_fail(LOOM_E_INVALID,
                     "MASTER_ADDR is not an address of this host: %s is %s, and rank 0, which has to serve the store there, runs on %s; set "
                     "MASTER_ADDR to this host, or start rank 0 on that one",
                     launch->master_addr, address, host);
}

static loom_status serve(loom_store *store, const loom_launch *launch, int *port)
{
    double give_up = loom_now_s() + BIND_AGAIN_S;
    int listeners[LOOM_STORE_LISTENERS], n_listeners;
    loom_status status = check_address(launch);

    if (status != LOOM_OK)
        return status;
    while ((status = loom_listen(launch->master_addr, launch->master_port, listeners, &n_listeners, port)) == LOOM_E_PEER &&
           loom_now_s() < give_up)
        loom_sleep_s(0.05);
    return status == LOOM_OK ? loom_store_server_open(listeners, n_listeners, &store->server) : status;
}

/* Somebody else serves the port. If it is another job's store, our ranks are waiting in it. The reason stays in loom_last_error(). */
static void warn_others(const loom_store_target *target, const char *base, int size)
{
    loom_store_client *client;
    char why[512];

    snprintf(why, sizeof why, "%s", loom_last_error());
    if (loom_store_client_open(target, loom_now_s() + BIND_AGAIN_S, &client) == LOOM_OK) {
        loom_generation_refuse(client, base, size, why);
        loom_store_client_close(client);
    }
    loom_fail(LOOM_E_PEER, "%s", why);
}

/* Serves the store if that is up to us, and finds out its port if MASTER_PORT is 0. `port_file` is "" unless one was written. */
static loom_status find_store(loom_store *store, const loom_launch *launch, double deadline, loom_store_target *target,
                              char port_file[LOOM_PORT_FILE_BYTES])
{
    loom_status status = LOOM_OK;

    if (launch->rank == 0 && !launch->agent_store) {
        status = serve(store, launch, &target->port);
        if (status == LOOM_E_PEER)
            warn_others(target, store->base, launch->size);
        else if (status == LOOM_OK && launch->master_port == 0)
            status = loom_port_file_write(launch, target->port, port_file);
    } else if (launch->master_port == 0) {
        status = loom_port_file_wait(launch, deadline, &target->port);
    }
    return status;
}

static loom_status join(loom_store *store, const loom_launch *launch, double deadline)
{
    loom_store_target target = {.host = launch->master_addr, .port = launch->master_port, .agent = launch->agent_store};
    char port_file[LOOM_PORT_FILE_BYTES] = "";
    loom_status status;

    snprintf(store->base, sizeof store->base, "/loom/%s/", launch->run_id);
    LOOM_TRY(loom_setting_bool(LOOM_SETTING_STORE_PROBE_OLD, &target.probe_old));
    LOOM_TRY(find_store(store, launch, deadline, &target, port_file));
    LOOM_TRY(loom_store_client_open(&target, deadline, &store->client));
    LOOM_TRY(loom_generation_agree(store->client, store->base, store->rank, store->size, deadline, &store->generation));
    snprintf(store->prefix, sizeof store->prefix, "%sg/%s/", store->base, store->generation.name);

fail:
    if (port_file[0])
        unlink(port_file); /* all that could come have come */
    return status;
}

/* Everything of a store that never came to its generation. */
static void abandon(loom_store *store)
{
    loom_store_client_close(store->client);
    loom_store_server_close(store->server);
    loom_store_table_free(&store->table);
    free(store);
}

loom_status loom_store_open(const loom_launch *launch, double deadline_s, loom_store **store)
{
    loom_status status = LOOM_OK;
    loom_store *s = calloc(1, sizeof *s);

    if (!s)
        return loom_fail(LOOM_E_MEMORY, "no memory for the store");
    s->rank = launch->rank;
    s->size = launch->size;
    if (s->size > 1)
        status = join(s, launch, loom_now_s() + deadline_s);
    if (status != LOOM_OK) {
        abandon(s);
        return status;
    }
    *store = s;
    return LOOM_OK;
}

/* --- closing ------------------------------------------------------------------------------------------------------------- */

/* Serves on until every rank said goodbye or is gone, so that no rank finds the store closed while it still reads. */
static void wait_for_goodbyes(loom_store *store)
{
    double give_up = loom_now_s() + GOODBYE_S;
    int64_t n_goodbyes = 0;

    while (loom_store_server_connections(store->server) > 1 && loom_now_s() < give_up) {
        if (loom_store_add(store, "goodbye", 0, &n_goodbyes) != LOOM_OK || n_goodbyes == store->size)
            break;
        loom_sleep_s(0.001);
    }
}

void loom_store_close(loom_store *store)
{
    int64_t n_goodbyes;

    if (!store)
        return;
    if (store->client && !loom_store_client_lost(store->client) && loom_store_add(store, "goodbye", 1, &n_goodbyes) == LOOM_OK &&
        store->server)
        wait_for_goodbyes(store);
    abandon(store);
}

/* --- keys ---------------------------------------------------------------------------------------------------------------- */

/* The key with the generation in front. */
static loom_status full_key(const loom_store *store, const char *key, loom_bytes *full)
{
    loom_bytes_append(full, store->prefix, strlen(store->prefix));
    loom_bytes_append(full, key, strlen(key));
    if (!full->failed)
        return LOOM_OK;
    loom_bytes_free(full);
    return loom_fail(LOOM_E_MEMORY, "store: no memory for the key %.64s", key);
}

static loom_span span_of(const loom_bytes *bytes)
{
    return (loom_span){bytes->data, bytes->size};
}

loom_status loom_store_set(loom_store *store, const char *key, const void *value, size_t bytes)
{
    loom_bytes full = {0};
    loom_status status = full_key(store, key, &full);

    if (status != LOOM_OK)
        return status;
    if (store->client)
        status = loom_store_client_set(store->client, span_of(&full), (loom_span){value, bytes});
    else if (!loom_store_put(&store->table, span_of(&full), (loom_span){value, bytes}))
        status = loom_fail(LOOM_E_MEMORY, "store: no memory for %zu bytes under %s", bytes, key);
    loom_bytes_free(&full);
    return status;
}

/* In a world of one nobody else can set a key: to wait for one that is not there would be in vain. */
static loom_status get_own(loom_store *store, loom_span key, void *value, size_t capacity, size_t *bytes)
{
    const loom_store_entry *entry = loom_store_find(&store->table, key);

    if (!entry || !entry->has_value)
        return LOOM_PENDING;
    *bytes = entry->value.size;
    if (entry->value.size && capacity)
        memcpy(value, entry->value.data, entry->value.size < capacity ? entry->value.size : capacity);
    return LOOM_OK;
}

/* Waits in slices: whoever shall set the key may be dead, and started anew without a word to us. LOOM_PENDING at the deadline. */
static loom_status wait_watching(loom_store *store, loom_span key, double deadline_s)
{
    double deadline = loom_now_s() + deadline_s;
    loom_status status = LOOM_OK;

    while (status == LOOM_OK) {
        double slice = loom_now_s() + WATCH_S;
        status = loom_store_client_wait(store->client, &key, 1, slice < deadline ? slice : deadline);
        if (status != LOOM_PENDING || loom_now_s() >= deadline)
            return status;
        status = loom_generation_check(store->client, store->base, &store->generation);
    }
    return status;
}

/* LOOM_PENDING when nobody set the key before the deadline. */
static loom_status wait_and_get(loom_store *store, const char *key, void *value, size_t capacity, size_t *bytes, double deadline_s)
{
    loom_bytes full = {0};
    loom_status status = full_key(store, key, &full);

    if (status != LOOM_OK)
        return status;
    loom_span span = span_of(&full);
    if (!store->client)
        status = get_own(store, span, value, capacity, bytes);
    else if ((status = wait_watching(store, span, deadline_s)) == LOOM_OK)
        status = loom_store_client_get(store->client, span, value, capacity, bytes);
    loom_bytes_free(&full);
    return status;
}

loom_status loom_store_get(loom_store *store, const char *key, void *value, size_t capacity, size_t *bytes, double deadline_s)
{
    loom_status status = wait_and_get(store, key, value, capacity, bytes, deadline_s);

    if (status == LOOM_PENDING)
        return loom_fail(LOOM_E_PEER, "store: rank %d of %d waited %.1f s for the key \"%s\", and nobody set it", store->rank, store->size,
                         store->client ? deadline_s : 0.0, key);
    return status;
}

loom_status loom_store_add(loom_store *store, const char *key, int64_t delta, int64_t *result)
{
    loom_bytes full = {0};
    loom_status status = full_key(store, key, &full);

    if (status != LOOM_OK)
        return status;
    if (store->client)
        status = loom_store_client_add(store->client, span_of(&full), delta, result);
    else if (!loom_store_increase(&store->table, span_of(&full), delta, result))
        status = loom_fail(LOOM_E_INVALID, "store: %s does not hold a number to which %lld can be added", key, (long long)delta);
    loom_bytes_free(&full);
    return status;
}

loom_status loom_store_check(loom_store *store, const char *key, bool *present)
{
    loom_bytes full = {0};
    loom_status status = full_key(store, key, &full);

    if (status != LOOM_OK)
        return status;
    loom_span span = span_of(&full);
    if (store->client)
        status = loom_store_client_check(store->client, &span, 1, present);
    else
        *present = loom_store_present(&store->table, span);
    loom_bytes_free(&full);
    return status;
}

loom_status loom_store_delete(loom_store *store, const char *key)
{
    loom_bytes full = {0};
    loom_status status = full_key(store, key, &full);

    if (status != LOOM_OK)
        return status;
    if (store->client)
        status = loom_store_client_delete(store->client, span_of(&full));
    else
        loom_store_erase(&store->table, span_of(&full));
    loom_bytes_free(&full);
    return status;
}

int loom_store_rank(const loom_store *store)
{
    return store->rank;
}

int loom_store_size(const loom_store *store)
{
    return store->size;
}

/* --- barrier ------------------------------------------------------------------------------------------------------------- */

/* Barriers are numbered, since all ranks call them in the same order; the keys of one are
 *   barrier/N/R         the name that rank R gave it: set on arrival, so that who is missing can be told
 *   barrier/N/NAME/n    how many arrived
 *   barrier/N/NAME/go   all did */
enum { BARRIER_KEY = 320 };

static loom_status describe_missing(loom_store *store, const char *name, double deadline_s)
{
    char key[BARRIER_KEY], there[128], who[1024] = "";
    int n_missing = 0;

    for (int rank = 0; rank < store->size; rank++) {
        bool present = false;
        size_t bytes = 0, used = strlen(who);
        snprintf(key, sizeof key, "barrier/%llu/%d", (unsigned long long)store->n_barriers, rank);
        loom_status status = loom_store_check(store, key, &present);
        if (status == LOOM_OK && present)
            status = loom_store_get(store, key, there, sizeof there - 1, &bytes, deadline_s);
        if (status != LOOM_OK)
            return status;
        there[bytes < sizeof there - 1 ? bytes : sizeof there - 1] = '\0';
        if ((present && strcmp(there, name) == 0) || n_missing++ >= MOST_NAMED)
            continue;
        snprintf(who + used, sizeof who - used, present ? "%srank %d (it is at barrier \"%s\")" : "%srank %d", used ? ", " : "", rank, there);
    }
    return loom_fail(LOOM_E_PEER, "barrier \"%s\": after %.1f s %d of %d ranks are missing: %s%s", name, deadline_s, n_missing, store->size, who,
                     n_missing > MOST_NAMED ? ", …" : "");
}

/* All ranks are in barrier N, so all have left barrier N - 1: each takes its own key of it away, rank 0 the common ones. */
static loom_status sweep_previous(loom_store *store)
{
    unsigned long long previous = store->n_barriers - 1;
    char key[BARRIER_KEY];
    loom_status status;

    snprintf(key, sizeof key, "barrier/%llu/%d", previous, store->rank);
    status = loom_store_delete(store, key);
    if (status != LOOM_OK || store->rank != 0)
        return status;
    snprintf(key, sizeof key, "barrier/%llu/%s/n", previous, store->last_barrier);
    LOOM_TRY(loom_store_delete(store, key));
    snprintf(key, sizeof key, "barrier/%llu/%s/go", previous, store->last_barrier);
    LOOM_TRY(loom_store_delete(store, key));
fail:
    return status;
}

/* The last to arrive sets go; LOOM_PENDING when it was not set before the deadline. */
static loom_status arrive(loom_store *store, const char *name, double deadline_s)
{
    unsigned long long number = store->n_barriers;
    char key[BARRIER_KEY];
    uint8_t go;
    size_t bytes;
    int64_t n_arrived;
    loom_status status;

    snprintf(key, sizeof key, "barrier/%llu/%d", number, store->rank);
    LOOM_TRY(loom_store_set(store, key, name, strlen(name)));
    snprintf(key, sizeof key, "barrier/%llu/%s/n", number, name);
    LOOM_TRY(loom_store_add(store, key, 1, &n_arrived));
    snprintf(key, sizeof key, "barrier/%llu/%s/go", number, name);
    if (n_arrived == store->size)
        LOOM_TRY(loom_store_set(store, key, "1", 1));
    status = wait_and_get(store, key, &go, sizeof go, &bytes, deadline_s);
fail:
    return status;
}

loom_status loom_store_barrier(loom_store *store, const char *name, double deadline_s)
{
    loom_status status;

    if (strlen(name) >= sizeof store->last_barrier)
        return loom_fail(LOOM_E_INVALID, "barrier: a name of %zu characters; at most %zu are possible", strlen(name),
                         sizeof store->last_barrier - 1);
    status = arrive(store, name, deadline_s);
    if (status == LOOM_PENDING)
        return describe_missing(store, name, deadline_s);
    if (status == LOOM_OK && store->n_barriers > 0)
        status = sweep_previous(store);
    if (status != LOOM_OK)
        return status;
    strcpy(store->last_barrier, name);
    store->n_barriers++;
    return LOOM_OK;
}
