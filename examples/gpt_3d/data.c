#include "data.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LLMC_MAGIC = 20240520, LLMC_HEADER_BYTES = 1024 }; /* token files of llm.c begin with this */

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

static int64_t golden_step(int64_t chunks)
{
    int64_t step = (int64_t)(0.6180339887498949 * (double)chunks);

    if (step < 1)
        step = 1;
    while (greatest_common_divisor(step, chunks) != 1)
        step++;
    return step;
}

static loom_status map_file(const char *path, gpt_data *data)
{
    struct stat info;
    void *bytes = MAP_FAILED;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return loom_fail(errno == ENOENT || errno == EACCES ? LOOM_E_INVALID : LOOM_E_IO, "data file %s: %s", path, strerror(errno));
    if (fstat(fd, &info) == 0 && info.st_size > 0)
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED)
        return loom_fail(LOOM_E_INVALID, "data file %s is empty or cannot be mapped", path);
    data->bytes = bytes;
    data->mapped = (size_t)info.st_size;
    return LOOM_OK;
}

static size_t header_bytes(const gpt_data *data)
{
    int32_t magic = 0;

    if (data->config.tokenizer == GPT_UINT16 && data->mapped >= LLMC_HEADER_BYTES)
        memcpy(&magic, data->bytes, sizeof magic);
    return magic == LLMC_MAGIC ? LLMC_HEADER_BYTES : 0;
}

static int32_t token_at(const gpt_data *data, int64_t index)
{
    uint16_t token;

    if (data->config.tokenizer == GPT_BYTES)
        return data->bytes[index];
    memcpy(&token, data->bytes + header_bytes(data) + index * 2, sizeof token);
    return token;
}

loom_status gpt_data_open(const gpt_data_config *config, gpt_data *data)
{
    loom_status status;

    *data = (gpt_data){.config = *config};
    status = map_file(config->path, data);
    if (status < 0)
        return status;
    data->tokens = (int64_t)(data->mapped - header_bytes(data)) / (config->tokenizer == GPT_BYTES ? 1 : 2);
    data->chunks = (data->tokens - 1) / config->seq;
    if (data->chunks < 1) {
        status = loom_fail(LOOM_E_INVALID, "data file %s has %lld tokens; one sample of seq %lld needs %lld", config->path, (long long)data->tokens,
                           (long long)config->seq, (long long)config->seq + 1);
        gpt_data_close(data);
        return status;
    }
    data->step = config->order == GPT_GOLDEN ? golden_step(data->chunks) : 1;
    return LOOM_OK;
}

void gpt_data_close(gpt_data *data)
{
    if (data->bytes)
        munmap((void *)data->bytes, data->mapped);
    data->bytes = NULL;
}

loom_status gpt_data_sample(const gpt_data *data, int64_t index, int32_t *tokens, int32_t *targets)
{
    const gpt_data_config *c = &data->config;
    int64_t chunk = (int64_t)((unsigned __int128)index * (uint64_t)data->step % (uint64_t)data->chunks), first = chunk * c->seq;

    for (int64_t i = 0; i <= c->seq; i++) {
        int32_t token = token_at(data, first + i);

        if (token >= c->vocab)
            return loom_fail(LOOM_E_INVALID, "data file %s: token %d at position %lld; the model's vocabulary has %lld", c->path, token,
                             (long long)(first + i), (long long)c->vocab);
        if (i < c->seq)
            tokens[i] = token;
        if (i > 0)
            targets[i - 1] = tokens[i - 1] == c->separator ? LOOM_IGNORE_INDEX : token;
    }
    return LOOM_OK;
}

void gpt_data_documents(const int32_t *tokens, int64_t count, int32_t separator, int32_t *documents, int32_t *positions)
{
    int32_t document = 0, position = 0;

    for (int64_t i = 0; i < count; i++) {
        documents[i] = document;
        positions[i] = position++;
        if (tokens[i] == separator) {
            document++;
            position = 0;
        }
    }
}
