// Chooses the instruction set at run time.
//
// Owns: the question what this processor can run, and the EDGEKV_CPU_ISA override for tests.
// Guarantees: never chooses kernels this machine cannot run. Knows nothing of a runtime.

#include <cstdlib>
#include <cstring>

#include "paged_attention.h"

namespace edgekv {

#if defined(__x86_64__)
extern const Kernels kernels_baseline, kernels_avx2, kernels_avx512;
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
#else
extern const Kernels kernels_baseline;
#endif

namespace {

struct Choice {
  const Kernels* kernels;
  bool runs_here;
};

const Kernels* choose(const Choice* choices, int count, const char* wanted, const char** reason) {
  for (int i = 0; i < count; ++i) {
    const bool named = wanted && std::strcmp(wanted, choices[i].kernels->name) == 0;
    if (named && !choices[i].runs_here) {
      *reason = "EDGEKV_CPU_ISA names an instruction set this processor lacks";
      return nullptr;
    }
    if (named || (!wanted && choices[i].runs_here)) return choices[i].kernels;
  }
  *reason = "EDGEKV_CPU_ISA must be one of the instruction sets in docs/paged_attention.md";
  return nullptr;
}

}  // namespace

const Kernels* select_kernels(const char** reason) {
  const char* wanted = std::getenv("EDGEKV_CPU_ISA");
  if (wanted && *wanted == '\0') wanted = nullptr;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const Choice choices[] = {
      {&kernels_avx512, avx512}, {&kernels_avx2, avx2}, {&kernels_baseline, true}};
#elif defined(__aarch64__)
  const Choice choices[] = {{&kernels_neon, true}};
#else
  const Choice choices[] = {{&kernels_baseline, true}};
#endif
  return choose(choices, int(sizeof choices / sizeof choices[0]), wanted, reason);
}

}  // namespace edgekv
