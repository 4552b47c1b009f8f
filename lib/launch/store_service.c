/* What a store answers: one function a request. Each returns false when the connection has to be closed. */
#include "launch/store_service.h"

#include "core/random.h"

#include <stdlib.h>
#include <string.h>

typedef struct awaited_key {
    loom_span key;
    uint64_t hash;
} awaited_key;

struct loom_store_session {
    loom_store_session *next, *previous;
    loom_store_service *service;
    bool validated;
    loom_bytes requests; /* received, not yet complete */
    loom_request_scan scan;
    loom_bytes replies;

    uint64_t wait_number;   /* of the WAIT or BARRIER that was not answered yet */
    loom_bytes wait_keys;   /* the keys' bytes */
    awaited_key *awaited;   /* [n_awaited] into wait_keys: those that did not come so far; none: nothing is pending */
    size_t n_awaited;
};

loom_store_session *loom_store_session_open(loom_store_service *service)
{
    loom_store_session *session = calloc(1, sizeof *session);

    if (!session)
        return NULL;
    session->service = service;
    session->next = service->sessions;
    if (session->next)
        session->next->previous = session;
    service->sessions = session;
    return session;
}

static void forget_wait(loom_store_session *session)
{
    free(session->awaited);
    session->awaited = NULL;
    session->n_awaited = 0;
    loom_bytes_free(&session->wait_keys);
}

void loom_store_session_close(loom_store_session *session)
{
    if (!session)
        return;
    if (session->previous)
        session->previous->next = session->next;
    else
        session->service->sessions = session->next;
    if (session->next)
        session->next->previous = session->previous;
    forget_wait(session);
    loom_bytes_free(&session->requests);
    loom_bytes_free(&session->replies);
    free(session);
}

void loom_store_service_free(loom_store_service *service)
{
    while (service->sessions)
        loom_store_session_close(service->sessions);
    loom_store_table_free(&service->table);
}

loom_bytes *loom_store_session_replies(loom_store_session *session)
{
    return &session->replies;
}

/* --- waiting -------------------------------------------------------------------------------------------------------- */

static void end_wait(loom_store_session *session)
{
    forget_wait(session);
    loom_bytes_append_u8(&session->replies, LOOM_STORE_READY);
}

/* True when `session` waits for `key`; the key is then struck off, and stays so even if it is deleted before the others come. */
static bool strike_off(loom_store_session *session, loom_span key, uint64_t hash)
{
    bool found = false;

    for (size_t i = 0; i < session->n_awaited; i++) {
        if (session->awaited[i].hash != hash || !loom_span_equal(session->awaited[i].key, key))
            continue;
        session->awaited[i--] = session->awaited[--session->n_awaited];
        found = true;
    }
    return found;
}

/* A value appeared: everyone who waits for it may go on. */
static void announce_value(loom_store_service *service, loom_span key)
{
    uint64_t hash = loom_fnv1a64(key.data, key.size);

    for (loom_store_session *s = service->sessions; s; s = s->next)
        if (strike_off(s, key, hash) && s->n_awaited == 0)
            end_wait(s);
}

static bool waits_for(const loom_store_session *session, loom_span key, uint64_t hash)
{
    for (size_t i = 0; i < session->n_awaited; i++)
        if (session->awaited[i].hash == hash && loom_span_equal(session->awaited[i].key, key))
            return true;
    return false;
}

/* An item was queued: it is for one, so the one that waits longest may go on. */
static void announce_item(loom_store_service *service, loom_span key)
{
    uint64_t hash = loom_fnv1a64(key.data, key.size);
    loom_store_session *first = NULL;

    for (loom_store_session *s = service->sessions; s; s = s->next)
        if (waits_for(s, key, hash) && (!first || s->wait_number < first->wait_number))
            first = s;
    if (first && strike_off(first, key, hash) && first->n_awaited == 0)
        end_wait(first);
}

/* --- one function a request ------------------------------------------------------------------------------------------- */

static bool answer_validate(loom_store_session *session, loom_field_reader *fields)
{
    if (session->validated || loom_field_u32(fields) != LOOM_STORE_MAGIC)
        return false;
    session->validated = true;
    return true;
}

static bool answer_ping(loom_store_session *session, loom_field_reader *fields)
{
    loom_bytes_append_u32(&session->replies, loom_field_u32(fields));
    return true;
}

static bool answer_set(loom_store_session *session, loom_field_reader *fields)
{
    loom_span key = loom_field_string(fields), value = loom_field_string(fields);

    if (!loom_store_put(&session->service->table, key, value))
        return false;
    announce_value(session->service, key);
    return true;
}

