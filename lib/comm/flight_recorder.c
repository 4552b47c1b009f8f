/* Records are written by three stores of a few words; reading them back is the slow side. */
#include "comm/flight_recorder.h"

#include <stdio.h>
#include <string.h>

#include "comm/transport.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/settings.h"

enum { WHAT, SEQUENCE, COUNT, PEER, TAG, ENQUEUED, BEGUN, ENDED, STATUS, NAME, NAME_WORDS = 4 };
_Static_assert(NAME + NAME_WORDS == LOOM_RECORD_WORDS && 8 * NAME_WORDS == LOOM_COMM_NAME_BYTES, "a record holds all its fields");

enum { REPLAY = 0xff }; /* in place of a call's kind */

typedef _Atomic uint64_t *record;

static record find(loom_recorder *recorder, uint64_t index)
{
    return recorder->words[index % LOOM_RECORDS];
}

static void put(record r, int field, uint64_t value)
{
    atomic_store_explicit(&r[field], value, memory_order_relaxed);
}

static uint64_t get(const loom_recorder *recorder, uint64_t index, int field)
{
    return atomic_load_explicit(&recorder->words[index % LOOM_RECORDS][field], memory_order_relaxed);
}

uint64_t loom_recorder_enqueued(loom_recorder *recorder, loom_call *call)
{
    uint64_t now = loom_now_ns(), name[NAME_WORDS];
    record r;

    call->record = atomic_load_explicit(&recorder->count, memory_order_relaxed);
    r = find(recorder, call->record);
    put(r, WHAT, (uint64_t)call->kind | (uint64_t)call->dtype << 8 | (uint64_t)call->op << 16);
    put(r, SEQUENCE, call->sequence);
    put(r, COUNT, call->count);
    put(r, PEER, (uint64_t)(int64_t)call->peer);
    put(r, TAG, call->tag);
    put(r, ENQUEUED, now);
    put(r, BEGUN, 0);
    put(r, ENDED, 0);
    put(r, STATUS, 0);
    if (call->kind == LOOM_CALL_BARRIER) {
        memcpy(name, call->name, sizeof name);
        for (int i = 0; i < NAME_WORDS; i++)
            put(r, NAME + i, name[i]);
    }
    atomic_store_explicit(&recorder->count, call->record + 1, memory_order_relaxed);
    return now;
}

void loom_recorder_begun(loom_recorder *recorder, const loom_call *call, uint64_t now)
{
    put(find(recorder, call->record), BEGUN, now);
}

uint64_t loom_recorder_ended(loom_recorder *recorder, const loom_call *call)
{
    record r = find(recorder, call->record);
    uint64_t now = loom_now_ns();

    if (atomic_load_explicit(&recorder->count, memory_order_relaxed) - call->record > LOOM_RECORDS)
        return now; /* so long under way that its place went to another */
    put(r, STATUS, (uint64_t)(int64_t)call->task.status);
    put(r, ENDED, now);
    return now;
}

void loom_recorder_replayed(loom_recorder *recorder, uint64_t sequence, uint64_t calls)
{
    uint64_t now = loom_now_ns(), index = atomic_load_explicit(&recorder->count, memory_order_relaxed);
    record r = find(recorder, index);

    put(r, WHAT, REPLAY);
    put(r, SEQUENCE, sequence);
    put(r, COUNT, calls);
    put(r, ENQUEUED, now);
    put(r, BEGUN, now);
    put(r, ENDED, 0);
    put(r, STATUS, 0);
    atomic_store_explicit(&recorder->count, index + 1, memory_order_relaxed);
}

static const char *state_of(const loom_recorder *recorder, uint64_t i)
{
    if (get(recorder, i, ENDED))
        return "ended";
    return get(recorder, i, BEGUN) ? "under way" : "queued";
}

static void add_time(loom_text *text, const char *key, uint64_t ns)
{
    if (ns)
        loom_text_add(text, ",\"%s\":%.3f", key, (double)ns * 1e-3);
}

