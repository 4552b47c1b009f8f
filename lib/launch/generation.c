/* Agreeing on a fresh generation.
 *
 *   rank r > 0   draws a uid; sets hello/SIZE/r = uid, then adds 1 to arrivals; waits for welcome/UID, whose name nobody can have used
 *                before; reads the generation in it, sets g/GEN/ack/r = uid, and waits for g/GEN/go. Every second it says hello again.
 *   rank 0       adds 1 to arrivals; draws the generation; reads the hellos again and again and welcomes each uid it has not welcomed yet; when
 *                arrivals was read and then all hellos were those of the acks, it sets g/GEN/go to the list of the uids and that number.
 *
 * So a process that is not in go either was seen by rank 0 before, which then waited for it, or came later and made arrivals larger than go says.
 *
 * A hello of a dead process is welcomed in vain and overwritten by the living one. A rank 0 that dies before go is replaced: its successor
 * welcomes the same uids to another generation, and they follow. A process that does not find its uid in go was replaced by another one with the
 * same rank: two jobs share a store without knowing. */
#include "launch/generation.h"

#include "core/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define HELLO_AGAIN_S 1.0
#define FIRST_POLL_S 0.001
#define LONGEST_POLL_S 0.020
#define REFUSE_S 1.0

enum {
    VERSION = 1, /* of this agreement; the first word of a welcome */
    KEY_BYTES = 512,
    VALUE_BYTES = 512,
    HELLO_BYTES = LOOM_UID_HEX + 80, /* uid and origin */
    UID_HEX = LOOM_UID_HEX - 1,
    MOST_NAMED = 16, /* missing ranks in a message */
};

static loom_status draw_uid(char uid[LOOM_UID_HEX])
{
    unsigned char bits[UID_HEX / 2];

    if (getrandom(bits, sizeof bits, 0) != sizeof bits)
        return loom_fail(LOOM_E_IO, "the system gives no random numbers");
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(uid + 2 * i, 3, "%02x", bits[i]);
    return LOOM_OK;
}

/* Where a process comes from: ranks that were started together have the host and the parent, or at least the session, in common. */
typedef struct origin {
    char boot[40];
    int parent, session;
} origin;

static origin own_origin(void)
{
    origin here = {.boot = "?", .parent = (int)getppid(), .session = (int)getsid(0)};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (file) {
        if (fgets(here.boot, sizeof here.boot, file))
            here.boot[strcspn(here.boot, "\n")] = '\0';
        fclose(file);
    }
    if (here.boot[0] == '?')
        gethostname(here.boot, sizeof here.boot - 1);
    return here;
}

/* `text` is what stands behind the uid in a hello. */
static bool started_together(const origin *here, const char *text)
{
    origin there;

    return sscanf(text, " %39s %d %d", there.boot, &there.parent, &there.session) == 3 && strcmp(there.boot, here->boot) == 0 &&
           (there.parent == here->parent || there.session == here->session);
}

/* What the calls below share. */
typedef struct agreement {
    loom_store_client *client;
    const char *base;
    int rank, size;
    double began, deadline;
    char generation[LOOM_UID_HEX];
    int64_t n_arrivals;
    char key[KEY_BYTES], value[VALUE_BYTES + 1];
} agreement;

static loom_span hello_key(agreement *a, int rank)
{
    snprintf(a->key, sizeof a->key, "%shello/%d/%d", a->base, a->size, rank);
    return loom_span_of_text(a->key);
}

static loom_span welcome_key(agreement *a, const char *uid)
{
    snprintf(a->key, sizeof a->key, "%swelcome/%.*s", a->base, UID_HEX, uid);
    return loom_span_of_text(a->key);
}

static loom_span ack_key(agreement *a, int rank)
{
    snprintf(a->key, sizeof a->key, "%sg/%s/ack/%d", a->base, a->generation, rank);
    return loom_span_of_text(a->key);
}

static loom_span go_key(agreement *a)
{
    snprintf(a->key, sizeof a->key, "%sg/%s/go", a->base, a->generation);
    return loom_span_of_text(a->key);
}

static loom_status add_arrivals(loom_store_client *client, const char *base, int64_t delta, int64_t *n_arrivals)
{
    char key[KEY_BYTES];

    snprintf(key, sizeof key, "%sarrivals", base);
    return loom_store_client_add(client, loom_span_of_text(key), delta, n_arrivals);
}

