// Which kernels a call launches, over how many blocks, in which workspace.
//
// Owns: the arithmetic of plugins/triton/launch.md. Guarantees: everything follows from numbers the host
// knows; nothing allocates. Held to plugins/triton/launch_cases.json. Knows neither CUDA nor a kernel.
// Symbols as in docs/paged_attention.md.
#pragma once

#include <cstdint>

namespace edgekv::cuda {

// What a node fixes.
struct NodeSizes {
  int64_t num_heads, num_kv_heads, head_dim, page_size;
  bool read_only;  // no key and value
  bool page_mass;
};

// What the host knows of a call.
struct CallSizes {
  int64_t num_tokens, num_rows, num_columns;  // T, B, M
};

// Query rows (m) and keys (n) of a step, of the compiled variants.
struct Blocks {
  int64_t decode_m, decode_n, prefill_m, prefill_n, prepare_m, mass_n;
};

struct Grid {
  int64_t x, y, z;  // x = 0: not launched
};

struct Part {
  int64_t offset, bytes;  // in the workspace
};

struct LaunchPlan {
  bool prefill;  // which variant of attend
  int64_t num_splits, num_writers;
  Grid prepare, attend, combine, mass;
  Part starts, run_ends, lse, stats, partial;
  int64_t workspace_bytes;
};

LaunchPlan plan_launches(const NodeSizes& node, const CallSizes& call, const Blocks& blocks,
                         int64_t num_multiprocessors);

// Bytes that are enough for every call no larger than `largest` in any size.
int64_t workspace_bound(const NodeSizes& node, const CallSizes& largest, const Blocks& blocks,
                        int64_t num_multiprocessors);

}  // namespace edgekv::cuda
