/* Checking a safetensors image: every rule, before any tensor is used. */
#include "checkpoint/safetensors_format.h"
#include "core/node.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are handed out as they lie in the file, which is little-endian"
#endif

static const struct {
    const char *name;
    int bits;
    loom_dtype dtype;
} types[] = {
    {"F32", 32, LOOM_F32},       {"BF16", 16, LOOM_BF16},     {"F16", 16, LOOM_F16},        {"F64", 64, LOOM_F64},       {"F8_E4M3", 8, LOOM_F8E4M3},
    {"F8_E5M2", 8, LOOM_F8E5M2}, {"I8", 8, LOOM_I8},          {"U8", 8, LOOM_U8},           {"U16", 16, LOOM_U16},       {"I32", 32, LOOM_I32},
    {"I64", 64, LOOM_I64},       {"BOOL", 8, LOOM_DTYPE_COUNT}, {"I16", 16, LOOM_DTYPE_COUNT}, {"U32", 32, LOOM_DTYPE_COUNT}, {"U64", 64, LOOM_DTYPE_COUNT},
    {"F4", 4, LOOM_DTYPE_COUNT}, {"F6_E2M3", 6, LOOM_DTYPE_COUNT}, {"F6_E3M2", 6, LOOM_DTYPE_COUNT}, {"F8_E8M0", 8, LOOM_DTYPE_COUNT}, {"C64", 64, LOOM_DTYPE_COUNT},
};

const char *loom_safetensors_type(loom_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].dtype == dtype && dtype != LOOM_DTYPE_COUNT)
            return types[i].name;
    return NULL;
}

int loom_safetensors_type_bits(const char *type, loom_dtype *dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (!strcmp(types[i].name, type)) {
            *dtype = types[i].dtype;
            return types[i].bits;
        }
    return 0;
}

loom_status loom_safetensors_json(const char *name, const char *text, size_t bytes, loom_config **config)
{
    static const loom_limits limits = {.bytes = LOOM_SAFETENSORS_HEADER_MAX, .depth = 8, .nodes = 8000000};

    return loom_json_parse(name, text, bytes, &limits, config);
}

/* --- the first bytes ---------------------------------------------------------------------------------------------------- */

/* What a file that is no safetensors is instead, or NULL. */
static const char *other_format(const char *at, size_t bytes)
{
    static const struct {
        const char *start;
        size_t length;
        const char *what;
    } formats[] = {
        {"version https://", 16, "a Git LFS pointer; the weights themselves were not fetched (git lfs pull)"},
        {"PK\x03\x04", 4, "a zip archive, as torch.save() writes them; convert it to safetensors"},
        {"\x80\x02", 2, "a Python pickle; convert it to safetensors"},
        {"GGUF", 4, "a GGUF file; take the safetensors of the model"},
        {"\x89HDF", 4, "an HDF5 file; convert it to safetensors"},
        {"<!DOCTYPE", 9, "a web page; the download went wrong"},
    };

    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (bytes >= formats[i].length && !memcmp(at, formats[i].start, formats[i].length))
            return formats[i].what;
    return NULL;
}

/* Length of the header, checked against the file before anything is allocated. What another format begins with may also be a length, so that is looked at
 * only when it cannot be one. */
static loom_status header_length(const char *name, const char *at, size_t bytes, size_t *length)
{
    const char *other = other_format(at, bytes);
    uint64_t field = 0;

    if (bytes < LOOM_SAFETENSORS_LENGTH)
        return loom_fail(LOOM_E_INVALID, "%s has %zu bytes: a safetensors file begins with 8 bytes of header length", name, bytes);
    memcpy(&field, at, sizeof field);
    bool inside = field <= bytes - LOOM_SAFETENSORS_LENGTH;
    if (inside && field > 0 && field <= LOOM_SAFETENSORS_HEADER_MAX && at[LOOM_SAFETENSORS_LENGTH] == '{') {
        *length = (size_t)field;
        return LOOM_OK;
    }
    if (other)
        return loom_fail(LOOM_E_INVALID, "%s is %s", name, other);
    if (field > LOOM_SAFETENSORS_HEADER_MAX)
        return loom_fail(LOOM_E_INVALID, "%s: the header length %llu is above 100000000, the most that the format allows%s", name, (unsigned long long)field,
                         inside ? "" : ", and beyond the file");
    if (!inside)
        return loom_fail(LOOM_E_INVALID, "%s: the header length %llu goes beyond the file of %zu bytes: cut off, or no safetensors file", name,
                         (unsigned long long)field, bytes);
    return loom_fail(LOOM_E_INVALID, "%s: the header does not begin with '{': no safetensors file", name);
}

