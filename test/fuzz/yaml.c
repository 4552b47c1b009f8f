/* YAML of anybody: it is refused with a reason or becomes a tree within the bounds. The first line is also tried as an assignment to that tree. */
#include "tree.h"

static void override_with(const uint8_t *data, size_t size)
{
    loom_config *config;
    char assignment[256];
    size_t length = size < sizeof assignment - 1 ? size : sizeof assignment - 1;

    memcpy(assignment, data, length);
    assignment[length] = '\0';
    assignment[strcspn(assignment, "\n")] = '\0';
    static const char text[] = "a: {b: &b {c: 1}, d: *b}\n";

    if (loom_config_parse("f", text, sizeof text - 1, &config) != LOOM_OK)
        abort();
    if (loom_config_override(config, assignment) == LOOM_OK)
        walk(loom_config_root(config), 0);
    loom_config_free(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse_and_walk("f.yaml", data, size);
    override_with(data, size);
    return 0;
}