/* A missing key is taken only when nothing was expected of it; else the expectation is echoed, and nothing is stored. */
static bool answer_compare_set(loom_store_session *session, loom_field_reader *fields)
{
    loom_span key = loom_field_string(fields), expected = loom_field_string(fields), desired = loom_field_string(fields);
    const loom_store_entry *entry = loom_store_find(&session->service->table, key);
    bool exists = entry && entry->has_value;
    loom_span now = exists ? (loom_span){entry->value.data, entry->value.size} : expected;

    if (!loom_span_equal(now, expected) || (!exists && expected.size > 0)) {
        loom_bytes_append_string(&session->replies, now);
        return true;
    }
    if (!loom_store_put(&session->service->table, key, desired))
        return false;
    announce_value(session->service, key);
    loom_bytes_append_string(&session->replies, desired);
    return true;
}

static void append_value(loom_store_session *session, loom_span key)
{
    const loom_store_entry *entry = loom_store_find(&session->service->table, key);

    if (entry && entry->has_value)
        loom_bytes_append_string(&session->replies, (loom_span){entry->value.data, entry->value.size});
    else
        loom_bytes_append_u64(&session->replies, 0);
}

static bool answer_get(loom_store_session *session, loom_field_reader *fields)
{
    append_value(session, loom_field_string(fields));
    return true;
}

static bool answer_multi_get(loom_store_session *session, loom_field_reader *fields)
{
    for (uint64_t n = loom_field_u64(fields); n > 0; n--) {
        append_value(session, loom_field_string(fields));
        if (session->replies.size > LOOM_STORE_REQUEST_BYTES) /* one key asked for a thousand times */
            return false;
    }
    return true;
}

static bool answer_add(loom_store_session *session, loom_field_reader *fields)
{
    loom_span key = loom_field_string(fields);
    int64_t sum;

    if (!loom_store_increase(&session->service->table, key, (int64_t)loom_field_u64(fields), &sum))
        return false;
    announce_value(session->service, key);
    loom_bytes_append_u64(&session->replies, (uint64_t)sum);
    return true;
}

static bool answer_check(loom_store_session *session, loom_field_reader *fields)
{
    bool all = true;

    for (uint64_t n = loom_field_u64(fields); n > 0; n--)
        all &= loom_store_present(&session->service->table, loom_field_string(fields));
    loom_bytes_append_u8(&session->replies, all ? LOOM_STORE_READY : LOOM_STORE_NOT_READY);
    return true;
}

/* Waits for the strings in `keys`; a second WAIT on a connection takes the place of the first, so there is one reply in total. */
static bool begin_wait(loom_store_session *session, loom_bytes *keys, size_t n_keys)
{
    loom_field_reader fields = {keys->data};

    forget_wait(session);
    session->wait_keys = *keys;
    session->awaited = calloc(n_keys, sizeof *session->awaited);
    if (keys->failed || !session->awaited)
        return false;
    for (; session->n_awaited < n_keys; session->n_awaited++) {
        loom_span key = loom_field_string(&fields);
        session->awaited[session->n_awaited] = (awaited_key){key, loom_fnv1a64(key.data, key.size)};
    }
    session->wait_number = session->service->n_waits++;
    return true;
}

static bool answer_wait(loom_store_session *session, loom_field_reader *fields)
{
    loom_bytes missing = {0};
    size_t n_missing = 0;

    for (uint64_t n = loom_field_u64(fields); n > 0; n--) {
        loom_span key = loom_field_string(fields);
        if (!loom_store_present(&session->service->table, key)) {
            loom_bytes_append_string(&missing, key);
            n_missing++;
        }
    }
    if (n_missing > 0)
        return begin_wait(session, &missing, n_missing);
    forget_wait(session);
    loom_bytes_append_u8(&session->replies, LOOM_STORE_READY);
    return true;
}

static bool answer_cancel_wait(loom_store_session *session, loom_field_reader *fields)
{
    forget_wait(session);
    loom_bytes_append_u8(&session->replies, LOOM_STORE_WAIT_CANCELED);
    return true;
}

static bool answer_get_num_keys(loom_store_session *session, loom_field_reader *fields)
{
    loom_bytes_append_u64(&session->replies, (uint64_t)session->service->table.n_values);
    return true;
}

static bool answer_delete_key(loom_store_session *session, loom_field_reader *fields)
{
    loom_bytes_append_u64(&session->replies, loom_store_erase(&session->service->table, loom_field_string(fields)) ? 1 : 0);
    return true;
}

static bool answer_append(loom_store_session *session, loom_field_reader *fields)
{
    loom_span key = loom_field_string(fields), value = loom_field_string(fields);

    if (!loom_store_append(&session->service->table, key, value))
        return false;
    announce_value(session->service, key);
    return true;
}

static bool answer_multi_set(loom_store_session *session, loom_field_reader *fields)
{
    for (uint64_t n = loom_field_u64(fields); n > 0; n--)
        if (!answer_set(session, fields))
            return false;
    return true;
}

