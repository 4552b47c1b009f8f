/* Opening weight files: one, several by an index, or whatever a folder holds. */
#include "checkpoint/safetensors_format.h"
#include "core/bf16.h"
#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* One mapped file. */
typedef struct part {
    char *name; /* inside the folder, as the index writes it */
    void *at;
    size_t bytes;
    loom_config *header;
} part;

struct loom_safetensors {
    part *parts;
    size_t n_parts;
    loom_tensor_view *views; /* by name */
    size_t count;
    loom_config *index; /* NULL: one file */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const loom_tensor_view *)a)->name, ((const loom_tensor_view *)b)->name);
}

static loom_status no_memory(const char *path)
{
    return loom_fail(LOOM_E_MEMORY, "%s: no memory to read it", path);
}

/* --- one file ------------------------------------------------------------------------------------------------------------- */

static loom_status map_descriptor(int file, const char *path, part *p)
{
    struct stat info;

    if (fstat(file, &info) < 0)
        return loom_fail(LOOM_E_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return loom_fail(LOOM_E_INVALID, "%s is no regular file", path);
    if (info.st_size == 0)
        return loom_fail(LOOM_E_INVALID, "%s is empty", path);
    p->bytes = (size_t)info.st_size;
    p->at = mmap(NULL, p->bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (p->at == MAP_FAILED) {
        p->at = NULL;
        return loom_fail(LOOM_E_IO, "%s: cannot map its %zu bytes: %s", path, p->bytes, strerror(errno));
    }
    return LOOM_OK;
}

/* Maps and checks one file; its views come by offset. */
static loom_status open_part(const char *path, part *p, loom_tensor_view **views, size_t *count)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);

    if (file < 0)
        return loom_fail(LOOM_E_IO, "%s: cannot open: %s", path, strerror(errno));
    loom_status status = map_descriptor(file, path, p);
    close(file);
    return status < 0 ? status : loom_safetensors_parse(path, p->at, p->bytes, &p->header, views, count);
}

static loom_status open_single(const char *path, loom_safetensors *s)
{
    s->parts = calloc(1, sizeof *s->parts);
    if (!s->parts)
        return no_memory(path);
    s->n_parts = 1;
    loom_status status = open_part(path, &s->parts[0], &s->views, &s->count);
    if (status == LOOM_OK)
        qsort(s->views, s->count, sizeof *s->views, by_name);
    return status;
}

/* --- several files ---------------------------------------------------------------------------------------------------------- */

/* The part called `name`, or a new one. NULL: no memory. */
static part *part_named(loom_safetensors *s, const char *name)
{
    for (size_t i = 0; i < s->n_parts; i++)
        if (!strcmp(s->parts[i].name, name))
            return &s->parts[i];
    part *more = realloc(s->parts, (s->n_parts + 1) * sizeof *more);
    if (!more)
        return NULL;
    s->parts = more;
    more[s->n_parts] = (part){.name = strdup(name)};
    return more[s->n_parts].name ? &more[s->n_parts++] : NULL;
}

enum { MOST_PARTS = 10000 };

/* Lists the files of the index; each lies beside it. */
static loom_status name_parts(const char *path, const loom_node *map, loom_safetensors *s)
{
    if (loom_node_get_kind(map) != LOOM_NODE_MAP)
        return loom_fail(LOOM_E_INVALID, "%s: no map \"weight_map\" from tensors to files", path);
    for (size_t i = 0; i < loom_node_count(map); i++) {
        const char *name = loom_node_text(loom_node_at(map, i));
        if (!name || !*name || strchr(name, '/') || s->n_parts > MOST_PARTS)
            return loom_fail(LOOM_E_INVALID, "%s:%d: weight_map wants the names of at most %d files beside the index", path, loom_node_line(loom_node_at(map, i)),
                             MOST_PARTS);
        if (!part_named(s, name))
            return no_memory(path);
    }
    return LOOM_OK;
}

