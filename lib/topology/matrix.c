/* The matrix of `nvidia-smi topo -m`: how the devices of one host are joined. */
#include "topology/exact.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 512, MAX_CELLS = LOOM_MAX_NODE_DEVICES + 8, CELL_BYTES = 48 };

/* One line cut into cells. nvidia-smi puts tabs between them, copies of its output often only spaces. */
typedef struct table_line {
    char cell[MAX_CELLS][CELL_BYTES];
    int count;
} table_line;

bool loom_wire_read(const char *text, loom_wire *wire)
{
    int links = 0, used = 0;

    if (sscanf(text, "NV%3d%n", &links, &used) == 1 && text[used] == '\0' && links > 0 && links < 256) {
        *wire = (loom_wire){LOOM_PATH_NVLINK, (uint8_t)links};
        return true;
    }
    if (strcmp(text, "SOC") == 0) /* what old drivers call SYS */
        text = "SYS";
    for (int path = 0; loom_path_names[path]; path++)
        if (path != LOOM_PATH_NVLINK && strcmp(text, loom_path_names[path]) == 0) {
            *wire = (loom_wire){(uint8_t)path, 0};
            return true;
        }
    return false;
}

/* Length of a terminal's underline sequence at `at`, "\033[4m", which nvidia-smi puts around its header; 0 when there is none. */
static size_t escape_length(const char *at, const char *end)
{
    size_t length = 0;

    if (*at != '\033')
        return 0;
    while (at + length < end && at[length] != 'm' && at[length] != '\n')
        length++;
    return at + length < end && at[length] == 'm' ? length + 1 : length;
}

static const char *cut_line(const char *at, const char *end, table_line *line)
{
    line->count = 0;
    while (at < end && *at != '\n') {
        size_t length = 0;
        while (at + length < end && !isspace((unsigned char)at[length]) && at[length] != '\033')
            length++;
        if (length == 0) {
            at += *at == '\033' ? escape_length(at, end) : 1;
            continue;
        }
        if (line->count < MAX_CELLS)
            snprintf(line->cell[line->count++], CELL_BYTES, "%.*s", (int)length, at);
        at += length;
    }
    return at < end ? at + 1 : end;
}

static bool is_device(const char *cell)
{
    return strncmp(cell, "GPU", 3) == 0 && isdigit((unsigned char)cell[3]);
}

static bool is_nic(const char *cell)
{
    return (strncmp(cell, "NIC", 3) == 0 && isdigit((unsigned char)cell[3])) || strncmp(cell, "mlx", 3) == 0;
}

bool loom_looks_like_matrix(const char *text, size_t bytes)
{
    const char *end = text + bytes;

    while (text < end && (isspace((unsigned char)*text) || *text == '\033'))
        text += *text == '\033' ? escape_length(text, end) : 1;
    return end - text > 4 && is_device(text);
}

/* NUMA affinity is a column of its own after the CPU list; "N/A" or a range is unknown. Its place is told by the header's last words. */
static int numa_of(const table_line *header, int columns, const table_line *row)
{
    int after = 0; /* words of the header before NUMA that stand for one cell: "CPU Affinity" */
    char *end;

    for (int i = columns; i + 1 < header->count; i++) {
        if (strcmp(header->cell[i + 1], "Affinity") != 0)
            continue;
        if (strcmp(header->cell[i], "NUMA") == 0) {
            int at = 1 + columns + after;
            if (at >= row->count)
                return -1;
            long value = strtol(row->cell[at], &end, 10);
            return end != row->cell[at] && *end == '\0' && value >= 0 && value < LOOM_MAX_NODE_DEVICES ? (int)value : -1;
        }
        after++;
    }
    return -1;
}

void loom_group_by_nvlink(const loom_wire *wires, int devices, int *group)
{
    for (int i = 0; i < devices; i++)
        group[i] = i;
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < devices; i++)
            for (int j = 0; j < devices; j++)
                if (wires[i * devices + j].path == LOOM_PATH_NVLINK && group[j] > group[i]) {
                    group[j] = group[i];
                    changed = true;
                }
    }
}

