/* Typed access to the RANKLOOM_* variables. Here and in lib/launch, and nowhere else, the environment is read. To add a setting: a name in the
 * enum, a row in settings.c, a line in docs/settings.md (a test compares them). */
#ifndef LOOM_CORE_SETTINGS_H
#define LOOM_CORE_SETTINGS_H

#include <rankloom/settings.h>

typedef enum loom_setting {
    LOOM_SETTING_LOG,
    LOOM_SETTING_TIMEOUT_S,
    LOOM_SETTING_TRANSPORT,
    LOOM_SETTING_HEAP_BYTES,
    LOOM_SETTING_FLIGHT_RECORDER,
    LOOM_SETTING_COMM_THREAD,
    LOOM_SETTING_BUCKET_BYTES,
    LOOM_SETTING_ISA,
    LOOM_SETTING_GEMM,
    LOOM_SETTING_CUDA_MATH,
    LOOM_SETTING_CUDA_ATTENTION,
    LOOM_SETTING_TP_CHUNKS,
    LOOM_SETTING_STORE_PROBE_OLD,
    LOOM_SETTING_CUDA_MODULE,
    LOOM_SETTING_REGISTER,
    LOOM_SETTING_LANE_CTAS,
    LOOM_SETTINGS,
} loom_setting;

/* Whether the environment gives it (set and not empty). */
bool loom_setting_given(loom_setting setting);

/* The value of the environment, else the fallback of its row. LOOM_E_INVALID when the environment's value is not what the row takes; *value is
 * then unchanged. The getter must match the row's kind. */
loom_status loom_setting_text(loom_setting setting, const char **value); /* NULL: not given, and no fallback; borrowed from the environment */
loom_status loom_setting_f64(loom_setting setting, double *value);
loom_status loom_setting_i64(loom_setting setting, int64_t *value);
loom_status loom_setting_bool(loom_setting setting, bool *value);
loom_status loom_setting_choice(loom_setting setting, int *value); /* index in "a|b|c" of the row; -1: not given, and no fallback */

/* Threads that OMP_NUM_THREADS asks for (its first number), 0 when it is absent or no number. Not ours, so not in the table; read here because
 * nothing else reads the environment. */
int loom_setting_omp_threads(void);

/* CUDA_VISIBLE_DEVICES as it stands, NULL when it is not set (empty means: none). */
const char *loom_setting_visible_devices(void);

#endif
