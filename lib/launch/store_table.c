/* Keys and values of a store: a hash table with chains. */
#include "launch/store_table.h"

#include "core/random.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BUCKETS = 64 };

static void free_entry(loom_store_entry *entry)
{
    while (entry->first_item) {
        loom_store_item *item = entry->first_item;
        entry->first_item = item->next;
        free(item);
    }
    loom_bytes_free(&entry->value);
    free(entry);
}

void loom_store_table_free(loom_store_table *table)
{
    for (size_t b = 0; b < table->n_buckets; b++) {
        while (table->buckets[b]) {
            loom_store_entry *entry = table->buckets[b];
            table->buckets[b] = entry->next;
            free_entry(entry);
        }
    }
    free(table->buckets);
    *table = (loom_store_table){0};
}

loom_store_entry *loom_store_find(const loom_store_table *table, loom_span key)
{
    if (table->n_buckets == 0)
        return NULL;

    uint64_t hash = loom_fnv1a64(key.data, key.size);
    loom_store_entry *entry = table->buckets[hash % table->n_buckets];
    while (entry && !(entry->hash == hash && loom_span_equal((loom_span){entry->key, entry->key_size}, key)))
        entry = entry->next;
    return entry;
}

/* Twice the buckets, so that chains stay short. */
static bool grow(loom_store_table *table)
{
    size_t n_buckets = table->n_buckets ? 2 * table->n_buckets : FIRST_BUCKETS;
    loom_store_entry **buckets = calloc(n_buckets, sizeof *buckets);

    if (!buckets)
        return false;
    for (size_t b = 0; b < table->n_buckets; b++) {
        for (loom_store_entry *entry = table->buckets[b], *next; entry; entry = next) {
            next = entry->next;
            entry->next = buckets[entry->hash % n_buckets];
            buckets[entry->hash % n_buckets] = entry;
        }
    }
    free(table->buckets);
    table->buckets = buckets;
    table->n_buckets = n_buckets;
    return true;
}

loom_store_entry *loom_store_insert(loom_store_table *table, loom_span key)
{
    loom_store_entry *entry = loom_store_find(table, key);

    if (entry)
        return entry;
    if (table->n_entries >= table->n_buckets && !grow(table))
        return NULL;
    entry = calloc(1, sizeof *entry + key.size);
    if (!entry)
        return NULL;
    entry->hash = loom_fnv1a64(key.data, key.size);
    entry->key_size = key.size;
    if (key.size)
        memcpy(entry->key, key.data, key.size);
    entry->next = table->buckets[entry->hash % table->n_buckets];
    table->buckets[entry->hash % table->n_buckets] = entry;
    table->n_entries++;
    return entry;
}

/* Takes an entry out once nothing is left in it. */
static void remove_if_bare(loom_store_table *table, loom_store_entry *entry)
{
    if (entry->has_value || entry->n_items)
        return;

    loom_store_entry **link = &table->buckets[entry->hash % table->n_buckets];
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    table->n_entries--;
    free_entry(entry);
}

bool loom_store_present(const loom_store_table *table, loom_span key)
{
    const loom_store_entry *entry = loom_store_find(table, key);

    return entry && (entry->has_value || entry->n_items > 0);
}

static void note_value(loom_store_table *table, loom_store_entry *entry)
{
    if (!entry->has_value)
        table->n_values++;
    entry->has_value = true;
}

bool loom_store_put(loom_store_table *table, loom_span key, loom_span value)
{
    loom_bytes copy = {0};
    loom_store_entry *entry = loom_store_insert(table, key);

    if (!entry)
        return false;
    loom_bytes_append(&copy, value.data, value.size);
    if (copy.failed) {
        loom_bytes_free(&copy);
        remove_if_bare(table, entry);
        return false;
    }
    loom_bytes_free(&entry->value);
    entry->value = copy;
    note_value(table, entry);
    return true;
}

bool loom_store_append(loom_store_table *table, loom_span key, loom_span value)
{
    loom_store_entry *entry = loom_store_insert(table, key);

    if (!entry)
        return false;
    if (!loom_bytes_reserve(&entry->value, value.size)) {
        entry->value.failed = false; /* what was there is whole */
        remove_if_bare(table, entry);
        return false;
    }
    loom_bytes_append(&entry->value, value.data, value.size);
    note_value(table, entry);
    return true;
}

bool loom_store_erase(loom_store_table *table, loom_span key)
{
    loom_store_entry *entry = loom_store_find(table, key);

    if (!entry || !entry->has_value)
        return false;
    loom_bytes_free(&entry->value);
    entry->has_value = false;
    table->n_values--;
    remove_if_bare(table, entry);
    return true;
}

/* Leading blanks, a sign, digits; what stands behind them does not matter. */
static bool parse_number(loom_span text, int64_t *number)
{
    char copy[64], *end;
    size_t blanks = 0;

    while (blanks < text.size && isspace(text.data[blanks]))
        blanks++;
    size_t size = text.size - blanks < sizeof copy - 1 ? text.size - blanks : sizeof copy - 1;
    memcpy(copy, text.data + blanks, size);
    copy[size] = '\0';
    errno = 0;
    *number = strtoll(copy, &end, 10);
    return end != copy && errno == 0;
}

bool loom_store_increase(loom_store_table *table, loom_span key, int64_t delta, int64_t *sum)
{
    const loom_store_entry *entry = loom_store_find(table, key);
    int64_t number = 0;
    char text[32];

    if (entry && entry->has_value && (!entry->value.size || !parse_number((loom_span){entry->value.data, entry->value.size}, &number)))
        return false;
    if (__builtin_add_overflow(number, delta, sum))
        return false;
    snprintf(text, sizeof text, "%" PRId64, *sum);
    return loom_store_put(table, key, loom_span_of_text(text));
}

bool loom_store_push(loom_store_table *table, loom_span key, loom_span value)
{
    loom_store_entry *entry = loom_store_insert(table, key);
    loom_store_item *item = malloc(sizeof *item + value.size);

    if (!entry || !item) {
        free(item);
        if (entry)
            remove_if_bare(table, entry);
        return false;
    }
    item->next = NULL;
    item->size = value.size;
    if (value.size)
        memcpy(item->data, value.data, value.size);
    if (entry->last_item)
        entry->last_item->next = item;
    else
        entry->first_item = item;
    entry->last_item = item;
    entry->n_items++;
    return true;
}

loom_store_item *loom_store_pop(loom_store_table *table, loom_span key)
{
    loom_store_entry *entry = loom_store_find(table, key);

    if (!entry || !entry->first_item)
        return NULL;
    loom_store_item *item = entry->first_item;
    entry->first_item = item->next;
    if (!entry->first_item)
        entry->last_item = NULL;
    entry->n_items--;
    remove_if_bare(table, entry);
    return item;
}