/* Reads a text value if the key is there; else a->value is "". */
static loom_status peek(agreement *a, loom_span key)
{
    bool present = false;
    size_t bytes = 0;
    loom_status status = loom_store_client_check(a->client, &key, 1, &present);

    if (status == LOOM_OK && present)
        status = loom_store_client_get(a->client, key, a->value, VALUE_BYTES, &bytes);
    a->value[bytes < VALUE_BYTES ? bytes : VALUE_BYTES] = '\0';
    return status;
}

/* Names the ranks whose ack is not there; `who` lists their numbers. */
static loom_status list_missing(agreement *a, char *who, size_t capacity, int *n_missing)
{
    loom_status status = LOOM_OK;
    bool present = true;

    *n_missing = 0;
    who[0] = '\0';
    for (int rank = 1; rank < a->size && status == LOOM_OK; rank++) {
        loom_span key = ack_key(a, rank);
        status = loom_store_client_check(a->client, &key, 1, &present);
        if (status != LOOM_OK || present || (*n_missing)++ >= MOST_NAMED)
            continue;
        size_t used = strlen(who);
        snprintf(who + used, capacity - used, "%s%d", used ? ", " : "", rank);
    }
    if (*n_missing > MOST_NAMED)
        strncat(who, ", …", capacity - strlen(who) - 1);
    return status;
}

static loom_status fail_missing(agreement *a)
{
    char who[256];
    int n_missing;
    loom_status status = list_missing(a, who, sizeof who, &n_missing);

    if (status != LOOM_OK)
        return status;
    if (n_missing == 0)
        return loom_fail(LOOM_E_PEER, "start of %d ranks: all came, but rank 0 did not give the word within %.1f s", a->size,
                         loom_now_s() - a->began);
    return loom_fail(LOOM_E_PEER, "start of %d ranks: rank%s %s did not come within %.1f s", a->size, n_missing > 1 ? "s" : "", who,
                     loom_now_s() - a->began);
}

/* --- rank 0 ------------------------------------------------------------------------------------------------------------ */

typedef char uid_text[LOOM_UID_HEX];

/* Looks at one rank: its ack, else its hello, which is welcomed once. `welcomed` is the uid it answered last; *here tells whether the ack of
 * that very process is there. */
static loom_status look_at_rank(agreement *a, int rank, uid_text welcomed, bool *here)
{
    char welcome[64];
    loom_status status = peek(a, hello_key(a, rank));

    *here = false;
    if (status != LOOM_OK)
        return status;
    if (strlen(a->value) >= UID_HEX && strncmp(a->value, welcomed, UID_HEX) != 0) {
        snprintf(welcomed, LOOM_UID_HEX, "%.*s", UID_HEX, a->value);
        snprintf(welcome, sizeof welcome, "%d %s", VERSION, a->generation);
        return loom_store_client_set(a->client, welcome_key(a, welcomed), loom_span_of_text(welcome));
    }
    if (welcomed[0])
        status = peek(a, ack_key(a, rank));
    else
        a->value[0] = '\0';
    *here = welcomed[0] && strcmp(a->value, welcomed) == 0;
    return status;
}

/* go holds the uids in rank order, rank 1 first, and the number of arrivals; then the keys of the agreement have done their work. */
static loom_status give_the_word(agreement *a, uid_text *welcomed)
{
    loom_bytes uids = {0};
    loom_status status;

    for (int rank = 1; rank < a->size; rank++)
        loom_bytes_append(&uids, welcomed[rank], UID_HEX);
    loom_bytes_append_u64(&uids, (uint64_t)a->n_arrivals);
    status = uids.failed ? loom_fail(LOOM_E_MEMORY, "no memory for the uids of %d ranks", a->size)
                         : loom_store_client_set(a->client, go_key(a), (loom_span){uids.data, uids.size});
    loom_bytes_free(&uids);
    for (int rank = 1; rank < a->size && status == LOOM_OK; rank++) {
        status = loom_store_client_delete(a->client, hello_key(a, rank));
        if (status == LOOM_OK)
            status = loom_store_client_delete(a->client, welcome_key(a, welcomed[rank]));
    }
    return status;
}

/* Ranks that did come should not have to wait for their own deadline to learn who did not. */
static void pass_on_failure(agreement *a, uid_text *welcomed)
{
    char message[VALUE_BYTES];

    snprintf(message, sizeof message, "! %s", loom_last_error());
    for (int rank = 1; rank < a->size; rank++)
        if (welcomed[rank][0] && loom_store_client_set(a->client, welcome_key(a, welcomed[rank]), loom_span_of_text(message)) != LOOM_OK)
            break;
    loom_sleep_s(HELLO_AGAIN_S * 1.2); /* they look once a second; the store may end with us */
    loom_fail(LOOM_E_PEER, "%s", message + 2);
}

