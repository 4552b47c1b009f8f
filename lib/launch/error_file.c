/* The error file that torchrun and `rankloom run` read: the report's root cause is the failure with the smallest timestamp.
 *
 * Broken JSON, or the nested form without a timestamp, makes torchrun's launcher itself crash on its failure path: the file is whole or not
 * there, and its text is escaped. */
#include <rankloom/launch.h>

#include "core/file.h"
#include "core/text.h"

#include <string.h>
#include <time.h>

void loom_launch_report_error(const loom_launch *launch, const char *message)
{
    loom_text json = {0};

    if (!launch->error_file[0])
        return;
    loom_text_add(&json, "{\"message\":{\"message\":");
    loom_text_add_json(&json, message);
    loom_text_add(&json, ",\"extraInfo\":{\"py_callstack\":");
    loom_text_add_json(&json, message);
    loom_text_add(&json, ",\"timestamp\":\"%lld\"}}}", (long long)time(NULL));
    if (!json.failed)
        loom_file_replace(launch->error_file, json.at, json.length); /* who fails already cannot do more about a file that fails too */
    loom_text_drop(&json);
}
