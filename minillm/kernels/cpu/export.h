// MINILLM_API marks the functions that Python calls: plain C names, visible outside the library.
#pragma once

#ifdef _MSC_VER
#define MINILLM_API extern "C" __declspec(dllexport)
#else
#define MINILLM_API extern "C" __attribute__((visibility("default")))
#endif
