/* The table of RANKLOOM_* variables and the one reading of each kind. */
#include "core/settings.h"
#include "core/nearest.h"
#include "core/number.h"
#include "core/text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

typedef enum kind { TEXT, REAL, INTEGER, BOOLEAN, CHOICE } kind;

static const loom_setting_row table[LOOM_SETTINGS] = {
    [LOOM_SETTING_LOG] = {"RANKLOOM_LOG", "error|warning|info|debug|trace", "warning", "Least important kind of message that goes to stderr."},
    [LOOM_SETTING_TIMEOUT_S] = {"RANKLOOM_TIMEOUT_S", "seconds", "600",
                                "Deadline of every wait for another rank. When it passes, the flight recorder is dumped and the call fails."},
    [LOOM_SETTING_TRANSPORT] = {"RANKLOOM_TRANSPORT", "auto|shm|tcp|nccl", "auto",
                                "How ranks talk. auto: nccl between GPUs, shm inside a host, tcp between hosts."},
    [LOOM_SETTING_HEAP_BYTES] = {"RANKLOOM_HEAP_BYTES", "bytes", "",
                                 "Size of the shared heap that each rank reserves for tensors its peers read directly. Address space only: pages are "
                                 "taken as they are touched. Not set: what the host's memory allows."},
    [LOOM_SETTING_FLIGHT_RECORDER] = {"RANKLOOM_FLIGHT_RECORDER", "path", "",
                                      "File for the last operations of every process group when a deadline passes; %r in it becomes the rank. Not set: "
                                      "stderr."},
    [LOOM_SETTING_COMM_THREAD] = {"RANKLOOM_COMM_THREAD", "true|false", "",
                                  "Whether CPU ranks run communication on a thread of its own, so that it overlaps with compute. Not set: only where "
                                  "cores are left for it."},
    [LOOM_SETTING_BUCKET_BYTES] = {"RANKLOOM_BUCKET_BYTES", "bytes", "26214400",
                                   "Gradients are reduced in buckets of about this size, each as soon as its last gradient is complete."},
    [LOOM_SETTING_ISA] = {"RANKLOOM_ISA", "portable|avx2|avx512", "",
                          "Forces the instruction set of the CPU kernels. Not set: the best that this processor has."},
    [LOOM_SETTING_GEMM] = {"RANKLOOM_GEMM", "onednn|openblas|cublaslt|own", "",
                           "Forces the maker of matrix products: the first two on CPU, cublaslt on CUDA, own on both. Not set: the first of these that "
                           "there is."},
    [LOOM_SETTING_CUDA_MATH] = {"RANKLOOM_CUDA_MATH", "f32|tf32|bf16|fp8", "f32",
                                "What matrix products and attention multiply on CUDA: f32 as the CPU does, or factors rounded to tf32 or bf16 for the "
                                "tensor cores, or in products to fp8 (e4m3, a scale a matrix). Data and sums are f32 whatever it is."},
    [LOOM_SETTING_CUDA_ATTENTION] = {"RANKLOOM_CUDA_ATTENTION", "auto|own|cudnn", "auto",
                                     "Whose attention on CUDA with RANKLOOM_CUDA_MATH=bf16: our own; cuDNN's for all that it takes, which has to be there; auto: "
                                     "where cuDNN is there, of both the one that was faster when a shape was first met."},
    [LOOM_SETTING_TP_CHUNKS] = {"RANKLOOM_TP_CHUNKS", "count", "0",
                                "In how many chunks of its tokens what tensor parallelism gathers and sums travels beside the product that needs or makes "
                                "it. 0: up to 4 on CUDA, where both go on at once, and 1 on CPU. fp8 products want 1: they do not take the chunks of "
                                "sequence parallelism."},
    [LOOM_SETTING_STORE_PROBE_OLD] = {"RANKLOOM_STORE_PROBE_OLD", "true|false", "false",
                                      "Whether a store that does not answer as PyTorch 2.5 or later is also asked as an older one. Such stores occur "
                                      "only under an old torchrun with static rendezvous."},
    [LOOM_SETTING_CUDA_MODULE] = {"RANKLOOM_CUDA_MODULE", "path", "",
                                  "The CUDA module to load, without asking whether there is a driver first. Not set: librankloom_cuda.so beside the "
                                  "library or program, then where the dynamic linker looks."},
    [LOOM_SETTING_REGISTER] = {"RANKLOOM_REGISTER", "true|false", "true",
                               "Whether gradients, weights and messages lie in memory of NCCL's on GPUs, and communicators are told of it, so that they "
                               "travel without a copy where the machine can do that."},
    [LOOM_SETTING_LANE_CTAS] = {"RANKLOOM_LANE_CTAS", "count", "8",
                                "Most thread blocks, and so multiprocessors, that messages of one direction between two pipeline stages take on GPUs: a "
                                "receive that is posted early holds them while it waits. 0: as many as NCCL likes, 32 and more."},
};