/* --- one tensor ------------------------------------------------------------------------------------------------------------ */

/* What is wrong with the tensors of a file, in lines. */
typedef struct faults {
    const char *file;
    loom_text lines;
    int count;
} faults;

enum { FAULTS_SHOWN = 50 };

static void fault(faults *f, const char *tensor, const char *format, ...) LOOM_PRINTF(3, 4);
static void fault(faults *f, const char *tensor, const char *format, ...)
{
    char what[256];
    va_list arguments;

    if (f->count++ >= FAULTS_SHOWN)
        return;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    loom_text_add(&f->lines, "%s%s: ", f->lines.length ? "\n" : "", f->file);
    if (tensor) {
        loom_text_add(&f->lines, "tensor ");
        loom_text_add_shown(&f->lines, tensor);
        loom_text_add(&f->lines, ": ");
    }
    loom_text_add(&f->lines, "%s", what);
}

static loom_status faults_finish(faults *f)
{
    loom_status status = LOOM_OK;

    if (f->count > FAULTS_SHOWN)
        loom_text_add(&f->lines, "\nand %d more", f->count - FAULTS_SHOWN);
    if (f->count)
        status = f->lines.failed ? loom_fail(LOOM_E_MEMORY, "%s: no memory to say what is wrong", f->file)
                                 : loom_fail(LOOM_E_INVALID, "%s", loom_text_so_far(&f->lines));
    loom_text_drop(&f->lines);
    return status;
}

/* Reads "shape"; *count becomes the product. A dimension may be 0. */
static bool read_shape(faults *f, const loom_node *node, loom_tensor_view *view)
{
    size_t dims = loom_node_count(node);

    if (loom_node_get_kind(node) != LOOM_NODE_LIST || dims > LOOM_TENSOR_DIMS) {
        fault(f, view->name, "shape must be a list of at most %d numbers", LOOM_TENSOR_DIMS);
        return false;
    }
    view->dims = (int)dims;
    view->count = 1;
    for (size_t d = 0; d < dims; d++) {
        if (!loom_node_as_i64(loom_node_at(node, d), &view->shape[d]) || view->shape[d] < 0) {
            fault(f, view->name, "a dimension of the shape is no whole number from 0 on");
            return false;
        }
        if (__builtin_mul_overflow(view->count, view->shape[d], &view->count)) {
            fault(f, view->name, "the shape has more elements than 64 bits can count");
            return false;
        }
    }
    return true;
}

/* Reads "dtype" and the size that follows from it. */
static bool read_type(faults *f, const loom_node *node, loom_tensor_view *view)
{
    const char *type = loom_node_text(node);
    int bits = type ? loom_safetensors_type_bits(type, &view->dtype) : 0;
    uint64_t total;

    view->type = type;
    if (!bits) {
        loom_text shown = {0};
        loom_text_add_shown(&shown, type ? type : "absent");
        fault(f, view->name, "dtype is %s, which is no type of the format", loom_text_so_far(&shown));
        loom_text_drop(&shown);
        return false;
    }
    if (__builtin_mul_overflow((uint64_t)view->count, (uint64_t)bits, &total) || total % 8 || total / 8 > SIZE_MAX) {
        fault(f, view->name, "the shape gives no whole number of bytes");
        return false;
    }
    view->bytes = (size_t)(total / 8);
    return true;
}

/* Reads "data_offsets" and sets `data`. Offsets count from the end of the header. */
static bool read_range(faults *f, const loom_node *node, const char *data, size_t data_bytes, loom_tensor_view *view)
{
    int64_t begin, end;

    if (loom_node_count(node) != 2 || !loom_node_as_i64(loom_node_at(node, 0), &begin) || !loom_node_as_i64(loom_node_at(node, 1), &end) || begin < 0) {
        fault(f, view->name, "data_offsets must be [begin, end]");
        return false;
    }
    if (end < begin) {
        fault(f, view->name, "its range ends (%lld) before it begins (%lld)", (long long)end, (long long)begin);
        return false;
    }
    if ((uint64_t)end > data_bytes) {
        fault(f, view->name, "its range ends at %lld, and the file has only %zu bytes of data: cut off?", (long long)end, data_bytes);
        return false;
    }
    if ((uint64_t)(end - begin) != view->bytes) {
        fault(f, view->name, "%zu bytes by type and shape, %lld by data_offsets", view->bytes, (long long)(end - begin));
        return false;
    }
    view->data = data + begin;
    return true;
}

