/* Which architectures the CUDA module holds code for, read from the file itself, so that neither cuobjdump nor a GPU is needed.
 *
 *   test_cuda_architectures MODULE sm_80 … compute_100
 *
 * nvcc puts one "fat binary" for each source file into section .nv_fatbin: a header of 16 bytes (magic, version, length of the header, bytes that follow), then entries, each
 * with its kind (1: PTX, 2: machine code), the length of its header, the bytes after it, and the architecture 28 bytes from its begin. */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FATBIN_MAGIC = 0xBA55ED50, PTX = 1, MACHINE_CODE = 2, ARCHITECTURE_AT = 28 };

static unsigned char *read_all(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data = NULL;

    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    data = malloc(*bytes + 1);
    if (data && fread(data, 1, *bytes, file) != *bytes) {
        free(data);
        data = NULL;
    }
    fclose(file);
    return data;
}

static const Elf64_Shdr *find_section(const unsigned char *elf, const char *name)
{
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)(const void *)elf;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(elf + head->e_shoff);
    const char *names = (const char *)elf + sections[head->e_shstrndx].sh_offset;

    for (int i = 0; i < head->e_shnum; i++)
        if (strcmp(names + sections[i].sh_name, name) == 0)
            return &sections[i];
    return NULL;
}

static uint64_t number_at(const unsigned char *at, size_t bytes)
{
    uint64_t number = 0;

    memcpy(&number, at, bytes); /* both are little-endian where CUDA runs */
    return number;
}

typedef struct wanted {
    const char *name;
    unsigned kind, architecture;
    int found; /* fat binaries that hold it */
} wanted;

static void visit_entries(const unsigned char *at, const unsigned char *end, wanted *list, int count)
{
    while (at + 64 <= end) {
        unsigned kind = (unsigned)number_at(at, 2), architecture = (unsigned)number_at(at + ARCHITECTURE_AT, 4);
        uint64_t step = number_at(at + 4, 4) + number_at(at + 8, 8);

        for (int i = 0; i < count; i++)
            list[i].found += list[i].kind == kind && list[i].architecture == architecture;
        if (step == 0)
            return;
        at += step;
    }
}

static int visit_fatbins(const unsigned char *at, const unsigned char *end, wanted *list, int count)
{
    int fatbins = 0;

    while (at + 16 <= end) {
        uint64_t body = number_at(at + 8, 8), head = number_at(at + 6, 2);
        if (number_at(at, 4) != FATBIN_MAGIC) {
            at += 8; /* padding between them */
            continue;
        }
        visit_entries(at + head, at + head + body, list, count);
        at += head + body;
        fatbins++;
    }
    return fatbins;
}

static wanted read_name(const char *name)
{
    if (strncmp(name, "sm_", 3) == 0)
        return (wanted){name, MACHINE_CODE, (unsigned)strtoul(name + 3, NULL, 10), 0};
    return (wanted){name, PTX, (unsigned)strtoul(name + strlen("compute_"), NULL, 10), 0};
}

int main(int argc, char **argv)
{
    wanted list[8];
    size_t bytes;
    unsigned char *elf = argc > 2 && argc - 2 <= 8 ? read_all(argv[1], &bytes) : NULL;
    const Elf64_Shdr *section = elf ? find_section(elf, ".nv_fatbin") : NULL;
    int fatbins, missing = 0;

    if (!section) {
        fprintf(stderr, "%s: no fat binaries in it\n", argc > 1 ? argv[1] : "(no module)");
        free(elf);
        return 1;
    }
    for (int i = 2; i < argc; i++)
        list[i - 2] = read_name(argv[i]);
    fatbins = visit_fatbins(elf + section->sh_offset, elf + section->sh_offset + section->sh_size, list, argc - 2);
    for (int i = 0; i < argc - 2; i++) {
        printf("%-12s in %d of %d fat binaries\n", list[i].name, list[i].found, fatbins);
        missing += list[i].found < fatbins - 1 || !list[i].found; /* that of the link itself has no kernels, and may lack the PTX */
    }
    free(elf);
    return fatbins == 0 || missing > 0;
}