/* Takes those views of a part that the index assigns to it. */
static void take_views(const loom_node *map, const part *p, const loom_tensor_view *views, size_t count, loom_safetensors *s)
{
    for (size_t i = 0; i < count; i++) {
        const char *where = loom_node_text(loom_node_get(map, views[i].name));
        if (where && !strcmp(where, p->name))
            s->views[s->count++] = views[i];
    }
}

static loom_status open_parts(const char *path, const loom_node *map, loom_safetensors *s)
{
    int folder = (int)(strrchr(path, '/') ? strrchr(path, '/') + 1 - path : 0);

    for (size_t i = 0; i < s->n_parts; i++) {
        part *p = &s->parts[i];
        loom_tensor_view *views = NULL;
        size_t count = 0;
        char *where;
        if (asprintf(&where, "%.*s%s", folder, path, p->name) < 0)
            return no_memory(path);
        loom_status status = open_part(where, p, &views, &count);
        free(where);
        if (status < 0)
            return status;
        take_views(map, p, views, count, s);
        free(views);
    }
    return LOOM_OK;
}

static loom_status check_promises(const char *path, const loom_node *map, const loom_safetensors *s)
{
    loom_text text = {0};
    size_t missing = loom_node_count(map) - s->count, shown = 0;

    for (size_t i = 0; i < loom_node_count(map) && missing && shown < 20; i++)
        if (!loom_safetensors_find(s, loom_node_key_at(map, i)))
            loom_text_add(&text, "%s%.100s (%.60s)", shown++ ? ", " : "", loom_node_key_at(map, i), loom_node_text(loom_node_at(map, i)));
    loom_status status = missing ? loom_fail(LOOM_E_INVALID, "%s: %zu tensors are not in the files it names: %s%s", path, missing, loom_text_so_far(&text),
                                             missing > shown ? ", …" : "")
                                 : LOOM_OK;
    loom_text_drop(&text);
    return status;
}

static loom_status read_index(const char *path, loom_config **index)
{
    size_t bytes;
    char *text;
    loom_status status = loom_file_read(path, LOOM_SAFETENSORS_HEADER_MAX, &text, &bytes);

    if (status < 0)
        return status;
    status = loom_safetensors_json(path, text, bytes, index);
    free(text);
    return status;
}

static loom_status open_index(const char *path, loom_safetensors *s)
{
    loom_status status = read_index(path, &s->index);

    if (status < 0)
        return status;
    const loom_node *map = loom_node_get(loom_config_root(s->index), "weight_map");
    status = name_parts(path, map, s);
    if (status < 0)
        return status;
    s->views = calloc(loom_node_count(map) + 1, sizeof *s->views);
    if (!s->views)
        return no_memory(path);
    status = open_parts(path, map, s);
    if (status < 0)
        return status;
    qsort(s->views, s->count, sizeof *s->views, by_name);
    return check_promises(path, map, s);
}

/* --- any path ---------------------------------------------------------------------------------------------------------------- */

static bool ends_in(const char *text, const char *ending)
{
    size_t n = strlen(text), m = strlen(ending);

    return n >= m && !strcmp(text + n - m, ending);
}

/* The only .safetensors file of `folder` into `name`; false when there is none or more than one. */
static bool only_file(const char *folder, char name[256])
{
    DIR *dir = opendir(folder);
    int found = 0;

    if (!dir)
        return false;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (ends_in(entry->d_name, ".safetensors") && !found++)
            snprintf(name, 256, "%s", entry->d_name);
    closedir(dir);
    return found == 1;
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

/* What to open in a folder; the caller frees *path. */
static loom_status file_of_folder(const char *folder, char **path)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    char only[256];

    for (size_t i = 0; i < 2; i++) {
        if (asprintf(path, "%s/%s", folder, names[i]) < 0)
            return no_memory(folder);
        if (is_there(*path))
            return LOOM_OK;
        free(*path);
    }
    if (!only_file(folder, only))
        return loom_fail(LOOM_E_INVALID, "%s holds neither model.safetensors nor its index, nor exactly one .safetensors file; name the file", folder);
    return asprintf(path, "%s/%s", folder, only) < 0 ? no_memory(folder) : LOOM_OK;
}