static bool answer_list_keys(loom_store_session *session, loom_field_reader *fields)
{
    const loom_store_table *table = &session->service->table;

    loom_bytes_append_u64(&session->replies, (uint64_t)table->n_values);
    for (size_t b = 0; b < table->n_buckets; b++)
        for (const loom_store_entry *entry = table->buckets[b]; entry; entry = entry->next)
            if (entry->has_value)
                loom_bytes_append_string(&session->replies, (loom_span){entry->key, entry->key_size});
    return true;
}

static bool answer_queue_push(loom_store_session *session, loom_field_reader *fields)
{
    loom_span key = loom_field_string(fields), value = loom_field_string(fields);

    if (!loom_store_push(&session->service->table, key, value))
        return false;
    announce_item(session->service, key);
    return true;
}

static uint64_t queue_length(const loom_store_session *session, loom_span key)
{
    const loom_store_entry *entry = loom_store_find(&session->service->table, key);

    return entry ? (uint64_t)entry->n_items : 0;
}

/* How many there were, and the first of them. */
static bool answer_queue_pop(loom_store_session *session, loom_field_reader *fields)
{
    loom_span key = loom_field_string(fields);

    loom_bytes_append_u64(&session->replies, queue_length(session, key));
    loom_store_item *item = loom_store_pop(&session->service->table, key);
    if (item)
        loom_bytes_append_string(&session->replies, (loom_span){item->data, item->size});
    free(item);
    return true;
}

static bool answer_queue_len(loom_store_session *session, loom_field_reader *fields)
{
    loom_bytes_append_u64(&session->replies, queue_length(session, loom_field_string(fields)));
    return true;
}

/* The key counts who arrived, as ADD would, and is good once: who comes after it opened passes. Who left after arriving stays counted. */
static bool answer_barrier(loom_store_session *session, loom_field_reader *fields)
{
    loom_span key = loom_field_string(fields);
    int64_t world = (int64_t)loom_field_u64(fields), n_arrived;
    loom_bytes awaited = {0};

    if (!loom_store_increase(&session->service->table, key, 1, &n_arrived))
        return false;
    if (n_arrived < world) {
        loom_bytes_append_string(&awaited, key);
        return begin_wait(session, &awaited, 1);
    }
    announce_value(session->service, key);
    loom_bytes_append_u8(&session->replies, LOOM_STORE_READY);
    return true;
}

typedef bool answer_fn(loom_store_session *session, loom_field_reader *fields);

static answer_fn *const answers[] = {
    [LOOM_OP_VALIDATE] = answer_validate,
    [LOOM_OP_SET] = answer_set,
    [LOOM_OP_COMPARE_SET] = answer_compare_set,
    [LOOM_OP_GET] = answer_get,
    [LOOM_OP_ADD] = answer_add,
    [LOOM_OP_CHECK] = answer_check,
    [LOOM_OP_WAIT] = answer_wait,
    [LOOM_OP_GET_NUM_KEYS] = answer_get_num_keys,
    [LOOM_OP_DELETE_KEY] = answer_delete_key,
    [LOOM_OP_APPEND] = answer_append,
    [LOOM_OP_MULTI_GET] = answer_multi_get,
    [LOOM_OP_MULTI_SET] = answer_multi_set,
    [LOOM_OP_CANCEL_WAIT] = answer_cancel_wait,
    [LOOM_OP_PING] = answer_ping,
    [LOOM_OP_QUEUE_PUSH] = answer_queue_push,
    [LOOM_OP_QUEUE_POP] = answer_queue_pop,
    [LOOM_OP_QUEUE_LEN] = answer_queue_len,
    [LOOM_OP_LIST_KEYS] = answer_list_keys,
    [LOOM_OP_BARRIER] = answer_barrier,
};

static bool answer(loom_store_session *session, const uint8_t *request)
{
    loom_field_reader fields = {request + 1};

    if (!session->validated && request[0] != LOOM_OP_VALIDATE)
        return false;
    return answers[request[0]](session, &fields) && !session->replies.failed;
}

bool loom_store_session_feed(loom_store_session *session, const uint8_t *data, size_t size)
{
    size_t done = 0;
    bool good = true;

    loom_bytes_append(&session->requests, data, size);
    if (session->requests.failed)
        return false;
    while (good) {
        const uint8_t *request = session->requests.data + done;
        loom_scan_result result = loom_request_scan_bytes(&session->scan, request, session->requests.size - done);
        if (result == LOOM_SCAN_MORE)
            break;
        good = result == LOOM_SCAN_COMPLETE && answer(session, request);
        done += session->scan.offset;
        session->scan = (loom_request_scan){0};
    }
    if (good)
        loom_bytes_drop_front(&session->requests, done);
    return good;
}
