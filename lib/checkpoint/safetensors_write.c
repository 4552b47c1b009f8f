/* Writing weight files: the headers follow from the specs, then the data streams through. */
#include "checkpoint/safetensors_format.h"
#include "core/bf16.h"
#include "core/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file of the set: tensors [first, end) of the specs. */
typedef struct part {
    size_t first, end;
    uint64_t bytes; /* of tensors */
    loom_file_writer *file;
} part;

/* What is kept of a spec. */
typedef struct entry {
    char *name;
    loom_dtype dtype;
    int dims;
    int64_t shape[LOOM_TENSOR_DIMS];
    uint64_t bytes;
} entry;

struct loom_safetensors_writer {
    char *path, *stem; /* "DIR/NAME.safetensors", "DIR/NAME" */
    entry *entries;
    size_t count;
    part *parts;
    size_t n_parts;
    loom_text metadata; /* "\"key\": \"value\", …" */
    size_t part, tensor; /* where the stream stands */
    uint64_t written;    /* bytes of that tensor */
    loom_status status;  /* of the first failure: later writes repeat it */
};

static loom_status no_memory(const char *path)
{
    return loom_fail(LOOM_E_MEMORY, "%s: no memory to write it", path);
}

/* --- what is to be written --------------------------------------------------------------------------------------------------- */

static loom_status take_spec(const char *path, const loom_tensor_spec *spec, entry *e)
{
    int64_t count = 1;

    if (!spec->name || !*spec->name || !strcmp(spec->name, "__metadata__"))
        return loom_fail(LOOM_E_INVALID, "%s: a tensor needs a name other than __metadata__", path);
    if (!loom_safetensors_type(spec->dtype) || spec->dims < 0 || spec->dims > LOOM_TENSOR_DIMS)
        return loom_fail(LOOM_E_INVALID, "%s: tensor %s: type %s with %d dimensions cannot be written", path, spec->name, loom_dtype_name(spec->dtype), spec->dims);
    for (int d = 0; d < spec->dims; d++)
        if (spec->shape[d] < 0 || __builtin_mul_overflow(count, spec->shape[d], &count))
            return loom_fail(LOOM_E_INVALID, "%s: tensor %s: no size follows from its shape", path, spec->name);
    if (__builtin_mul_overflow((uint64_t)count, loom_dtype_bytes(spec->dtype), &e->bytes) || e->bytes > INT64_MAX)
        return loom_fail(LOOM_E_INVALID, "%s: tensor %s: no size follows from its shape", path, spec->name);
    e->name = strdup(spec->name);
    e->dtype = spec->dtype;
    e->dims = spec->dims;
    memcpy(e->shape, spec->shape, sizeof e->shape);
    return e->name ? LOOM_OK : no_memory(path);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static loom_status refuse_duplicates(const loom_safetensors_writer *w)
{
    const char **names = calloc(w->count + 1, sizeof *names);
    loom_status status = LOOM_OK;

    if (!names)
        return no_memory(w->path);
    for (size_t i = 0; i < w->count; i++)
        names[i] = w->entries[i].name;
    qsort(names, w->count, sizeof *names, by_text);
    for (size_t i = 1; i < w->count && status == LOOM_OK; i++)
        if (!strcmp(names[i - 1], names[i]))
            status = loom_fail(LOOM_E_INVALID, "%s: two tensors are called %s", w->path, names[i]);
    free(names);
    return status;
}

static void take_metadata(loom_safetensors_writer *w, const loom_metadata *metadata, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        loom_text_add(&w->metadata, "%s", i ? "," : "");
        loom_text_add_json(&w->metadata, metadata[i].key);
        loom_text_add(&w->metadata, ":");
        loom_text_add_json(&w->metadata, metadata[i].value);
    }
}

/* Bytes of a tensor's entry in the header at most: its name escaped, and room for numbers of 20 digits. */
static size_t most_header_bytes(const entry *e)
{
    return 6 * strlen(e->name) + 21 * (size_t)e->dims + 120;
}