/* Cards without NUMA numbers are near by the wire: the nearest path wins. */
static void nics_by_wire(const table_line *header, const table_line *row, int columns, loom_host_shape *shape, int device)
{
    int best = -1, nic = 0;
    loom_path best_path = LOOM_PATH_UNKNOWN;

    for (int c = 0; c < columns && c + 1 < row->count; c++) {
        loom_wire wire;
        if (!is_nic(header->cell[c]))
            continue;
        if (loom_wire_read(row->cell[c + 1], &wire) && wire.path < best_path) {
            best_path = (loom_path)wire.path;
            best = nic;
        }
        nic++;
    }
    shape->device_nic[device] = best;
    shape->nics = nic;
}

static loom_status read_row(const char *source, const table_line *header, int columns, int devices, const table_line *row,
                            loom_host_shape *shape, loom_wire *wires, int device)
{
    if (row->count < columns + 1)
        return loom_fail(LOOM_E_INVALID, "%s: the row of %s has %d entries, expected %d", source, row->cell[0], row->count - 1, columns);
    for (int c = 0, at = 0; c < columns; c++) {
        if (!is_device(header->cell[c]))
            continue;
        if (!loom_wire_read(row->cell[c + 1], &wires[device * devices + at]))
            return loom_fail(LOOM_E_INVALID, "%s: %s to %s is \"%s\": expected X, NV#, PIX, PXB, PHB, NODE or SYS", source, row->cell[0],
                             header->cell[c], row->cell[c + 1]);
        at++;
    }
    nics_by_wire(header, row, columns, shape, device);
    shape->device_numa[device] = numa_of(header, columns, row);
    return LOOM_OK;
}

static loom_status check_symmetric(const char *source, const loom_wire *wires, int devices)
{
    for (int i = 0; i < devices; i++)
        for (int j = 0; j < devices; j++)
            if ((wires[i * devices + j].path == LOOM_PATH_SELF) != (i == j) ||
                memcmp(&wires[i * devices + j], &wires[j * devices + i], sizeof *wires) != 0)
                return loom_fail(LOOM_E_INVALID, "%s: the matrix is not symmetric at GPU%d, GPU%d", source, i, j);
    return LOOM_OK;
}

static loom_status read_rows(const char *source, const char *at, const char *end, table_line *header, table_line *row,
                             loom_host_shape *shape, loom_wire **wires)
{
    int columns = 0, devices = 0, rows = 0;

    while (columns < header->count && (is_device(header->cell[columns]) || is_nic(header->cell[columns])))
        devices += is_device(header->cell[columns++]);
    if (devices > LOOM_MAX_NODE_DEVICES)
        return loom_fail(LOOM_E_INVALID, "%s: %d devices in one host, at most %d", source, devices, LOOM_MAX_NODE_DEVICES);
    *wires = calloc((size_t)devices * (size_t)devices, sizeof **wires);
    if (!*wires)
        return loom_fail(LOOM_E_MEMORY, "%s: no memory for a matrix of %d devices", source, devices);
    while (at < end && rows < devices) {
        at = cut_line(at, end, row);
        if (row->count == 0 || !is_device(row->cell[0]))
            continue;
        loom_status status = read_row(source, header, columns, devices, row, shape, *wires, rows++);
        if (status < 0)
            return status;
    }
    if (rows < devices)
        return loom_fail(LOOM_E_INVALID, "%s: %d rows for %d devices", source, rows, devices);
    shape->devices = devices;
    return check_symmetric(source, *wires, devices);
}

loom_status loom_matrix_read(const char *source, const char *text, size_t bytes, loom_host_shape *shape, loom_wire **wires)
{
    table_line *lines = calloc(2, sizeof *lines);
    const char *end = text + bytes;
    loom_status status;

    *wires = NULL;
    if (!lines)
        return loom_fail(LOOM_E_MEMORY, "%s: no memory for a line", source);
    do {
        text = cut_line(text, end, &lines[0]);
    } while (text < end && lines[0].count == 0);
    if (lines[0].count == 0 || !is_device(lines[0].cell[0]))
        status = loom_fail(LOOM_E_INVALID, "%s: a link matrix begins with GPU0 GPU1 …", source);
    else
        status = read_rows(source, text, end, &lines[0], &lines[1], shape, wires);
    if (status == LOOM_OK) {
        loom_group_by_nvlink(*wires, shape->devices, shape->group);
        shape->wires = *wires;
    }
    free(lines);
    return status;
}
