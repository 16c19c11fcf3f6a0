// The compiled kernels that are linked into this library.
//
// Owns: the form of the table. The table itself is written by make_table.py from the manifest of
// scripts/build_plugin.py (plugins/triton/launch.md says what its fields mean), one entry per cubin.
#pragma once

#include <cstdint>

namespace edgekv::cuda {

struct ArgumentEntry {
  const char* name;
  const char* type;  // "*…" a device pointer, "i32", "fp32"
};

struct Variant {
  const char* kernel;  // "prepare", "attend", "combine", "mass"
  const char* config;  // attend: "decode" or "prefill", else ""
  int32_t head_dim, page_size;
  const char *query_dtype, *pool_dtype;
  bool softcap;
  int32_t block_m, block_n;
  int32_t arch;  // 87 = sm_87
  const char* symbol;
  int32_t num_warps, shared_bytes;
  const void* image;  // the cubin
  const ArgumentEntry* args;
  int32_t num_args;
};

struct KernelTable {
  const Variant* variants;
  int32_t size;
};

// Empty in a library that was built without kernels.
KernelTable kernel_table();

}  // namespace edgekv::cuda