/* Cuts the specs into files. A tensor is never cut, so a file may be larger than `most_bytes` when one tensor is. */
static loom_status plan_parts(loom_safetensors_writer *w, uint64_t most_bytes)
{
    size_t header = w->metadata.length;

    w->parts = calloc(w->count + 1, sizeof *w->parts);
    if (!w->parts)
        return no_memory(w->path);
    w->n_parts = 1;
    for (size_t i = 0; i < w->count; i++) {
        part *p = &w->parts[w->n_parts - 1];
        size_t more = most_header_bytes(&w->entries[i]);
        bool full = (most_bytes && p->bytes + w->entries[i].bytes > most_bytes) || header + more > LOOM_SAFETENSORS_HEADER_MAX - 1000;
        if (full && p->end > p->first) {
            header = w->metadata.length;
            p = &w->parts[w->n_parts++];
            p->first = p->end = i;
        }
        header += more;
        p->bytes += w->entries[i].bytes;
        p->end = i + 1;
    }
    return LOOM_OK;
}

/* --- files --------------------------------------------------------------------------------------------------------------------- */

static void add_tensor(loom_text *header, const entry *e, uint64_t offset)
{
    loom_text_add_json(header, e->name);
    loom_text_add(header, ":{\"dtype\":\"%s\",\"shape\":[", loom_safetensors_type(e->dtype));
    for (int d = 0; d < e->dims; d++)
        loom_text_add(header, "%s%lld", d ? "," : "", (long long)e->shape[d]);
    loom_text_add(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)offset, (unsigned long long)(offset + e->bytes));
}

/* The length field and the header, padded with spaces so that the data begins at a multiple of 8. */
static loom_status write_header(loom_safetensors_writer *w, const part *p)
{
    loom_text header = {0};
    uint64_t offset = 0;

    loom_text_add(&header, "{");
    if (w->metadata.length)
        loom_text_add(&header, "\"__metadata__\":{%s}%s", loom_text_so_far(&w->metadata), p->end > p->first ? "," : "");
    for (size_t i = p->first; i < p->end; i++) {
        loom_text_add(&header, "%s", i > p->first ? "," : "");
        add_tensor(&header, &w->entries[i], offset);
        offset += w->entries[i].bytes;
    }
    loom_text_add(&header, "}");
    while (header.length % 8 && !header.failed)
        loom_text_add(&header, " ");
    uint64_t length = header.length;
    loom_status status = header.failed ? no_memory(w->path) : loom_file_write(p->file, &length, sizeof length);
    if (status == LOOM_OK)
        status = loom_file_write(p->file, header.at, header.length);
    loom_text_drop(&header);
    return status;
}

static int part_path(const loom_safetensors_writer *w, size_t i, const char *stem, char **path)
{
    return w->n_parts == 1 ? asprintf(path, "%s.safetensors", stem) : asprintf(path, "%s-%05zu-of-%05zu.safetensors", stem, i + 1, w->n_parts);
}

static loom_status begin_part(loom_safetensors_writer *w)
{
    part *p = &w->parts[w->part];
    char *path;

    if (part_path(w, w->part, w->stem, &path) < 0)
        return no_memory(w->path);
    loom_status status = loom_file_create(path, &p->file);
    free(path);
    return status < 0 ? status : write_header(w, p);
}

/* Steps over finished and empty tensors, and into the next file behind the last tensor of one. */
static loom_status advance(loom_safetensors_writer *w)
{
    while (w->tensor < w->count && w->written == w->entries[w->tensor].bytes) {
        w->tensor++;
        w->written = 0;
        if (w->tensor == w->parts[w->part].end && w->tensor < w->count) {
            w->part++;
            loom_status status = begin_part(w);
            if (status < 0)
                return status;
        }
    }
    return LOOM_OK;
}

