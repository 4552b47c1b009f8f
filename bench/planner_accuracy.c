/* planner_accuracy RUNS.csv [DEVICE.CONSTANT=VALUE …]: how far predictions of published runs are off, and how good a choice they would have
 * made. planner_search has the speed of the search, planner_fit.py what is left when sources are held out of the calibration. */
#include <rankloom/planner.h>

#include <stdio.h>

int main(int argc, char **argv)
{
    char *text = NULL;

    if (argc < 2) {
        fprintf(stderr, "usage: planner_accuracy RUNS.csv [DEVICE.CONSTANT=VALUE …]\n");
        return 2;
    }
    loom_status status = loom_plan_score(argv[1], (const char *const *)argv + 2, LOOM_PLAN_AS_TEXT, &text);
    if (status == LOOM_OK)
        fputs(text, stdout);
    else
        fprintf(stderr, "planner_accuracy: %s\n", loom_last_error());
    loom_text_free(text);
    return loom_exit_code(status);
}