/* One look at all ranks. *all_here: every hello is that of the ack. */
static loom_status look_at_all(agreement *a, uid_text *welcomed, bool *all_here)
{
    loom_status status = add_arrivals(a->client, a->base, 0, &a->n_arrivals);

    *all_here = true;
    for (int rank = 1; rank < a->size && status == LOOM_OK; rank++) {
        bool here;
        status = look_at_rank(a, rank, welcomed[rank], &here);
        *all_here &= here;
    }
    return status;
}

static loom_status gather(agreement *a, uid_text *welcomed)
{
    double pause_s = FIRST_POLL_S;
    bool all_here = false;
    loom_status status;

    while ((status = look_at_all(a, welcomed, &all_here)) == LOOM_OK && !all_here) {
        if (loom_now_s() >= a->deadline)
            return fail_missing(a);
        loom_sleep_s(pause_s);
        pause_s = pause_s * 2 < LONGEST_POLL_S ? pause_s * 2 : LONGEST_POLL_S;
    }
    return status;
}

static loom_status agree_as_rank_0(agreement *a)
{
    uid_text *welcomed = calloc((size_t)a->size, sizeof *welcomed);
    loom_status status = draw_uid(a->generation);

    if (!welcomed)
        return loom_fail(LOOM_E_MEMORY, "no memory for the uids of %d ranks", a->size);
    if (status == LOOM_OK)
        status = add_arrivals(a->client, a->base, 1, &a->n_arrivals);
    if (status == LOOM_OK) {
        status = gather(a, welcomed);
        if (status == LOOM_OK)
            status = give_the_word(a, welcomed);
        else if (!loom_store_client_lost(a->client))
            pass_on_failure(a, welcomed);
    }
    free(welcomed);
    return status;
}

/* --- the others --------------------------------------------------------------------------------------------------------- */

/* Understands a welcome in a->value: the generation, or why there will be none. */
static loom_status read_welcome(agreement *a)
{
    int version;
    char generation[LOOM_UID_HEX];

    if (a->value[0] == '!')
        return loom_fail(LOOM_E_PEER, "rank 0 gave up: %s", a->value + 2);
    if (sscanf(a->value, "%d %32[0-9a-f]", &version, generation) != 2 || version != VERSION)
        return loom_fail(LOOM_E_MISMATCH, "rank 0 speaks another version of Rankloom than rank %d (start protocol \"%.20s\", here %d)", a->rank,
                         a->value, VERSION);
    strcpy(a->generation, generation);
    return LOOM_OK;
}

/* The part of go that is about this rank, and the number of arrivals. */
static loom_status read_go(agreement *a, const char *uid)
{
    size_t bytes, uids_bytes = (size_t)(a->size - 1) * UID_HEX, capacity = uids_bytes + sizeof a->n_arrivals;
    char *go = malloc(capacity);

    if (!go)
        return loom_fail(LOOM_E_MEMORY, "no memory for the uids of %d ranks", a->size);
    loom_status status = loom_store_client_get(a->client, go_key(a), go, capacity, &bytes);
    if (status == LOOM_OK && bytes != capacity)
        status = loom_fail(LOOM_E_PEER, "rank 0 started %zu ranks, this rank expects %d", bytes / UID_HEX + 1, a->size);
    else if (status == LOOM_OK && memcmp(go + (size_t)(a->rank - 1) * UID_HEX, uid, UID_HEX) != 0)
        status = loom_fail(LOOM_E_PEER, "another process is rank %d of %d in this store: do two jobs use one MASTER_ADDR and MASTER_PORT?",
                           a->rank, a->size);
    else if (status == LOOM_OK)
        memcpy(&a->n_arrivals, go + uids_bytes, sizeof a->n_arrivals);
    free(go);
    return status;
}

/* LOOM_PENDING after a second: time to say hello again. */
static loom_status wait_a_slice(agreement *a, loom_span key)
{
    double end = loom_now_s() + HELLO_AGAIN_S;

    return loom_store_client_wait(a->client, &key, 1, end < a->deadline ? end : a->deadline);
}

