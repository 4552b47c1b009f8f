/* The temporary folder of a run, and reading the error files in it. */
#include "launch/spawn_folder.h"

#include <rankloom/config.h>

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

loom_status loom_folder_make(char folder[LOOM_FOLDER_BYTES])
{
    const char *parent = getenv("TMPDIR");

    if (!parent || parent[0] != '/' || strlen(parent) > LOOM_FOLDER_BYTES - 32)
        parent = "/tmp";
    snprintf(folder, LOOM_FOLDER_BYTES, "%s/rankloom-run-XXXXXX", parent);
    if (!mkdtemp(folder))
        return loom_fail(LOOM_E_IO, "cannot make a temporary folder in %s: %s", parent, strerror(errno));
    return LOOM_OK;
}

loom_status loom_folder_add_rank(const char *folder, int attempt, int rank, char error_file[LOOM_ERROR_FILE_BYTES])
{
    char path[LOOM_ERROR_FILE_BYTES];

    snprintf(path, sizeof path, "%s/attempt_%d", folder, attempt);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return loom_fail(LOOM_E_IO, "cannot make the folder %s: %s", path, strerror(errno));
    snprintf(path, sizeof path, "%s/attempt_%d/%d", folder, attempt, rank);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return loom_fail(LOOM_E_IO, "cannot make the folder %s: %s", path, strerror(errno));
    snprintf(error_file, LOOM_ERROR_FILE_BYTES, "%s/attempt_%d/%d/error.json", folder, attempt, rank);
    return LOOM_OK;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    remove(path);
    return 0;
}

void loom_folder_remove(const char *folder)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Flat {"message": "text", "timestamp": n}, or nested {"message": {"message": "text", "extraInfo": {"timestamp": "n", …}}}. */
bool loom_folder_read_error(const char *error_file, char *message, size_t capacity, int64_t *timestamp)
{
    loom_config *document = NULL;

    if (access(error_file, F_OK) != 0)
        return false;
    if (loom_config_load(error_file, &document) != LOOM_OK) {
        snprintf(message, capacity, "an error file that cannot be read (%s)", loom_last_error());
        *timestamp = 0;
        return true;
    }
    const loom_node *root = loom_config_root(document), *inner = loom_node_get(root, "message");
    bool nested = loom_node_get_kind(inner) == LOOM_NODE_MAP;
    const loom_node *when = loom_node_get(nested ? loom_node_get(inner, "extraInfo") : root, "timestamp");
    const char *text = loom_node_text(nested ? loom_node_get(inner, "message") : inner), *seconds = loom_node_text(when);

    snprintf(message, capacity, "%s", text ? text : "an error file without a message");
    message[strcspn(message, "\n")] = '\0';
    *timestamp = seconds ? strtoll(seconds, NULL, 10) : 0;
    loom_config_free(document);
    return true;
}
