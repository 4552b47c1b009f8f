/* What every public header of Rankloom needs: the export mark and the C++ guard. */
#ifndef RANKLOOM_API_H
#define RANKLOOM_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LOOM_API __attribute__((visibility("default")))
#define LOOM_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))
#else
#define LOOM_API
#define LOOM_PRINTF(text, first)
#endif

#ifdef __cplusplus
#define LOOM_BEGIN extern "C" {
#define LOOM_END }
#else
#define LOOM_BEGIN
#define LOOM_END
#endif

#endif