static bool read_tensor(faults *f, const char *name, const loom_node *node, const char *data, size_t data_bytes, loom_tensor_view *view)
{
    view->name = name;
    if (loom_node_get_kind(node) != LOOM_NODE_MAP) {
        fault(f, name, "its entry is no map with dtype, shape and data_offsets");
        return false;
    }
    return read_shape(f, loom_node_get(node, "shape"), view) && read_type(f, loom_node_get(node, "dtype"), view) &&
           read_range(f, loom_node_get(node, "data_offsets"), data, data_bytes, view);
}

/* --- all of them --------------------------------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const loom_tensor_view *p = a, *q = b;

    if (p->data != q->data)
        return (const char *)p->data < (const char *)q->data ? -1 : 1;
    return p->bytes < q->bytes ? -1 : p->bytes > q->bytes; /* an empty tensor stands before the one that begins where it does */
}

/* Ranges must follow one another without overlap or hole, up to the end of the file. `views` are sorted. */
static void check_ranges(faults *f, const loom_tensor_view *views, size_t count, const char *data, size_t data_bytes)
{
    size_t end = 0;
    const char *before = NULL;

    for (size_t i = 0; i < count; i++) {
        size_t begin = (size_t)((const char *)views[i].data - data);
        if (begin < end)
            fault(f, views[i].name, "its range overlaps that of %.60s", before);
        if (begin > end)
            fault(f, views[i].name, "bytes %zu to %zu before it belong to nobody", end, begin);
        if (begin + views[i].bytes > end)
            end = begin + views[i].bytes;
        before = views[i].name;
    }
    if (end < data_bytes)
        fault(f, NULL, "%zu bytes after the last tensor belong to nobody", data_bytes - end);
}

static void check_metadata(faults *f, const loom_node *metadata)
{
    if (loom_node_get_kind(metadata) != LOOM_NODE_MAP)
        fault(f, NULL, "__metadata__ must be a map of texts");
    for (size_t i = 0; i < loom_node_count(metadata); i++)
        if (!loom_node_text(loom_node_at(metadata, i)))
            fault(f, NULL, "__metadata__: %.60s is no text", loom_node_key_at(metadata, i));
}

static loom_status check_all(const char *name, const loom_node *root, const char *data, size_t data_bytes, loom_tensor_view *views, size_t *count)
{
    faults f = {.file = name};

    *count = 0;
    for (size_t i = 0; i < loom_node_count(root); i++) {
        const char *key = loom_node_key_at(root, i);
        if (!strcmp(key, "__metadata__"))
            check_metadata(&f, loom_node_at(root, i));
        else
            *count += read_tensor(&f, key, loom_node_at(root, i), data, data_bytes, &views[*count]);
    }
    qsort(views, *count, sizeof *views, by_place);
    if (!f.count) /* with a wrong range among them, the ranges of the others say nothing */
        check_ranges(&f, views, *count, data, data_bytes);
    return faults_finish(&f);
}

loom_status loom_safetensors_parse(const char *name, const void *at, size_t bytes, loom_config **header, loom_tensor_view **views, size_t *count)
{
    size_t length = 0;
    loom_config *config;
    loom_status status = header_length(name, at, bytes, &length);

    if (status < 0)
        return status;
    const char *text = (const char *)at + LOOM_SAFETENSORS_LENGTH;
    status = loom_safetensors_json(name, text, length, &config);
    if (status < 0)
        return status;
    const loom_node *root = loom_config_root(config);
    loom_tensor_view *found = calloc(loom_node_count(root) + 1, sizeof *found);
    status = found ? check_all(name, root, text + length, bytes - LOOM_SAFETENSORS_LENGTH - length, found, count)
                   : loom_fail(LOOM_E_MEMORY, "%s: no memory for its %zu tensors", name, loom_node_count(root));
    if (status < 0) {
        free(found);
        loom_config_free(config);
        return status;
    }
    *header = config;
    *views = found;
    return LOOM_OK;
}
