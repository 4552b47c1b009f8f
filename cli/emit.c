/* rankloom emit LAYOUT --model M --to DIALECT: the layout in another framework's words. rankloom import FILE|COMMAND: and back. */
#include "layout_file.h"
#include "options.h"
#include "write_text.h"

#include <rankloom/emit.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const dialects[] = {"megatron", "nemo", "torchtitan", "deepspeed", "maxtext", "accelerate", "axolotl", "verl", NULL};

typedef struct emit_arguments {
    const char *model, *output;
    int to, from, world;
} emit_arguments;

static const loom_option emit_options[] = {
    {"model", 'm', LOOM_OPTION_TEXT, offsetof(emit_arguments, model), .takes = "FILE", .help = "model to emit for (the model section of the file)"},
    {"to", 't', LOOM_OPTION_CHOICE, offsetof(emit_arguments, to), .choices = dialects, .takes = "DIALECT",
     .help = "megatron, nemo, torchtitan, deepspeed, maxtext, accelerate, axolotl, verl"},
    {"world", 'n', LOOM_OPTION_INT, offsetof(emit_arguments, world), .low = 1, .high = 1 << 24, .takes = "N", .help = "ranks there are; fills the degree that is auto"},
    {"output", 'o', LOOM_OPTION_TEXT, offsetof(emit_arguments, output), .takes = "FILE", .help = "where to write (standard output)"},
    {0},
};

static const loom_option import_options[] = {
    {"model", 'm', LOOM_OPTION_TEXT, offsetof(emit_arguments, model), .takes = "FILE", .help = "model to judge by; some files leave stages open without it"},
    {"world", 'n', LOOM_OPTION_INT, offsetof(emit_arguments, world), .low = 1, .high = 1 << 24, .takes = "N", .help = "ranks, where the file leaves dp open (torchrun's)"},
    {"from", 0, LOOM_OPTION_CHOICE, offsetof(emit_arguments, from), .choices = dialects, .takes = "DIALECT", .help = "megatron, nemo, torchtitan, deepspeed, maxtext (by its looks)"},
    {"output", 'o', LOOM_OPTION_TEXT, offsetof(emit_arguments, output), .takes = "FILE", .help = "where to write (standard output)"},
    {0},
};

static loom_status emit(const char *path, const emit_arguments *a)
{
    layout_file file;
    char *text = NULL;
    loom_status status;

    if (a->to < 0)
        return loom_fail(LOOM_E_INVALID, "--to DIALECT is needed: megatron, nemo, torchtitan, deepspeed, maxtext, accelerate, axolotl or verl");
    if ((status = layout_file_load(path, a->model, a->world, &file)) < 0)
        return status;
    if (!file.has_model)
        return loom_fail(LOOM_E_INVALID, "%s: says no model; --model FILE does", path);
    if (file.layout.seq == 0)
        file.layout.seq = file.model.seq;
    if ((status = loom_emit(&file.layout, &file.model, a->to, &text)) == LOOM_OK)
        status = write_text(text, a->output);
    loom_text_free(text);
    return status;
}

/* --- import ------------------------------------------------------------------------------------------------------------------ */

/* The words of a command with quotes where a shell would need them, as one text. */
static char *join_words(const loom_operands *operands)
{
    size_t bytes = 1;

    for (int i = 0; i < operands->count; i++)
        bytes += 4 * strlen(operands->at[i]) + 3;
    char *text = malloc(bytes), *out = text;
    for (int i = 0; text && i < operands->count; i++) {
        *out++ = '\'';
        for (const char *in = operands->at[i]; *in; in++)
            out = *in == '\'' ? stpcpy(out, "'\\''") : (*out = *in, out + 1);
        *out++ = '\'';
        *out++ = ' ';
    }
    if (text)
        *out = '\0';
    return text;
}

static loom_status read_file(const char *path, char **text)
{
    enum { MOST = 1 << 20 };
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    char *read = malloc(MOST + 1);
    size_t bytes = file && read ? fread(read, 1, MOST + 1, file) : 0;
    bool failed = !file || !read || ferror(file);
    int reason = errno;

    if (file && file != stdin)
        fclose(file);
    if (failed || bytes > MOST) {
        free(read);
        return failed ? loom_fail(LOOM_E_IO, "%s: %s", path, strerror(reason)) : loom_fail(LOOM_E_INVALID, "%s: is longer than 1 MiB", path);
    }
    read[bytes] = '\0';
    *text = read;
    return LOOM_OK;
}

