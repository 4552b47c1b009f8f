/* Memory that processes of one host share. */
#include "device/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "device/host.h"

static uint64_t make_nonce(const void *seed)
{
    uint64_t nonce;

    if (getrandom(&nonce, sizeof nonce, GRND_NONBLOCK) != sizeof nonce)
        nonce = (uint64_t)(uintptr_t)seed ^ ((uint64_t)getpid() << 40); /* early boot: still differs between live processes */
    return nonce;
}

loom_status loom_segment_reserve(const loom_segment *segment, size_t offset, size_t bytes)
{
    enum { LOOK_BYTES = 4 << 20 }; /* asking the kernel how much is left costs as much as reserving a few MiB */
    int failed;

    if (bytes >= LOOK_BYTES) {
        uint64_t available = loom_host_available_bytes();
        if (bytes > available)
            return loom_fail(LOOM_E_MEMORY, "the shared heap needs %zu more bytes of memory, and this host (or its cgroup) has %llu", bytes,
                             (unsigned long long)available);
    }
    do
        failed = fallocate(segment->fd, 0, (off_t)offset, (off_t)bytes);
    while (failed && errno == EINTR);
    if (failed)
        return loom_fail(LOOM_E_MEMORY, "the shared heap needs %zu more bytes of memory: %s", bytes, strerror(errno));
#ifdef MADV_POPULATE_WRITE
    /* Page by page later would cost five times as much. Only a hint: an old kernel refuses it. */
    size_t page = 4096, first = offset / page * page;
    madvise(segment->base + first, offset + bytes - first, MADV_POPULATE_WRITE);
#endif
    return LOOM_OK;
}

loom_status loom_segment_create(const char *label, size_t bytes, loom_segment *segment)
{
    loom_segment s = {.bytes = bytes, .fd = memfd_create(label, MFD_CLOEXEC)};
    loom_status status;

    if (s.fd < 0)
        return loom_fail(LOOM_E_IO, "memfd_create(%s): %s", label, strerror(errno));
    if (ftruncate(s.fd, (off_t)bytes) != 0) {
        status = loom_fail(LOOM_E_MEMORY, "cannot reserve %zu bytes of address space for %s: %s", bytes, label, strerror(errno));
        close(s.fd);
        return status;
    }
    s.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, s.fd, 0);
    if (s.base == MAP_FAILED) {
        status = loom_fail(LOOM_E_MEMORY, "cannot map %zu bytes of address space for %s: %s", bytes, label, strerror(errno));
        close(s.fd);
        return status;
    }
    madvise(s.base, bytes, MADV_HUGEPAGE);
    madvise(s.base, bytes, MADV_DONTDUMP); /* a core file of the whole heap helps nobody */
    if ((status = loom_segment_reserve(&s, 0, LOOM_SEGMENT_HEAD_BYTES)) < 0) {
        munmap(s.base, bytes);
        close(s.fd);
        return status;
    }
    loom_segment_get_head(&s)->nonce = make_nonce(s.base);
    atomic_store(&loom_segment_get_head(&s)->local_users, 1);
    *segment = s;
    return LOOM_OK;
}

void loom_segment_get_name(const loom_segment *segment, loom_segment_name *name)
{
    *name = (loom_segment_name){
        .nonce = loom_segment_get_head(segment)->nonce,
        .base = (uint64_t)(uintptr_t)segment->base,
        .bytes = segment->bytes,
        .pid = (int32_t)getpid(),
        .fd = segment->fd,
    };
}

static loom_status attach_from_process(const loom_segment_name *name, loom_segment *segment)
{
    char path[64];
    int fd;
    void *base;

    snprintf(path, sizeof path, "/proc/%d/fd/%d", name->pid, name->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return loom_fail(
            LOOM_E_IO,
            "cannot open the heap of process %d at %s: %s; ranks of one host must run as the same user and see each other in /proc",
            name->pid, path, strerror(errno));
    base = mmap(NULL, name->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return loom_fail(LOOM_E_MEMORY, "cannot map %llu bytes of address space for the heap of process %d: %s",
                         (unsigned long long)name->bytes, name->pid, strerror(errno));
    madvise(base, name->bytes, MADV_DONTDUMP);
    *segment = (loom_segment){.base = base, .bytes = name->bytes, .fd = -1};
    return LOOM_OK;
}

loom_status loom_segment_attach(const loom_segment_name *name, loom_segment *segment)
{
    loom_segment s;

    if (name->pid == (int32_t)getpid()) {
        s = (loom_segment){.base = (char *)(uintptr_t)name->base, .bytes = name->bytes, .fd = -1, .shared = true};
        atomic_fetch_add(&loom_segment_get_head(&s)->local_users, 1);
    } else {
        loom_status status = attach_from_process(name, &s);
        if (status < 0)
            return status;
    }
    if (loom_segment_get_head(&s)->nonce != name->nonce) {
        loom_segment_close(&s);
        return loom_fail(LOOM_E_PEER, "process %d is no longer the rank it was: its heap is another one", name->pid);
    }
    *segment = s;
    return LOOM_OK;
}

void loom_segment_close(loom_segment *segment)
{
    bool attached_elsewhere = segment->fd < 0 && !segment->shared;

    if (!segment->base)
        return;
    if (segment->fd >= 0)
        close(segment->fd);
    if (attached_elsewhere || atomic_fetch_sub(&loom_segment_get_head(segment)->local_users, 1) == 1)
        munmap(segment->base, segment->bytes);
    *segment = (loom_segment){.fd = -1};
}
