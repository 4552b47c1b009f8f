/* What the engine of this library trains, of all that a model and a layout can say. One table: the trainer refuses by it, forecasts hold by it, and
 * plans for this engine recommend nothing else. */
#ifndef RANKLOOM_ENGINE_H
#define RANKLOOM_ENGINE_H

#include <rankloom/layout.h>
LOOM_BEGIN

/* LOOM_E_UNSUPPORTED names everything that is missing, and for a layout what there is instead. The layout is legal by loom_layout_check(). */
LOOM_API loom_status loom_engine_check_layout(const loom_layout *layout);
LOOM_API loom_status loom_engine_check_model(const loom_model *model);

/* The layouts that are missing as conditions, "zero=2": NULL-terminated, for the `exclude` of a plan. Static. */
LOOM_API const char *const *loom_engine_excluded(void);

LOOM_END
#endif