static void print_what(const loom_recorder *recorder, uint64_t i, loom_text *text)
{
    uint64_t what = get(recorder, i, WHAT), name[NAME_WORDS];
    loom_call_kind kind = (loom_call_kind)(what & 0xff);

    if (kind != LOOM_CALL_BARRIER)
        loom_text_add(text, ",\"count\":%llu,\"dtype\":\"%s\"", (unsigned long long)get(recorder, i, COUNT),
                      loom_dtype_name((loom_dtype)(what >> 8 & 0xff)));
    if (kind == LOOM_CALL_ALL_REDUCE || kind == LOOM_CALL_REDUCE_SCATTER)
        loom_text_add(text, ",\"op\":\"%s\"", loom_reduce_op_name((loom_reduce_op)(what >> 16 & 0xff)));
    if (kind == LOOM_CALL_BROADCAST)
        loom_text_add(text, ",\"root\":%lld", (long long)get(recorder, i, PEER));
    if (loom_call_is_p2p(kind))
        loom_text_add(text, ",\"peer\":%lld,\"tag\":%llu", (long long)get(recorder, i, PEER), (unsigned long long)get(recorder, i, TAG));
    if (kind == LOOM_CALL_BARRIER) {
        for (int w = 0; w < NAME_WORDS; w++)
            name[w] = get(recorder, i, NAME + w);
        loom_text_add(text, ",\"name\":");
        loom_text_add_json(text, (const char *)name);
    }
}

static void print_record(const loom_comm *comm, uint64_t i, loom_text *text)
{
    const loom_recorder *recorder = &comm->recorder;
    uint64_t kind = get(recorder, i, WHAT) & 0xff;

    loom_text_add(text, "{\"comm\":");
    loom_text_add_json(text, comm->name);
    loom_text_add(text, ",\"rank\":%d,\"size\":%d,\"call\":\"%s\",\"sequence\":%llu,\"state\":\"%s\"", comm->rank, comm->size,
                  kind == REPLAY ? "graph" : loom_call_kind_name((loom_call_kind)kind), (unsigned long long)get(recorder, i, SEQUENCE),
                  state_of(recorder, i));
    if (kind == REPLAY)
        loom_text_add(text, ",\"calls\":%llu", (unsigned long long)get(recorder, i, COUNT));
    else
        print_what(recorder, i, text);
    add_time(text, "enqueued_us", get(recorder, i, ENQUEUED));
    add_time(text, "begun_us", get(recorder, i, BEGUN));
    add_time(text, "ended_us", get(recorder, i, ENDED));
    if ((int64_t)get(recorder, i, STATUS) < 0)
        loom_text_add(text, ",\"status\":\"%s\"", loom_status_name((loom_status)(int64_t)get(recorder, i, STATUS)));
    loom_text_add(text, "}\n");
}

void loom_recorder_print(const loom_comm *comm, loom_text *text)
{
    uint64_t count = atomic_load_explicit(&comm->recorder.count, memory_order_relaxed);

    for (uint64_t i = count > LOOM_RECORDS ? count - LOOM_RECORDS : 0; i < count; i++)
        print_record(comm, i, text);
}

static loom_status print_world(loom_world *world, char **out)
{
    loom_text text = {0};

    pthread_mutex_lock(&world->lock);
    for (const loom_comm *comm = world->comms; comm; comm = comm->next)
        loom_recorder_print(comm, &text);
    pthread_mutex_unlock(&world->lock);
    return loom_text_take(&text, out);
}

loom_status loom_comm_dump(const loom_comm *comm, const char *path)
{
    char *out;
    loom_status status = print_world(comm->world, &out);

    if (status < 0)
        return status;
    status = loom_file_replace(path, out, strlen(out));
    loom_text_free(out);
    return status;
}

/* RANKLOOM_FLIGHT_RECORDER with "%r" replaced by the rank. */
static void expand(const char *path, int rank, char *out, size_t bytes)
{
    const char *mark = strstr(path, "%r");

    if (mark)
        snprintf(out, bytes, "%.*s%d%s", (int)(mark - path), path, rank, mark + 2);
    else
        snprintf(out, bytes, "%s", path);
}

void loom_world_dump_once(loom_world *world)
{
    const char *pattern = NULL;
    char path[4096], *out, kept[1024];

    if (atomic_exchange(&world->dumped, 1))
        return;
    snprintf(kept, sizeof kept, "%s", loom_last_error()); /* what brought us here is the news, not a trouble with the dump */
    if (print_world(world, &out) < 0)
        return;
    loom_setting_text(LOOM_SETTING_FLIGHT_RECORDER, &pattern);
    if (!pattern) {
        fputs(out, stderr);
    } else {
        expand(pattern, world->rank, path, sizeof path);
        if (loom_file_replace(path, out, strlen(out)) < 0)
            loom_log(LOOM_LOG_WARNING, world->rank, "the flight recorder was not written: %s", loom_last_error());
    }
    loom_text_free(out);
    loom_fail(LOOM_E_PEER, "%s", kept);
}
