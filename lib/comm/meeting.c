/* Tickets, and what is exchanged through the table. Its keys:
 *   comm/came/R      how often rank R has come and gone
 *   comm/used/R      its ticket in the last meeting that took place; rank 0 writes it
 *   comm/meetings    how many took place
 *   comm/card/R/T    what rank R brings with ticket T
 *   comm/seat/R/T    the meeting that this ticket leads to
 *   comm/N/cards     what all bring to meeting N;  comm/N/told/R, comm/N/told: of a further exchange */
#include "comm/meeting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/text.h"
#include "core/try.h"

enum { KEY_BYTES = 96, MOST_NAMED = 16 };

/* Between two looks at who is still here. Longer than the store's own, which are at whether the attempt is over. */
static const double SLICE_S = 2.5;

typedef struct seat {
    int64_t number, host; /* of the meeting; rank 0's ticket */
} seat;

static loom_status read_count(const loom_meeting *m, const char *name, int rank, int64_t delta, int64_t *count)
{
    char key[KEY_BYTES];

    snprintf(key, sizeof key, "comm/%s/%d", name, rank);
    return m->table->add(m->table->context, key, delta, count);
}

static void remove_key(const loom_meeting *m, const char *key)
{
    m->table->remove(m->table->context, key); /* one that stays harms nobody */
}

/* LOOM_PENDING: it was not there after a slice, or at the deadline. A table that cannot tell any more says so at once. */
static loom_status wait_a_slice(const loom_meeting *m, const char *key, void *value, size_t bytes, double end_s)
{
    double begin_s = loom_now_s(), left_s = end_s - begin_s, slice_s = left_s < SLICE_S ? left_s : SLICE_S;
    size_t got = 0;
    loom_status status = m->table->get(m->table->context, key, value, bytes, &got, slice_s > 0 ? slice_s : 0);

    if (status == LOOM_E_PEER && loom_now_s() >= begin_s + slice_s)
        return LOOM_PENDING;
    if (status >= 0 && got != bytes)
        return loom_fail(LOOM_E_PEER, "opening the world: %s has %zu bytes instead of %zu; do all ranks run the same version (here " RANKLOOM_VERSION ")?",
                         key, got, bytes);
    return status;
}

/* --- who is missing ------------------------------------------------------------------------------------------------------ */

/* Ranks that have not come since they last met, into `text`; *left: one that has come and gone again, or -1. */
static loom_status list_absent(const loom_meeting *m, loom_text *text, int *absent, int *left)
{
    loom_status status;

    *absent = 0;
    *left = -1;
    for (int r = 0; r < m->table->size; r++) {
        int64_t came, used;
        LOOM_TRY(read_count(m, "came", r, 0, &came));
        LOOM_TRY(read_count(m, "used", r, 0, &used));
        if (came <= used + 1 && !(came % 2 && came > used) && ++*absent <= MOST_NAMED)
            loom_text_add(text, "%s%d", *absent > 1 ? ", " : "", r);
        else if (came % 2 == 0)
            *left = r;
    }
    return LOOM_OK;

fail:
    return status;
}

static loom_status fail_at_deadline(const loom_meeting *m)
{
    loom_text text = {0};
    int absent, left;
    loom_status status = list_absent(m, &text, &absent, &left);

    if (status >= 0 && absent)
        status = loom_fail(LOOM_E_PEER, "opening the world: rank%s %s%s did not come within %g s", absent > 1 ? "s" : "", loom_text_so_far(&text),
                           absent > MOST_NAMED ? " and others" : "", m->deadline_s);
    else if (status >= 0 && left >= 0)
        status = loom_fail(LOOM_E_PEER, "opening the world: all ranks came, but rank %d had left before the last one was there; they may come again", left);
    else if (status >= 0)
        status = loom_fail(LOOM_E_PEER, "opening the world: all ranks came, the last one too late for the %g s; they may come again", m->deadline_s);
    loom_text_drop(&text);
    return status;
}

