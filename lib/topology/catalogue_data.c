/* The figures of the catalogue, one row a part.
 *
 * Peaks are dense. link_gb_s is one direction, all links of a device together. Origins: peaks, memory and links are published by the
 * vendors (or as `origin` says); memory_gib is what PyTorch reports as total capacity, from public logs, and 0 where none was found; tf32,
 * power, host link and network share are general knowledge and typical rather than fixed. */
#include "topology/catalogue.h"

#define GPU LOOM_CHIP_GPU
#define TPU LOOM_CHIP_TPU
#define PUBLISHED "published; tf32, power, host link and network share: general knowledge"
#define GENERAL "general knowledge"

const loom_catalogue_chip loom_catalogue_chips[] = {
    /* name, key, forms, kind, 16-bit, 8-bit, 4-bit, tf32, GB, GiB seen, GB/s, link, GB/s, to a peer, domain, host, NIC Gbit/s, W, origin */
    {"V100-SXM2/3-32GB", "v100", "sxm sxm2 sxm3 sxm2/3 32gb", GPU, 125, 0, 0, 0, 32, 0, 900, "NVLink2", 150, 0, 8, 16, 100, 300, PUBLISHED "; 125 is fp16, there is no bf16"},
    {"V100-SXM2-16GB", "v100", "sxm2 16gb", GPU, 125, 0, 0, 0, 16, 0, 900, "NVLink2", 150, 0, 8, 16, 2.5, 300, PUBLISHED "; 125 is fp16, there is no bf16"},
    {"T4", "t4", "", GPU, 65, 0, 0, 0, 16, 0, 320, "PCIe", 16, 0, 1, 16, 12.5, 70, PUBLISHED "; 65 is fp16, 70 W holds real rates far below"},
    {"A100-SXM4-40GB", "a100", "sxm sxm4 40gb", GPU, 312, 0, 0, 156, 40, 0, 1555, "NVLink3", 300, 0, 8, 32, 200, 400, PUBLISHED},
    {"A100-SXM4-80GB", "a100", "sxm sxm4 80gb", GPU, 312, 0, 0, 156, 80, 79.2, 2039, "NVLink3", 300, 0, 8, 32, 200, 400, PUBLISHED},
    {"A100-PCIe-80GB", "a100", "pcie 80gb", GPU, 312, 0, 0, 156, 80, 79.2, 1935, "NVLink3 bridge", 300, 0, 1, 32, 100, 300, PUBLISHED "; pairs only, where a bridge is fitted"},
    {"A800-SXM4-80GB", "a800", "sxm sxm4 80gb", GPU, 312, 0, 0, 156, 80, 79.2, 2039, "NVLink3 (cut)", 200, 0, 8, 32, 200, 400, PUBLISHED},
    {"H100-SXM5-80GB", "h100", "sxm sxm5 hbm3 80gb", GPU, 989, 1979, 0, 495, 80, 79.2, 3350, "NVLink4", 450, 0, 8, 64, 400, 700, PUBLISHED},
    {"H800-SXM-80GB", "h800", "sxm sxm5 80gb", GPU, 989, 1979, 0, 495, 80, 79.2, 3350, "NVLink4 (cut)", 200, 0, 8, 64, 400, 700, PUBLISHED "; DeepSeek measures about 160 GB/s"},
    {"H200-SXM-141GB", "h200", "sxm sxm5 hbm3e 141gb", GPU, 989, 1979, 0, 495, 141, 139.8, 4800, "NVLink4", 450, 0, 8, 64, 400, 700, PUBLISHED},
    {"B200-SXM", "b200", "sxm hgx 180gb", GPU, 2250, 4500, 9000, 1125, 180, 178.35, 8000, "NVLink5", 900, 0, 8, 64, 400, 1000, PUBLISHED},
    {"GB200 NVL72", "gb200", "nvl72 186gb", GPU, 2500, 5000, 10000, 1250, 186, 184.31, 8000, "NVLink5", 900, 0, 72, 450, 400, 1200, PUBLISHED "; some vendor pages divide by 2450"},
    {"B300-SXM", "b300", "sxm hgx 288gb", GPU, 2250, 4500, 13500, 0, 288, 267.69, 8000, "NVLink5", 900, 0, 8, 128, 800, 1100, PUBLISHED},
    {"GB300 NVL72", "gb300", "nvl72 288gb", GPU, 2500, 5000, 15000, 0, 288, 276.5, 8000, "NVLink5", 900, 0, 72, 450, 800, 1400, PUBLISHED},
    {"GH200 96GB/144GB", "gh200", "96gb 144gb", GPU, 989, 1979, 0, 495, 96, 0, 4000, "NVLink4", 450, 0, 1, 450, 400, 1000, PUBLISHED "; HBM3e part 4.9 TB/s"},
    {"L40S", "l40s", "", GPU, 362, 733, 0, 183, 48, 0, 864, "PCIe", 32, 0, 1, 32, 50, 350, PUBLISHED},
    {"RTX 4090", "4090", "rtx", GPU, 165, 330, 0, 83, 24, 0, 1008, "PCIe", 32, 0, 1, 32, 25, 450, GENERAL "; 165 with fp32 accumulate, no peer-to-peer in the stock driver"},
    {"RTX PRO 6000 Blackwell Server", "6000", "rtx pro blackwell server", GPU, 0, 0, 0, 0, 96, 0, 1597, "PCIe", 64, 0, 1, 64, 400, 600, GENERAL "; dense peaks not collected"},
    {"MI250X", "mi250x", "", GPU, 383, 0, 0, 0, 128, 0, 3277, "xGMI", 350, 0, 8, 32, 200, 560, PUBLISHED "; a module: software sees two devices of 64 GB"},
    {"MI300X", "mi300x", "", GPU, 1307, 2615, 0, 654, 192, 191.7, 5300, "xGMI full mesh", 448, 64, 8, 64, 400, 750, PUBLISHED},
    {"MI325X", "mi325x", "", GPU, 1307, 2615, 0, 654, 256, 0, 6000, "xGMI full mesh", 448, 64, 8, 64, 400, 1000, PUBLISHED},
    {"MI355X", "mi355x", "", GPU, 2500, 5000, 10000, 0, 288, 0, 8000, "xGMI full mesh", 538, 76.8, 8, 64, 400, 1400, PUBLISHED},
    {"TPU v4", "v4", "tpu", TPU, 275, 0, 0, 0, 32, 0, 1200, "ICI 3D torus", 300, 50, 4096, 0, 0, 0, PUBLISHED},
    {"TPU v5e", "v5e", "tpu", TPU, 197, 0, 0, 0, 16, 0, 820, "ICI 2D torus", 200, 50, 256, 0, 0, 0, PUBLISHED},
    {"TPU v5p", "v5p", "tpu", TPU, 459, 0, 0, 0, 95, 0, 2765, "ICI 3D torus", 600, 100, 8960, 0, 0, 0, PUBLISHED},
    {"TPU v6e (Trillium)", "v6e", "tpu trillium", TPU, 918, 0, 0, 0, 32, 0, 1640, "ICI 2D torus", 448, 112, 256, 0, 0, 0, PUBLISHED},
    {"TPU v7x (Ironwood)", "v7x", "tpu ironwood", TPU, 2307, 4614, 0, 0, 192, 0, 7370, "ICI 3D torus", 600, 100, 9216, 0, 0, 0, PUBLISHED},
};
const int loom_catalogue_chip_count = sizeof loom_catalogue_chips / sizeof *loom_catalogue_chips;