/* What the operands are: a file, or the words of a command, maybe all in one. */
static loom_status read_source(const loom_operands *operands, const char **source, char **text)
{
    const char *first = operands->at[0];

    *source = "the command";
    if (operands->count > 1) {
        *text = join_words(operands);
        return *text ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for the command");
    }
    if (strchr(first, ' ') && strstr(first, "--")) {
        *text = strdup(first);
        return *text ? LOOM_OK : loom_fail(LOOM_E_MEMORY, "no memory for the command");
    }
    *source = strcmp(first, "-") == 0 ? "standard input" : first;
    return read_file(first, text);
}

/* The first line of `note` as a comment; `to` has room for it. Returns the characters written. */
static int comment(char *to, const char *note)
{
    size_t length = strcspn(note, "\n");

    memcpy(to, "# ", 2);
    memcpy(to + 2, note, length);
    memcpy(to + 2 + length, "\n", 2);
    return (int)length + 3;
}

static void write_layout(const emit_arguments *a, loom_dialect dialect, const loom_layout *layout, const char *notes, char *yaml, loom_status *status)
{
    char line[256], *all;
    size_t bytes = 2 * strlen(notes) + strlen(yaml) + sizeof line + 128;
    int used;

    if (!(all = malloc(bytes))) {
        *status = loom_fail(LOOM_E_MEMORY, "no memory for the layout");
        return;
    }
    used = snprintf(all, bytes, "# %s, %d ranks; from %s\n", loom_layout_describe(layout, line, sizeof line), loom_layout_world(layout), loom_dialect_name(dialect));
    for (const char *note = notes; *note; note += *note == '\n') {
        used += comment(all + used, note);
        note += strcspn(note, "\n");
    }
    snprintf(all + used, bytes - (size_t)used, "%s", yaml);
    *status = write_text(all, a->output);
    free(all);
}

static loom_status import_text(const emit_arguments *a, const char *source, const char *text)
{
    loom_train_shape train = {0};
    loom_model model;
    loom_layout layout;
    loom_dialect dialect = a->from >= 0 ? a->from : 0;
    char *notes = NULL, *yaml = NULL;
    loom_status status = a->model ? loom_model_load(a->model, &model, &train) : LOOM_OK;

    if (status == LOOM_OK && a->from < 0)
        status = loom_import_recognise(source, text, strlen(text), &dialect);
    if (status < 0)
        return status;
    loom_layout_default(a->model ? &model : NULL, &layout);
    layout.seq = train.seq > 0 ? train.seq : a->model ? model.seq : 0;
    status = loom_import(source, text, strlen(text), dialect, a->model ? &model : NULL, a->world, &layout, &notes);
    if (status == LOOM_OK)
        status = loom_layout_yaml(&layout, &yaml);
    if (status == LOOM_OK)
        write_layout(a, dialect, &layout, notes, yaml, &status);
    loom_text_free(notes);
    loom_text_free(yaml);
    return status;
}

static loom_status import(const loom_operands *operands, const emit_arguments *a)
{
    const char *source;
    char *text;
    loom_status status = read_source(operands, &source, &text);

    if (status < 0)
        return status;
    status = import_text(a, source, text);
    free(text);
    return status;
}

static int run(const loom_command *self, int argc, char **argv)
{
    emit_arguments arguments = {.to = -1, .from = -1};
    loom_operands operands;
    int exit_status;
    loom_status status;

    if (!loom_options_parse(self, argc, argv, &arguments, &operands, &exit_status))
        return exit_status;
    status = strcmp(self->name, "emit") == 0 ? emit(operands.at[0], &arguments) : import(&operands, &arguments);
    return status < 0 ? loom_command_fail(self, status) : 0;
}

const loom_command loom_command_emit = {
    .name = "emit",
    .summary = "a layout in the words of another framework",
    .operands = "RUN.yaml|LAYOUT.yaml",
    .least = 1,
    .most = 1,
    .about = "Refuses what the framework cannot say, with every reason. megatron prints one flag a line, quoted for a shell or xargs -a FILE torchrun … Versions and words are in docs/emit.md.",
    .options = emit_options,
    .run = run,
};

const loom_command loom_command_import = {
    .name = "import",
    .summary = "what another framework's file or command line says, as a layout",
    .operands = "FILE|COMMAND …",
    .least = 1,
    .most = -1,
    .about = "Reads Megatron command lines (as a file, as one quoted word, or as words after --, with the torchrun in front or without), Megatron-Bridge and MaxText YAML, torchtitan TOML and DeepSpeed\n"
             "JSON. Defaults of the framework that were filled in stand as comments above the layout. Variables of a shell are not expanded.",
    .options = import_options,
    .run = run,
};