/* --- coming ------------------------------------------------------------------------------------------------------------------ */

/* Waits until `rank` is here. *ticket is the one that its card was read with. */
static loom_status await_rank(const loom_meeting *m, int rank, void *card, size_t bytes, double end_s, int64_t *ticket)
{
    int64_t came, used;
    char key[KEY_BYTES];
    loom_status status;

    LOOM_TRY(read_count(m, "used", rank, 0, &used));
    for (;;) {
        LOOM_TRY(read_count(m, "came", rank, 0, &came));
        *ticket = came % 2 == 0 ? came + 1 : came > used ? came : came + 2;
        snprintf(key, sizeof key, "comm/card/%d/%lld", rank, (long long)*ticket);
        LOOM_TRY(wait_a_slice(m, key, card, bytes, end_s));
        LOOM_TRY(read_count(m, "came", rank, 0, &came));
        if (status == LOOM_OK && came == *ticket)
            return LOOM_OK;
        if (loom_now_s() >= end_s)
            return fail_at_deadline(m);
    }

fail:
    return status;
}

static loom_status tell_seat(const loom_meeting *m, int rank)
{
    seat s = {m->number, m->ticket};
    int64_t used;
    char key[KEY_BYTES];
    loom_status status;

    LOOM_TRY(read_count(m, "used", rank, 0, &used));
    LOOM_TRY(read_count(m, "used", rank, m->tickets[rank] - used, &used));
    if (rank == 0)
        return LOOM_OK;
    snprintf(key, sizeof key, "comm/seat/%d/%lld", rank, (long long)m->tickets[rank]);
    return m->table->set(m->table->context, key, &s, sizeof s);

fail:
    return status;
}

static loom_status gather_cards(loom_meeting *m, const void *mine, void *all, size_t bytes, double end_s)
{
    int size = m->table->size;
    char key[KEY_BYTES];
    loom_status status;

    memcpy(all, mine, bytes);
    m->tickets[0] = m->ticket;
    for (int r = 1; r < size; r++)
        LOOM_TRY(await_rank(m, r, (char *)all + bytes * (size_t)r, bytes, end_s, &m->tickets[r]));
    LOOM_TRY(m->table->add(m->table->context, "comm/meetings", 1, &m->number));
    snprintf(key, sizeof key, "comm/%lld/cards", (long long)m->number);
    LOOM_TRY(m->table->set(m->table->context, key, all, bytes * (size_t)size));
    for (int r = 0; r < size; r++)
        LOOM_TRY(tell_seat(m, r));
    return LOOM_OK;

fail:
    return status;
}

/* What rank 0, or on it rank `rank`, has written under `key`. Ends early when that rank has left. */
static loom_status await_told(const loom_meeting *m, int rank, const char *key, void *value, size_t bytes, double end_s)
{
    loom_status status;
    int64_t came;

    while ((status = wait_a_slice(m, key, value, bytes, end_s)) == LOOM_PENDING) {
        LOOM_TRY(read_count(m, "came", rank, 0, &came));
        if (came != m->tickets[rank])
            return loom_fail(LOOM_E_PEER, "opening the world: rank %d has given it up; they may come again", rank);
        if (loom_now_s() >= end_s)
            return loom_fail(LOOM_E_PEER, "opening the world: rank %d came, and then said nothing for %g s", rank, m->deadline_s);
    }
    return status;

fail:
    return status;
}

static loom_status take_seat(loom_meeting *m, const void *mine, void *all, size_t bytes, double end_s)
{
    char key[KEY_BYTES];
    seat s;
    loom_status status;

    snprintf(key, sizeof key, "comm/card/%d/%lld", m->table->rank, (long long)m->ticket);
    LOOM_TRY(m->table->set(m->table->context, key, mine, bytes));
    snprintf(key, sizeof key, "comm/seat/%d/%lld", m->table->rank, (long long)m->ticket);
    while ((status = wait_a_slice(m, key, &s, sizeof s, end_s)) == LOOM_PENDING)
        if (loom_now_s() >= end_s)
            return fail_at_deadline(m);
    if (status < 0)
        return status;
    m->number = s.number;
    m->tickets[0] = s.host;
    snprintf(key, sizeof key, "comm/%lld/cards", (long long)m->number);
    return await_told(m, 0, key, all, bytes * (size_t)m->table->size, end_s);

fail:
    return status;
}