static loom_status open_file(const char *path, loom_safetensors *s)
{
    return ends_in(path, ".json") ? open_index(path, s) : open_single(path, s);
}

static loom_status open_any(const char *path, loom_safetensors *s)
{
    struct stat info;
    char *inside;

    if (stat(path, &info) < 0)
        return loom_fail(LOOM_E_IO, "%s: cannot open: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return open_file(path, s);
    loom_status status = file_of_folder(path, &inside);
    if (status < 0)
        return status;
    status = open_file(inside, s);
    free(inside);
    return status;
}

loom_status loom_safetensors_open(const char *path, loom_safetensors **file)
{
    loom_safetensors *s = calloc(1, sizeof *s);

    if (!s)
        return no_memory(path);
    loom_status status = open_any(path, s);
    if (status < 0)
        loom_safetensors_close(s);
    else
        *file = s;
    return status;
}

void loom_safetensors_close(loom_safetensors *file)
{
    if (!file)
        return;
    for (size_t i = 0; i < file->n_parts; i++) {
        loom_config_free(file->parts[i].header);
        if (file->parts[i].at)
            munmap(file->parts[i].at, file->parts[i].bytes);
        free(file->parts[i].name);
    }
    loom_config_free(file->index);
    free(file->parts);
    free(file->views);
    free(file);
}

/* --- questions ------------------------------------------------------------------------------------------------------------------ */

size_t loom_safetensors_count(const loom_safetensors *file)
{
    return file->count;
}

const loom_tensor_view *loom_safetensors_at(const loom_safetensors *file, size_t index)
{
    return index < file->count ? &file->views[index] : NULL;
}

const loom_tensor_view *loom_safetensors_find(const loom_safetensors *file, const char *name)
{
    const loom_tensor_view wanted = {.name = name};

    return file->count ? bsearch(&wanted, file->views, file->count, sizeof wanted, by_name) : NULL;
}

const char *loom_safetensors_metadata(const loom_safetensors *file, const char *key)
{
    const loom_node *metadata = file->index ? loom_node_get(loom_config_root(file->index), "metadata")
                                            : loom_node_get(loom_config_root(file->parts[0].header), "__metadata__");

    return loom_node_text(loom_node_get(metadata, key));
}

/* --- to f32; the data is not aligned ------------------------------------------------------------------------------------------ */

static void widen_f64(const char *from, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, from + 8 * i, sizeof value);
        out[i] = (float)value;
    }
}

static void widen_bf16(const char *from, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        out[i] = loom_bf16_widen(half);
    }
}

static void widen_f16(const char *from, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        out[i] = loom_f32_from_f16(half);
    }
}

static void widen_f8(const char *from, int64_t count, loom_dtype dtype, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = dtype == LOOM_F8E4M3 ? loom_f32_from_f8e4m3((uint8_t)from[i]) : loom_f32_from_f8e5m2((uint8_t)from[i]);
}

loom_status loom_tensor_to_f32(const loom_tensor_view *tensor, int64_t first, int64_t count, float *out)
{
    if (first < 0 || count < 0 || first > tensor->count || count > tensor->count - first)
        return loom_fail(LOOM_E_INVALID, "tensor %s has %lld elements; %lld from %lld on are not all there", tensor->name, (long long)tensor->count,
                         (long long)count, (long long)first);
    const char *from = (const char *)tensor->data + (size_t)first * loom_dtype_bytes(tensor->dtype);
    switch (tensor->dtype) {
    case LOOM_F32:
        if (count)
            memcpy(out, from, (size_t)count * sizeof *out);
        return LOOM_OK;
    case LOOM_F64:
        widen_f64(from, count, out);
        return LOOM_OK;
    case LOOM_BF16:
        widen_bf16(from, count, out);
        return LOOM_OK;
    case LOOM_F16:
        widen_f16(from, count, out);
        return LOOM_OK;
    case LOOM_F8E4M3:
    case LOOM_F8E5M2:
        widen_f8(from, count, tensor->dtype, out);
        return LOOM_OK;
    default:
        return loom_fail(LOOM_E_INVALID, "tensor %s has type %s, which is no floating type", tensor->name, tensor->type);
    }
}