static loom_status start(loom_safetensors_writer *w, const char *path, const loom_tensor_spec *tensors, size_t count, const loom_metadata *metadata,
                         size_t n_metadata, uint64_t most_bytes)
{
    static const char ending[] = ".safetensors";
    size_t length = strlen(path), cut = sizeof ending - 1;
    loom_status status = LOOM_OK;

    if (length <= cut || strcmp(path + length - cut, ending))
        return loom_fail(LOOM_E_INVALID, "%s: a weight file is called NAME.safetensors", path);
    w->path = strdup(path);
    w->stem = strndup(path, length - cut);
    w->entries = calloc(count + 1, sizeof *w->entries);
    if (!w->path || !w->stem || !w->entries)
        return no_memory(path);
    for (; w->count < count && status == LOOM_OK; w->count++)
        status = take_spec(path, &tensors[w->count], &w->entries[w->count]);
    if (status < 0)
        return status;
    take_metadata(w, metadata, n_metadata);
    if (w->metadata.failed)
        return no_memory(path);
    if (w->metadata.length > LOOM_SAFETENSORS_HEADER_MAX / 2)
        return loom_fail(LOOM_E_INVALID, "%s: %zu bytes of metadata", path, w->metadata.length);
    if ((status = refuse_duplicates(w)) < 0 || (status = plan_parts(w, most_bytes)) < 0 || (status = begin_part(w)) < 0)
        return status;
    return advance(w);
}

loom_status loom_safetensors_create(const char *path, const loom_tensor_spec *tensors, size_t count, const loom_metadata *metadata, size_t n_metadata,
                                    uint64_t most_bytes, loom_safetensors_writer **writer)
{
    loom_safetensors_writer *w = calloc(1, sizeof *w);

    if (!w)
        return no_memory(path);
    loom_status status = start(w, path, tensors, count, metadata, n_metadata, most_bytes);
    if (status < 0)
        loom_safetensors_abandon(w);
    else
        *writer = w;
    return status;
}

/* --- the stream ------------------------------------------------------------------------------------------------------------------- */

loom_status loom_safetensors_write(loom_safetensors_writer *w, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes && w->status == LOOM_OK) {
        if (w->tensor == w->count)
            return w->status = loom_fail(LOOM_E_INVALID, "%s: %zu bytes more than its tensors have", w->path, bytes);
        uint64_t left = w->entries[w->tensor].bytes - w->written;
        size_t now = bytes < left ? bytes : (size_t)left;
        w->status = loom_file_write(w->parts[w->part].file, at, now);
        if (w->status < 0)
            break;
        w->written += now;
        at += now;
        bytes -= now;
        w->status = advance(w);
    }
    return w->status;
}

static void narrow(const float *values, size_t count, loom_dtype dtype, void *out)
{
    uint16_t *halves = out;
    uint8_t *bytes = out;
    double *doubles = out;

    for (size_t i = 0; dtype == LOOM_BF16 && i < count; i++)
        halves[i] = loom_bf16_round(values[i]);
    for (size_t i = 0; dtype == LOOM_F16 && i < count; i++)
        halves[i] = loom_f16_from_f32(values[i]);
    for (size_t i = 0; dtype == LOOM_F8E4M3 && i < count; i++)
        bytes[i] = loom_f8e4m3_from_f32(values[i]);
    for (size_t i = 0; dtype == LOOM_F8E5M2 && i < count; i++)
        bytes[i] = loom_f8e5m2_from_f32(values[i]);
    for (size_t i = 0; dtype == LOOM_F64 && i < count; i++)
        doubles[i] = values[i];
}

