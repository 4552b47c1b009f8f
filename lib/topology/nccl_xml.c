/* NCCL's topology file. Clouds write it with speeds left out; what is not told is unknown, and no bandwidth of zero comes out of it. */
#include "topology/sources.h"

#include "core/try.h"
#include "topology/catalogue.h"

#include <rankloom/host.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_DEPTH = 32, MAX_ATTRIBUTES = 24, NAME_BYTES = 24, VALUE_BYTES = 64 };

/* --- tags ---------------------------------------------------------------------------------------------------------------------- */

typedef struct tag {
    char name[NAME_BYTES];
    struct {
        char name[NAME_BYTES], value[VALUE_BYTES];
    } attribute[MAX_ATTRIBUTES];
    int attributes;
    bool closes, empty; /* </name>, <name/> */
} tag;

typedef struct scanner {
    const char *source, *at, *end;
    int line;
} scanner;

static loom_status malformed(const scanner *s, const char *what)
{
    return loom_fail(LOOM_E_INVALID, "%s:%d: %s", s->source, s->line, what);
}

static void skip_space(scanner *s)
{
    for (; s->at < s->end && isspace((unsigned char)*s->at); s->at++)
        s->line += *s->at == '\n';
}

/* Moves behind the next `word`; false when there is none. */
static bool skip_past(scanner *s, const char *word)
{
    const char *found = memmem(s->at, (size_t)(s->end - s->at), word, strlen(word));

    if (!found)
        return false;
    for (; s->at < found; s->at++)
        s->line += *s->at == '\n';
    s->at += strlen(word);
    return true;
}

static void copy_name(scanner *s, char name[NAME_BYTES])
{
    size_t length = 0;

    for (; s->at < s->end && (isalnum((unsigned char)*s->at) || strchr("_-:.", *s->at)); s->at++)
        if (length + 1 < NAME_BYTES)
            name[length++] = *s->at;
    name[length] = '\0';
}

static loom_status scan_attribute(scanner *s, tag *t)
{
    size_t length = 0;

    if (t->attributes == MAX_ATTRIBUTES)
        return malformed(s, "a tag has too many attributes");
    copy_name(s, t->attribute[t->attributes].name);
    skip_space(s);
    if (t->attribute[t->attributes].name[0] == '\0' || s->at >= s->end || *s->at++ != '=')
        return malformed(s, "expected name=\"value\" in a tag");
    skip_space(s);
    if (s->at >= s->end || (*s->at != '"' && *s->at != '\''))
        return malformed(s, "expected a quoted value in a tag");
    char quote = *s->at++;
    for (; s->at < s->end && *s->at != quote; s->at++)
        if (length + 1 < VALUE_BYTES)
            t->attribute[t->attributes].value[length++] = *s->at;
    if (s->at++ >= s->end)
        return malformed(s, "a value has no closing quote");
    t->attribute[t->attributes++].value[length] = '\0';
    return LOOM_OK;
}

/* The next tag; *there false at the end of the text. Comments and declarations are passed over. */
static loom_status next_tag(scanner *s, tag *t, bool *there)
{
    loom_status status;

    memset(t, 0, sizeof *t);
    for (*there = false;;) {
        if (!skip_past(s, "<"))
            return LOOM_OK;
        if (s->end - s->at >= 3 && memcmp(s->at, "!--", 3) == 0) {
            if (!skip_past(s, "-->"))
                return malformed(s, "a comment does not end");
        } else if (s->at < s->end && (*s->at == '?' || *s->at == '!')) {
            if (!skip_past(s, ">"))
                return malformed(s, "a declaration does not end");
        } else {
            break;
        }
    }
    *there = true;
    t->closes = s->at < s->end && *s->at == '/';
    s->at += t->closes;
    copy_name(s, t->name);
    if (t->name[0] == '\0')
        return malformed(s, "a tag has no name");
    for (;;) {
        skip_space(s);
        if (s->at < s->end && *s->at == '/') {
            t->empty = true;
            s->at++;
        } else if (s->at < s->end && *s->at == '>') {
            s->at++;
            return LOOM_OK;
        } else if (s->at >= s->end) {
            return malformed(s, "a tag does not end");
        } else if ((status = scan_attribute(s, t)) < 0) {
            return status;
        }
    }
}

static const char *value_of(const tag *t, const char *name)
{
    for (int i = 0; i < t->attributes; i++)
        if (strcmp(t->attribute[i].name, name) == 0)
            return t->attribute[i].value;
    return "";
}

/* --- what tags mean ------------------------------------------------------------------------------------------------------------ */

