/* docs/settings.md is the settings table: compares them, or with --write makes the page anew. */
#include <rankloom/settings.h>
#include <rankloom/status.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char introduction[] =
    "# Settings\n\n"
    "Everything that Rankloom reads from the environment, beside what launchers set. A value that a row does not take and a RANKLOOM_ name that\n"
    "has no row are refused at the start, all of them at once. This page is made from the table in `lib/core/settings.c`; a test compares them.\n\n"
    "| variable | takes | when not set | meaning |\n|---|---|---|---|\n";

/* '|' would end a column. */
static void put_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', out);
        fputc(*text, out);
    }
}

static void write_page(FILE *out)
{
    size_t count;
    const loom_setting_row *row = loom_settings_table(&count);

    fputs(introduction, out);
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "| `%s` | ", row[i].name);
        put_escaped(out, row[i].takes);
        fprintf(out, " | %s | ", *row[i].fallback ? row[i].fallback : "–");
        put_escaped(out, row[i].meaning);
        fputs(" |\n", out);
    }
}

static int compare(const char *path)
{
    char *expected = NULL, *found = NULL;
    size_t expected_bytes, found_bytes = 0;
    FILE *memory = open_memstream(&expected, &expected_bytes), *in = fopen(path, "r");

    if (!memory)
        return 1;
    write_page(memory);
    fclose(memory);
    if (in && getdelim(&found, &found_bytes, '\0', in) < 0)
        found_bytes = 0;
    if (in)
        fclose(in);
    bool equal = found && !strcmp(found, expected);
    free(found);
    free(expected);
    if (!equal)
        fprintf(stderr, "%s is not what lib/core/settings.c says; make it anew with --write %s\n", path, path);
    return equal ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--write")) {
        FILE *out = fopen(argv[2], "w");
        if (!out)
            return 1;
        write_page(out);
        return fclose(out) == 0 ? 0 : 1;
    }
    if (argc == 2)
        return compare(argv[1]);
    fprintf(stderr, "usage: %s [--write] docs/settings.md\n", argv[0]);
    return 2;
}