static const kind kinds[LOOM_SETTINGS] = {
    [LOOM_SETTING_LOG] = CHOICE,        [LOOM_SETTING_TIMEOUT_S] = REAL,       [LOOM_SETTING_TRANSPORT] = CHOICE,
    [LOOM_SETTING_HEAP_BYTES] = INTEGER, [LOOM_SETTING_FLIGHT_RECORDER] = TEXT, [LOOM_SETTING_COMM_THREAD] = BOOLEAN,
    [LOOM_SETTING_BUCKET_BYTES] = INTEGER,
    [LOOM_SETTING_ISA] = CHOICE,        [LOOM_SETTING_GEMM] = CHOICE,
    [LOOM_SETTING_CUDA_MATH] = CHOICE,   [LOOM_SETTING_CUDA_ATTENTION] = CHOICE, [LOOM_SETTING_TP_CHUNKS] = INTEGER,
    [LOOM_SETTING_STORE_PROBE_OLD] = BOOLEAN, [LOOM_SETTING_CUDA_MODULE] = TEXT,
    [LOOM_SETTING_REGISTER] = BOOLEAN,  [LOOM_SETTING_LANE_CTAS] = INTEGER,
};

const loom_setting_row *loom_settings_table(size_t *count)
{
    *count = LOOM_SETTINGS;
    return table;
}

bool loom_setting_given(loom_setting setting)
{
    const char *value = getenv(table[setting].name);

    return value && *value;
}

static const char *text_of(loom_setting setting)
{
    return loom_setting_given(setting) ? getenv(table[setting].name) : table[setting].fallback;
}

static loom_status refuse(loom_setting setting, const char *value, const char *hint)
{
    return loom_fail(LOOM_E_INVALID, "%s=%s: it takes %s%s%s", table[setting].name, value, table[setting].takes, hint ? "; " : "", hint ? hint : "");
}

/* Index of `value` in "a|b|c", or -1. */
static int choice_of(const char *choices, const char *value)
{
    size_t length = strlen(value);

    for (int i = 0;; i++) {
        size_t span = strcspn(choices, "|");
        if (span == length && !strncmp(choices, value, length))
            return i;
        if (!choices[span])
            return -1;
        choices += span + 1;
    }
}

loom_status loom_setting_text(loom_setting setting, const char **value)
{
    const char *text = text_of(setting);

    *value = *text ? text : NULL;
    return LOOM_OK;
}

loom_status loom_setting_f64(loom_setting setting, double *value)
{
    const char *text = text_of(setting);
    double read;

    assert(kinds[setting] == REAL);
    loom_number_fault fault = loom_number_f64(text, &read);
    if (fault)
        return refuse(setting, text, loom_number_hint(fault));
    if (!(read >= 0))
        return refuse(setting, text, "never less than 0");
    *value = read;
    return LOOM_OK;
}

