#include "harness/table.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "core/clock.h"

enum { ENTRIES = 4096, ARENA_BYTES = 16 << 20 };

typedef struct entry {
    char key[96];
    size_t offset, bytes;
    int64_t number;
} entry;

struct table {
    pthread_mutex_t lock;
    int count;
    size_t used;
    entry entries[ENTRIES];
    char arena[ARENA_BYTES];
};

table *table_open(void)
{
    table *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_mutexattr_t attributes;

    if (t == MAP_FAILED)
        return NULL;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&t->lock, &attributes);
    return t;
}

void table_close(table *t)
{
    munmap(t, sizeof *t);
}

static void lock(table *t)
{
    if (pthread_mutex_lock(&t->lock) != 0) /* its holder was killed */
        pthread_mutex_consistent(&t->lock);
}

static entry *find(table *t, const char *key)
{
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->entries[i].key, key) == 0)
            return &t->entries[i];
    return NULL;
}

static entry *find_or_make(table *t, const char *key)
{
    entry *e = find(t, key);

    if (!e && t->count < ENTRIES && strlen(key) < sizeof e->key) {
        e = &t->entries[t->count++];
        *e = (entry){0}; /* one that was removed lay here */
        strcpy(e->key, key);
    }
    return e;
}

static loom_status set(void *context, const char *key, const void *value, size_t bytes)
{
    table *t = context;
    entry *e;

    lock(t);
    e = find_or_make(t, key);
    if (e && t->used + bytes <= ARENA_BYTES) {
        e->offset = t->used;
        e->bytes = bytes;
        memcpy(t->arena + e->offset, value, bytes);
        t->used += bytes;
    } else {
        e = NULL;
    }
    pthread_mutex_unlock(&t->lock);
    return e ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "the test table is full");
}

static loom_status get(void *context, const char *key, void *value, size_t capacity, size_t *bytes, double deadline_s)
{
    table *t = context;
    double end_s = loom_now_s() + deadline_s;

    for (;;) {
        struct timespec pause = {0, 200000};
        entry *e;
        lock(t);
        e = find(t, key);
        if (e) {
            *bytes = e->bytes;
            memcpy(value, t->arena + e->offset, e->bytes < capacity ? e->bytes : capacity);
        }
        pthread_mutex_unlock(&t->lock);
        if (e)
            return LOOM_OK;
        if (loom_now_s() > end_s)
            return loom_fail(LOOM_E_PEER, "key %s did not come", key);
        nanosleep(&pause, NULL);
    }
}

static loom_status add(void *context, const char *key, int64_t delta, int64_t *result)
{
    table *t = context;
    entry *e;

    lock(t);
    e = find_or_make(t, key);
    if (e)
        *result = e->number += delta;
    pthread_mutex_unlock(&t->lock);
    return e ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "the test table is full");
}

static loom_status erase(void *context, const char *key)
{
    table *t = context;
    entry *e;

    lock(t);
    e = find(t, key);
    if (e)
        *e = t->entries[--t->count];
    pthread_mutex_unlock(&t->lock);
    return LOOM_OK;
}

loom_bootstrap table_bootstrap(table *t, int rank, int size)
{
    return (loom_bootstrap){.context = t, .rank = rank, .size = size, .set = set, .get = get, .add = add, .remove = erase};
}
