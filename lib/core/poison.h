/* Memory that nobody may touch, for the address sanitizer: blocks that a heap has not given out. Nothing in other builds. */
#ifndef LOOM_CORE_POISON_H
#define LOOM_CORE_POISON_H

#if defined(__SANITIZE_ADDRESS__)
#define LOOM_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LOOM_POISONS 1
#endif
#endif

#ifdef LOOM_POISONS
#include <sanitizer/asan_interface.h>
#define loom_poison(at, bytes) __asan_poison_memory_region(at, bytes)
#define loom_unpoison(at, bytes) __asan_unpoison_memory_region(at, bytes)
#else
#define loom_poison(at, bytes) ((void)(at), (void)(bytes))
#define loom_unpoison(at, bytes) ((void)(at), (void)(bytes))
#endif

#endif