/* "16.0 GT/s PCIe" and a width of 16 are 31.5 GB/s; "", "Unknown speed" and a width of 0 are unknown. */
static loom_figure pci_bandwidth(const char *speed, const char *width)
{
    double transfers = strtod(speed, NULL);
    long lanes = strtol(width, NULL, 10);

    if (!(transfers > 0 && transfers < 1000) || lanes < 1 || lanes > 32)
        return loom_unknown();
    double payload = transfers > 5 ? 128.0 / 130 : 0.8; /* what the line code leaves */
    return (loom_figure){transfers * 1e9 * payload * (double)lanes / 8, LOOM_ORIGIN_READ};
}

typedef struct nvlink {
    int gpu, count;
    char target[VALUE_BYTES];
    bool to_switch;
} nvlink;

typedef struct nccl_host {
    loom_host_shape *shape;
    char busid[LOOM_MAX_NODE_DEVICES][VALUE_BYTES]; /* of each GPU */
    loom_figure bus[LOOM_MAX_NODE_DEVICES];         /* slowest PCI link between it and the CPU */
    nvlink *links;
    int n_links, link_room;
} nccl_host;

/* Where we are in the tree: what holds for everything below. */
typedef struct place {
    int numa;
    loom_figure bus;
    char busid[VALUE_BYTES];
} place;

static loom_status add_gpu(const scanner *s, nccl_host *host, const place *at)
{
    int gpu = host->shape->devices;

    if (gpu == LOOM_MAX_NODE_DEVICES)
        return malformed(s, "too many GPUs in one host");
    host->shape->devices++;
    host->shape->device_numa[gpu] = at->numa;
    host->bus[gpu] = at->bus;
    memcpy(host->busid[gpu], at->busid, VALUE_BYTES);
    return LOOM_OK;
}

static loom_status add_link(nccl_host *host, const tag *t)
{
    if (host->shape->devices == 0)
        return LOOM_OK; /* not below a GPU */
    if (!loom_grow((void **)&host->links, host->n_links, &host->link_room, sizeof *host->links))
        return loom_fail(LOOM_E_MEMORY, "no memory for links");
    nvlink *link = &host->links[host->n_links++];
    long count = strtol(value_of(t, "count"), NULL, 10);
    *link = (nvlink){.gpu = host->shape->devices - 1,
                     .count = count > 0 && count < 256 ? (int)count : 0,
                     .to_switch = strcmp(value_of(t, "tclass"), "0x068000") == 0};
    snprintf(link->target, sizeof link->target, "%s", value_of(t, "target"));
    return LOOM_OK;
}

/* speed in Mbit/s; 0 and absent are unknown. Several ports of one card are several cards here. */
static loom_status add_net(const scanner *s, nccl_host *host, const tag *t, const place *at)
{
    int nic = host->shape->nics;
    double speed = strtod(value_of(t, "speed"), NULL);

    if (nic == LOOM_MAX_NODE_DEVICES)
        return malformed(s, "too many network ports in one host");
    host->shape->nics++;
    host->shape->nic_numa[nic] = at->numa;
    if (speed > 0 && speed < 1e9)
        host->shape->nic_bandwidth[nic] = (loom_figure){speed * 1e6 / 8, LOOM_ORIGIN_READ};
    return LOOM_OK;
}

static loom_status take(const scanner *s, nccl_host *host, const tag *t, place *at)
{
    if (strcmp(t->name, "cpu") == 0) {
        at->numa = loom_numa_of_text(value_of(t, "numaid"));
    } else if (strcmp(t->name, "pci") == 0) {
        loom_figure own = pci_bandwidth(value_of(t, "link_speed"), value_of(t, "link_width"));
        at->bus = !loom_known(own) ? at->bus : loom_known(at->bus) ? loom_figure_min(at->bus, own) : own;
        snprintf(at->busid, sizeof at->busid, "%s", value_of(t, "busid"));
    } else if (strcmp(t->name, "gpu") == 0) {
        return add_gpu(s, host, at);
    } else if (strcmp(t->name, "nvlink") == 0) {
        return add_link(host, t);
    } else if (strcmp(t->name, "net") == 0) {
        return add_net(s, host, t, at);
    }
    return LOOM_OK;
}