/* True when the generation of an earlier round has started since: its welcome may be gone already. */
static loom_status look_for_go(agreement *a, bool *started)
{
    const loom_span key = go_key(a);

    *started = false;
    return a->generation[0] ? loom_store_client_check(a->client, &key, 1, started) : LOOM_OK;
}

/* One round: hello, welcome, ack, go. LOOM_PENDING: not yet. */
static loom_status try_to_join(agreement *a, const char *uid, const char *hello)
{
    bool started;
    loom_status status = look_for_go(a, &started);

    if (status != LOOM_OK || started)
        return status;
    status = loom_store_client_set(a->client, hello_key(a, a->rank), loom_span_of_text(hello));
    if (status == LOOM_OK)
        status = wait_a_slice(a, welcome_key(a, uid));
    if (status == LOOM_OK)
        status = peek(a, welcome_key(a, uid));
    if (status != LOOM_OK || !a->value[0]) /* deleted in between: go is there, or another rank 0 will welcome us */
        return status == LOOM_OK ? LOOM_PENDING : status;
    status = read_welcome(a);
    if (status == LOOM_OK)
        status = loom_store_client_set(a->client, ack_key(a, a->rank), loom_span_of_text(uid));
    return status == LOOM_OK ? wait_a_slice(a, go_key(a)) : status;
}

/* The keys of the last round tell who is missing, if rank 0 came that far. */
static loom_status fail_late(agreement *a)
{
    if (a->generation[0])
        return fail_missing(a);
    return loom_fail(LOOM_E_PEER, "start of %d ranks: rank 0 did not answer rank %d within %.1f s", a->size, a->rank, loom_now_s() - a->began);
}

static loom_status agree_as_other(agreement *a)
{
    char uid[LOOM_UID_HEX], hello[HELLO_BYTES];
    const origin here = own_origin();
    loom_status status = draw_uid(uid);

    if (status != LOOM_OK)
        return status;
    snprintf(hello, sizeof hello, "%s %s %d %d", uid, here.boot, here.parent, here.session);
    status = loom_store_client_set(a->client, hello_key(a, a->rank), loom_span_of_text(hello));
    if (status == LOOM_OK)
        status = add_arrivals(a->client, a->base, 1, &a->n_arrivals); /* behind the hello, or rank 0 might count it unseen */
    if (status != LOOM_OK)
        return status;
    while ((status = try_to_join(a, uid, hello)) == LOOM_PENDING)
        if (loom_now_s() >= a->deadline)
            return fail_late(a);
    return status == LOOM_OK ? read_go(a, uid) : status;
}

loom_status loom_generation_agree(loom_store_client *client, const char *base, int rank, int size, double deadline, loom_generation *generation)
{
    agreement a = {.client = client, .base = base, .rank = rank, .size = size, .began = loom_now_s(), .deadline = deadline};
    loom_status status = rank == 0 ? agree_as_rank_0(&a) : agree_as_other(&a);

    if (status != LOOM_OK)
        return status;
    strcpy(generation->name, a.generation);
    generation->n_arrivals = a.n_arrivals;
    return LOOM_OK;
}

loom_status loom_generation_check(loom_store_client *client, const char *base, const loom_generation *generation)
{
    int64_t n_arrivals;
    loom_status status = add_arrivals(client, base, 0, &n_arrivals);

    if (status == LOOM_OK && n_arrivals != generation->n_arrivals)
        status = loom_fail(LOOM_E_PEER, "a rank was started anew while this attempt waited for it, so this attempt is over");
    return status;
}

/* --- a port that is taken ----------------------------------------------------------------------------------------------- */

void loom_generation_refuse(loom_store_client *client, const char *base, int size, const char *why)
{
    agreement a = {.client = client, .base = base, .size = size};
    char uid[LOOM_UID_HEX], message[VALUE_BYTES];
    double end = loom_now_s() + REFUSE_S;
    const origin here = own_origin();

    snprintf(message, sizeof message, "! %s", why);
    while (loom_now_s() < end && !loom_store_client_lost(client)) {
        for (int rank = 1; rank < size; rank++) {
            if (peek(&a, hello_key(&a, rank)) != LOOM_OK || strlen(a.value) < UID_HEX || !started_together(&here, a.value + UID_HEX))
                continue;
            snprintf(uid, sizeof uid, "%.*s", UID_HEX, a.value);
            loom_store_client_set(client, welcome_key(&a, uid), loom_span_of_text(message));
        }
        loom_sleep_s(LONGEST_POLL_S);
    }
}
