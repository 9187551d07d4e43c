/* TARGET_BEGIN("features") ... TARGET_END: compile what stands between for these instruction sets. */

#define PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define TARGET_BEGIN(features) PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TARGET_END _Pragma("clang attribute pop")
#else
#define TARGET_BEGIN(features) _Pragma("GCC push_options") PRAGMA(GCC target(features))
#define TARGET_END _Pragma("GCC pop_options")
#endif