loom_status loom_meeting_come(loom_meeting *m, const void *mine, void *all, size_t bytes)
{
    double end_s = loom_now_s() + m->deadline_s;
    loom_status status;

    m->tickets = calloc((size_t)(m->table->rank == 0 ? m->table->size : 1), sizeof *m->tickets);
    if (!m->tickets)
        return loom_fail(LOOM_E_MEMORY, "no memory for the tickets of %d ranks", m->table->size);
    LOOM_TRY(read_count(m, "came", m->table->rank, 1, &m->ticket));
    return m->table->rank == 0 ? gather_cards(m, mine, all, bytes, end_s) : take_seat(m, mine, all, bytes, end_s);

fail:
    return status;
}

/* --- among those who have met -------------------------------------------------------------------------------------------------- */

/* Rank 0 collects and hands out, so that the table serves size requests and not their square. */
loom_status loom_meeting_exchange(loom_meeting *m, const void *mine, void *all, size_t bytes)
{
    double end_s = loom_now_s() + m->deadline_s;
    int rank = m->table->rank, size = m->table->size;
    char key[KEY_BYTES];
    loom_status status;

    if (rank != 0) {
        snprintf(key, sizeof key, "comm/%lld/told/%d", (long long)m->number, rank);
        LOOM_TRY(m->table->set(m->table->context, key, mine, bytes));
        snprintf(key, sizeof key, "comm/%lld/told", (long long)m->number);
        return await_told(m, 0, key, all, bytes * (size_t)size, end_s);
    }
    memcpy(all, mine, bytes);
    for (int r = 1; r < size; r++) {
        snprintf(key, sizeof key, "comm/%lld/told/%d", (long long)m->number, r);
        LOOM_TRY(await_told(m, r, key, (char *)all + bytes * (size_t)r, bytes, end_s));
    }
    snprintf(key, sizeof key, "comm/%lld/told", (long long)m->number);
    return m->table->set(m->table->context, key, all, bytes * (size_t)size);

fail:
    return status;
}

/* --- leaving -------------------------------------------------------------------------------------------------------------------- */

/* Whoever still waits for one of these keys finds out from the count that nobody will write it again. */
static void remove_keys(const loom_meeting *m)
{
    int rank = m->table->rank;
    char key[KEY_BYTES];

    if (rank != 0) {
        snprintf(key, sizeof key, "comm/card/%d/%lld", rank, (long long)m->ticket);
        remove_key(m, key);
        snprintf(key, sizeof key, "comm/seat/%d/%lld", rank, (long long)m->ticket);
        remove_key(m, key);
        snprintf(key, sizeof key, "comm/%lld/told/%d", (long long)m->number, rank);
    } else {
        snprintf(key, sizeof key, "comm/%lld/cards", (long long)m->number);
        remove_key(m, key);
        snprintf(key, sizeof key, "comm/%lld/told", (long long)m->number);
    }
    remove_key(m, key);
}

void loom_meeting_leave(loom_meeting *m)
{
    int64_t count;
    loom_text kept = {0};

    if (m->ticket) {
        loom_text_add(&kept, "%s", loom_last_error()); /* of what made us leave */
        read_count(m, "came", m->table->rank, 1, &count);
        remove_keys(m);
        if (kept.length)
            loom_fail(LOOM_E_PEER, "%s", loom_text_so_far(&kept));
        loom_text_drop(&kept);
    }
    free(m->tickets);
    m->tickets = NULL;
    m->ticket = 0;
}