static loom_status scan(scanner *s, nccl_host *host)
{
    place stack[MAX_DEPTH + 1] = {{.numa = -1, .bus = loom_unknown()}};
    char open[MAX_DEPTH][NAME_BYTES];
    int depth = 0;
    bool there;
    tag t;
    loom_status status;

    for (;;) {
        if ((status = next_tag(s, &t, &there)) < 0)
            return status;
        if (!there)
            return depth == 0 ? LOOM_OK : malformed(s, "the text ends inside a tag");
        if (t.closes) {
            if (depth == 0 || strcmp(open[depth - 1], t.name) != 0)
                return malformed(s, "a closing tag does not match");
            depth--;
            continue;
        }
        if (depth == MAX_DEPTH)
            return malformed(s, "tags are nested too deeply");
        stack[depth + 1] = stack[depth];
        if ((status = take(s, host, &t, &stack[depth + 1])) < 0)
            return status;
        if (!t.empty)
            memcpy(open[depth++], t.name, NAME_BYTES);
    }
}

/* --- a host of it ---------------------------------------------------------------------------------------------------------------- */

/* Links to a switch reach every GPU that has some; links to a GPU are joined by bus address, never by position. */
static void join(const nccl_host *host, loom_wire *wires)
{
    int devices = host->shape->devices, to_switch[LOOM_MAX_NODE_DEVICES] = {0};

    for (int i = 0; i < devices; i++)
        for (int j = 0; j < devices; j++)
            wires[i * devices + j] = (loom_wire){i == j ? LOOM_PATH_SELF : LOOM_PATH_UNKNOWN, 0};
    for (int l = 0; l < host->n_links; l++) {
        const nvlink *link = &host->links[l];
        if (link->to_switch)
            to_switch[link->gpu] += link->count;
        for (int j = 0; j < devices && !link->to_switch; j++)
            if (j != link->gpu && link->count > 0 && strcasecmp(host->busid[j], link->target) == 0)
                wires[link->gpu * devices + j] = wires[j * devices + link->gpu] = (loom_wire){LOOM_PATH_NVLINK, (uint8_t)link->count};
    }
    for (int i = 0; i < devices; i++)
        for (int j = 0; j < devices; j++) {
            int shared = to_switch[i] < to_switch[j] ? to_switch[i] : to_switch[j];
            if (i != j && shared > 0)
                wires[i * devices + j] = (loom_wire){LOOM_PATH_NVLINK, (uint8_t)(shared < 255 ? shared : 255)};
        }
}

static loom_status add_host(nccl_host *host, loom_builder *builder, loom_wire *wires)
{
    loom_status status;
    int unknown = 0;

    join(host, wires);
    loom_group_by_nvlink(wires, host->shape->devices, host->shape->group);
    host->shape->wires = wires;
    for (int i = 0; i < host->shape->devices; i++) {
        loom_chip chip;
        loom_chip_blank(LOOM_NAMELESS_CHIP, LOOM_CHIP_GPU, &chip);
        chip.host_bandwidth = host->bus[i];
        unknown += !loom_known(host->bus[i]);
        LOOM_TRY(loom_build_chip(builder, &chip, &host->shape->chip[i]));
    }
    if (unknown)
        LOOM_TRY(loom_build_notice(builder, "link speed of %d device%s is not told: unknown, or the card's usual one once it is named",
                                   unknown, unknown == 1 ? "" : "s"));
    loom_collect_numas(host->shape);
    loom_choose_nics(host->shape->devices, host->shape->device_numa, host->shape->nics, host->shape->nic_numa, host->shape->device_nic);
    return loom_build_host(builder, host->shape, 0, false);

fail:
    return status;
}

loom_status loom_nccl_read(const char *source, const char *text, size_t bytes, loom_builder *builder)
{
    scanner s = {.source = source, .at = text, .end = text + bytes, .line = 1};
    nccl_host *host = calloc(1, sizeof *host);
    loom_wire *wires = NULL;
    loom_status status = LOOM_OK;

    if (!host || !(host->shape = loom_host_shape_new()))
        status = loom_fail(LOOM_E_MEMORY, "%s: no memory for a host", source);
    if (status == LOOM_OK)
        status = scan(&s, host);
    if (status == LOOM_OK && host->shape->devices == 0)
        status = loom_fail(LOOM_E_INVALID, "%s: no <gpu> in it", source);
    if (status == LOOM_OK && !(wires = calloc((size_t)host->shape->devices * (size_t)host->shape->devices, sizeof *wires)))
        status = loom_fail(LOOM_E_MEMORY, "%s: no memory for the links of %d GPUs", source, host->shape->devices);
    if (status == LOOM_OK)
        status = add_host(host, builder, wires);
    free(wires);
    if (host) {
        free(host->shape);
        free(host->links);
    }
    free(host);
    return status;
}