loom_status loom_setting_i64(loom_setting setting, int64_t *value)
{
    const char *text = text_of(setting);
    int64_t read = 0;

    assert(kinds[setting] == INTEGER);
    loom_number_fault fault = *text ? loom_number_i64(text, &read) : LOOM_NUMBER_OK;
    if (fault)
        return refuse(setting, text, loom_number_hint(fault));
    if (read < 0)
        return refuse(setting, text, "never less than 0");
    *value = read;
    return LOOM_OK;
}

loom_status loom_setting_bool(loom_setting setting, bool *value)
{
    const char *text = text_of(setting);

    assert(kinds[setting] == BOOLEAN);
    if (!strcasecmp(text, "true") || !strcmp(text, "1"))
        *value = true;
    else if (!*text || !strcasecmp(text, "false") || !strcmp(text, "0"))
        *value = false;
    else
        return refuse(setting, text, NULL);
    return LOOM_OK;
}

loom_status loom_setting_choice(loom_setting setting, int *value)
{
    const char *text = text_of(setting);
    int index = *text ? choice_of(table[setting].takes, text) : -1;

    assert(kinds[setting] == CHOICE);
    if (*text && index < 0)
        return refuse(setting, text, NULL);
    *value = index;
    return LOOM_OK;
}

static loom_status check_row(loom_setting setting)
{
    union {
        const char *text;
        double real;
        int64_t integer;
        bool boolean;
        int choice;
    } value;

    switch (kinds[setting]) {
    case TEXT:
        return loom_setting_text(setting, &value.text);
    case REAL:
        return loom_setting_f64(setting, &value.real);
    case INTEGER:
        return loom_setting_i64(setting, &value.integer);
    case BOOLEAN:
        return loom_setting_bool(setting, &value.boolean);
    case CHOICE:
        return loom_setting_choice(setting, &value.choice);
    }
    return LOOM_OK;
}

/* Notes an environment entry "NAME=value" whose name has no row. */
static void check_name(const char *entry, loom_text *problems)
{
    const char *names[LOOM_SETTINGS + 1] = {NULL};
    char name[64];
    size_t length = strcspn(entry, "=");

    for (int i = 0; i < LOOM_SETTINGS; i++) {
        names[i] = table[i].name;
        if (strlen(names[i]) == length && !strncmp(names[i], entry, length))
            return;
    }
    length = length < sizeof name - 1 ? length : sizeof name - 1;
    memcpy(name, entry, length);
    name[length] = '\0';
    const char *near = loom_nearest_name(name, names);
    loom_text_add(problems, "%s%s is no setting of Rankloom%s%s", problems->length ? "\n" : "", name, near ? "; did you mean " : "", near ? near : "");
}

loom_status loom_settings_check(void)
{
    loom_text problems = {0};

    for (int i = 0; i < LOOM_SETTINGS; i++)
        if (check_row((loom_setting)i) < 0)
            loom_text_add(&problems, "%s%s", problems.length ? "\n" : "", loom_last_error());
    for (char **entry = environ; entry && *entry; entry++)
        if (!strncmp(*entry, "RANKLOOM_", 9))
            check_name(*entry, &problems);

    loom_status status = problems.failed   ? loom_fail(LOOM_E_MEMORY, "no memory for the list of wrong settings")
                         : problems.length ? loom_fail(LOOM_E_INVALID, "%s", loom_text_so_far(&problems))
                                           : LOOM_OK;
    loom_text_drop(&problems);
    return status;
}

int loom_setting_omp_threads(void)
{
    const char *text = getenv("OMP_NUM_THREADS"); /* "4" or, for nested regions, "4,2" */
    long threads = text ? strtol(text, NULL, 10) : 0;

    return threads > 0 && threads <= 65536 ? (int)threads : 0;
}

const char *loom_setting_visible_devices(void)
{
    return getenv("CUDA_VISIBLE_DEVICES");
}