/* Machine types, from their vendors' pages: devices, NVLink domain, network cards that serve the devices. */
const loom_catalogue_instance loom_catalogue_instances[] = {
    /* name, other names, chip, devices, domain, NICs, Gbit/s each, NUMA nodes */
    {"dgx-1", "dgx1", "V100-SXM2/3-32GB", 8, 8, 4, 100, 2},
    {"dgx-2", "dgx2", "V100-SXM2/3-32GB", 16, 16, 8, 100, 2},
    {"dgx-a100-40g", "", "A100-SXM4-40GB", 8, 8, 8, 200, 8},
    {"dgx-a100", "dgx-a100-80g hgx-a100", "A100-SXM4-80GB", 8, 8, 8, 200, 8},
    {"dgx-h100", "hgx-h100", "H100-SXM5-80GB", 8, 8, 8, 400, 2},
    {"dgx-h200", "hgx-h200", "H200-SXM-141GB", 8, 8, 8, 400, 2},
    {"hgx-h800", "dgx-h800", "H800-SXM-80GB", 8, 8, 8, 400, 2},
    {"dgx-b200", "hgx-b200", "B200-SXM", 8, 8, 8, 400, 2},
    {"dgx-b300", "hgx-b300", "B300-SXM", 8, 8, 8, 800, 2},
    {"gb200-nvl72", "nvl72 dgx-gb200", "GB200 NVL72", 4, 72, 4, 400, 2},
    {"gb300-nvl72", "dgx-gb300", "GB300 NVL72", 4, 72, 4, 800, 2},
    {"p3.16xlarge", "", "V100-SXM2-16GB", 8, 8, 1, 25, 2},
    {"p3dn.24xlarge", "", "V100-SXM2/3-32GB", 8, 8, 1, 100, 2},
    {"p4d.24xlarge", "p4d", "A100-SXM4-40GB", 8, 8, 4, 100, 2},
    {"p4de.24xlarge", "p4de", "A100-SXM4-80GB", 8, 8, 4, 100, 2},
    {"p5.48xlarge", "p5", "H100-SXM5-80GB", 8, 8, 32, 100, 2},
    {"p5e.48xlarge", "p5e", "H200-SXM-141GB", 8, 8, 32, 100, 2},
    {"p5en.48xlarge", "p5en", "H200-SXM-141GB", 8, 8, 16, 200, 2},
    {"p6-b200.48xlarge", "p6-b200", "B200-SXM", 8, 8, 8, 400, 2},
    {"g4dn.12xlarge", "", "T4", 4, 1, 1, 50, 1},
    {"g4dn.metal", "", "T4", 8, 1, 1, 100, 2},
    {"g6e.48xlarge", "", "L40S", 8, 1, 4, 100, 2},
    {"a2-highgpu-8g", "", "A100-SXM4-40GB", 8, 8, 1, 100, 2},
    {"a2-megagpu-16g", "", "A100-SXM4-40GB", 16, 16, 1, 100, 2},
    {"a2-ultragpu-8g", "", "A100-SXM4-80GB", 8, 8, 1, 100, 2},
    {"a3-highgpu-8g", "a3-high", "H100-SXM5-80GB", 8, 8, 4, 200, 2},
    {"a3-megagpu-8g", "a3-mega", "H100-SXM5-80GB", 8, 8, 8, 200, 2},
    {"a3-ultragpu-8g", "a3-ultra", "H200-SXM-141GB", 8, 8, 8, 400, 2},
    {"a4-highgpu-8g", "a4-high", "B200-SXM", 8, 8, 8, 400, 2},
    {"nd96asr_v4", "standard_nd96asr_v4 nd-a100-v4", "A100-SXM4-40GB", 8, 8, 8, 200, 4},
    {"nd96amsr_a100_v4", "standard_nd96amsr_a100_v4 ndm-a100-v4", "A100-SXM4-80GB", 8, 8, 8, 200, 4},
    {"nd96isr_h100_v5", "standard_nd96isr_h100_v5 nd-h100-v5", "H100-SXM5-80GB", 8, 8, 8, 400, 2},
    {"nd96isr_h200_v5", "standard_nd96isr_h200_v5 nd-h200-v5", "H200-SXM-141GB", 8, 8, 8, 400, 2},
    {"nd96isr_mi300x_v5", "standard_nd96isr_mi300x_v5 nd-mi300x-v5", "MI300X", 8, 8, 8, 400, 2},
    {"bm.gpu.a100-v2.8", "", "A100-SXM4-80GB", 8, 8, 16, 100, 8},
    {"bm.gpu.h100.8", "", "H100-SXM5-80GB", 8, 8, 8, 400, 2},
};
const int loom_catalogue_instance_count = sizeof loom_catalogue_instances / sizeof *loom_catalogue_instances;
