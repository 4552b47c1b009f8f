/* Keys and values of a store, in memory: what the server serves, and all there is in a world of one. One thread at a time. */
#ifndef LAUNCH_STORE_TABLE_H
#define LAUNCH_STORE_TABLE_H

#include "launch/bytes.h"

typedef struct loom_store_item { /* one element of a queue */
    struct loom_store_item *next;
    size_t size;
    uint8_t data[];
} loom_store_item;

/* A key has a value, a queue of items, or both: they do not see one another. */
typedef struct loom_store_entry {
    struct loom_store_entry *next; /* of the same bucket */
    uint64_t hash;
    bool has_value;
    loom_bytes value;
    loom_store_item *first_item, *last_item;
    int64_t n_items;
    size_t key_size;
    uint8_t key[];
} loom_store_entry;

typedef struct loom_store_table {
    loom_store_entry **buckets;
    size_t n_buckets, n_entries;
    int64_t n_values; /* entries with a value: the keys that count */
} loom_store_table;

void loom_store_table_free(loom_store_table *table);

loom_store_entry *loom_store_find(const loom_store_table *table, loom_span key);
loom_store_entry *loom_store_insert(loom_store_table *table, loom_span key); /* finds or makes; NULL: no memory */
bool loom_store_present(const loom_store_table *table, loom_span key);       /* a value or a queued item */

/* False: no memory, and the old value stays. */
bool loom_store_put(loom_store_table *table, loom_span key, loom_span value);
bool loom_store_append(loom_store_table *table, loom_span key, loom_span value);
bool loom_store_erase(loom_store_table *table, loom_span key); /* true: there was a value */

/* The value as decimal text (missing: 0) plus delta, stored again as text. False when the value does not begin with a number or the sum
 * leaves 64 bits. As in C++, blanks in front and anything behind the digits are passed over. */
bool loom_store_increase(loom_store_table *table, loom_span key, int64_t delta, int64_t *sum);

bool loom_store_push(loom_store_table *table, loom_span key, loom_span value);
loom_store_item *loom_store_pop(loom_store_table *table, loom_span key); /* yours to free(); NULL: empty */

#endif