loom_status loom_safetensors_write_f32(loom_safetensors_writer *w, const float *values, size_t count)
{
    enum { AT_ONCE = 4096 };
    double converted[AT_ONCE];
    const entry *e = w->tensor < w->count ? &w->entries[w->tensor] : NULL;

    if (w->status < 0 || count == 0)
        return w->status;
    size_t size = e ? loom_dtype_bytes(e->dtype) : 1;
    if (!e || (e->bytes - w->written) / size < count || w->written % size)
        return w->status = loom_fail(LOOM_E_INVALID, "%s: %zu values run over the end of tensor %s", w->path, count, e ? e->name : "(none is left)");
    if (e->dtype == LOOM_F32)
        return loom_safetensors_write(w, values, count * sizeof *values);
    if (e->dtype != LOOM_F64 && e->dtype != LOOM_BF16 && e->dtype != LOOM_F16 && e->dtype != LOOM_F8E4M3 && e->dtype != LOOM_F8E5M2)
        return w->status = loom_fail(LOOM_E_INVALID, "%s: tensor %s has no floating type", w->path, e->name);
    for (loom_dtype dtype = e->dtype; count && w->status == LOOM_OK;) {
        size_t now = count < AT_ONCE ? count : AT_ONCE;
        narrow(values, now, dtype, converted);
        loom_safetensors_write(w, converted, now * size);
        values += now;
        count -= now;
    }
    return w->status;
}

/* --- the end -------------------------------------------------------------------------------------------------------------------------- */

static loom_status write_index(const loom_safetensors_writer *w)
{
    const char *slash = strrchr(w->stem, '/');
    loom_text text = {0};
    uint64_t total = 0;
    char *path = NULL, *name = NULL;

    for (size_t i = 0; i < w->count; i++)
        total += w->entries[i].bytes;
    loom_text_add(&text, "{\n  \"metadata\": {%s%s\"total_size\": %llu},\n  \"weight_map\": {", loom_text_so_far(&w->metadata), w->metadata.length ? ", " : "",
                  (unsigned long long)total);
    for (size_t p = 0; p < w->n_parts && !text.failed; p++) {
        text.failed |= part_path(w, p, slash ? slash + 1 : w->stem, &name) < 0;
        for (size_t i = w->parts[p].first; i < w->parts[p].end && !text.failed; i++) {
            loom_text_add(&text, "%s\n    ", i ? "," : "");
            loom_text_add_json(&text, w->entries[i].name);
            loom_text_add(&text, ": ");
            loom_text_add_json(&text, name);
        }
        free(name);
        name = NULL;
    }
    loom_text_add(&text, "\n  }\n}\n");
    if (asprintf(&path, "%s.safetensors.index.json", w->stem) < 0)
        path = NULL;
    loom_status status = text.failed || !path ? no_memory(w->path) : loom_file_replace(path, text.at, text.length);
    free(path);
    loom_text_drop(&text);
    return status;
}

/* What an earlier save in the other form left would be loaded in place of this one. */
static void remove_other_form(const loom_safetensors_writer *w)
{
    char *index;

    if (w->n_parts > 1) {
        unlink(w->path);
    } else if (asprintf(&index, "%s.safetensors.index.json", w->stem) >= 0) {
        unlink(index);
        free(index);
    }
}

loom_status loom_safetensors_commit(loom_safetensors_writer *w)
{
    loom_status status = w->status;

    if (status == LOOM_OK && w->tensor < w->count)
        status = loom_fail(LOOM_E_INVALID, "%s: tensor %s has %llu of its %llu bytes", w->path, w->entries[w->tensor].name, (unsigned long long)w->written,
                           (unsigned long long)w->entries[w->tensor].bytes);
    for (size_t i = 0; i < w->n_parts && status == LOOM_OK; i++) {
        loom_file_writer *file = w->parts[i].file;
        w->parts[i].file = NULL; /* commit frees it */
        status = loom_file_commit(file);
    }
    if (status == LOOM_OK && w->n_parts > 1)
        status = write_index(w);
    if (status == LOOM_OK)
        remove_other_form(w);
    loom_safetensors_abandon(w);
    return status;
}

void loom_safetensors_abandon(loom_safetensors_writer *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_parts; i++)
        loom_file_abandon(w->parts[i].file);
    for (size_t i = 0; w->entries && i < w->count; i++)
        free(w->entries[i].name);
    loom_text_drop(&w->metadata);
    free(w->parts);
    free(w->entries);
    free(w->path);
    free(w->stem);
    free(w);
}
