/* The catalogue: accelerators and machine types that people rent, as published. */
#ifndef LOOM_TOPOLOGY_CATALOGUE_H
#define LOOM_TOPOLOGY_CATALOGUE_H

#include <rankloom/topology.h>

/* One accelerator. A figure of 0 was not collected and becomes unknown. */
typedef struct loom_catalogue_chip {
    const char *name;
    const char *key;   /* the token of a label that means this part, "h100" */
    const char *forms; /* tokens that tell it from others of the same key, space between: "sxm sxm5 hbm3" */
    loom_chip_class kind;
    double peak_16, peak_8, peak_4, peak_tf32; /* dense Tflop/s */
    double memory_gb;                          /* as labelled */
    double memory_gib;                         /* as a program sees it */
    double memory_gb_s;
    const char *link;
    double link_gb_s, peer_gb_s; /* one direction: all links; to one peer, 0 when the same */
    int link_domain;
    double host_gb_s;  /* one direction */
    double nic_gbit_s; /* a device */
    double power_w;
    const char *origin;
} loom_catalogue_chip;
extern const loom_catalogue_chip loom_catalogue_chips[];
extern const int loom_catalogue_chip_count;

/* A machine type: one host of it. */
typedef struct loom_catalogue_instance {
    const char *name, *also; /* also: other names, space between; "" none */
    const char *chip;
    int devices, domain; /* domain may be larger than the host */
    int nics;
    double nic_gbit_s; /* one NIC */
    int numas;
} loom_catalogue_instance;
extern const loom_catalogue_instance loom_catalogue_instances[];
extern const int loom_catalogue_instance_count;

/* Leniently by name, NULL (and loom_last_error with the nearest) when there is none. */
const loom_catalogue_instance *loom_catalogue_instance_find(const char *name);

/* What a device is called whose source does not name it. */
#define LOOM_NAMELESS_CHIP "GPU"

/* All unknown, called `name`. Every byte is set, so that equal chips are equal in memory. */
void loom_chip_blank(const char *name, loom_chip_class kind, loom_chip *chip);

#endif
