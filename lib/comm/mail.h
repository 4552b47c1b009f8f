/* Parcels: what collectives over point to point need of a transport that can only move bytes from one rank to another.
 *
 * A parcel is addressed by (class, comm, number, part); the two sides know beforehand what it is. `comm` is the transport's to fill in. It
 * lies in the caller's memory until it is done. */
#ifndef LOOM_COMM_MAIL_H
#define LOOM_COMM_MAIL_H

#include "comm/transport.h"

typedef struct loom_parcel loom_parcel;
struct loom_parcel {
    loom_parcel *next; /* the transport's */
    uint8_t class;     /* what the sender and the receiver use it for; LOOM_PARCEL_* and the transport's own */
    uint8_t dtype;     /* travels along, and tells the receiver what came */
    uint16_t flags;
    uint32_t part;
    uint64_t comm, number, count;
    char *data;     /* read when sent, written when expected */
    size_t bytes;   /* to send; room for what is expected, and then what came */
    bool done, own; /* own: allocated by the transport, which frees it */
};

enum { LOOM_PARCEL_POST = 1, LOOM_PARCEL_SLICE, LOOM_PARCEL_TRANSPORTS_OWN };

typedef struct loom_mail {
    void (*send)(loom_comm *comm, int rank, loom_parcel *parcel);
    void (*expect)(loom_comm *comm, int rank, loom_parcel *parcel);
    void (*forget)(loom_comm *comm, int rank, loom_parcel *parcel); /* its memory is about to go; accepts one that is done */
} loom_mail;

#endif
