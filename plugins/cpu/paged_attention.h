// What one call of the paged-attention operator is, as raw pointers and plain numbers.
//
// Owns: the types shared by the planner, the kernels and whoever binds them to a runtime.
// Guarantees: nothing here allocates, throws or knows a runtime. Symbols as in
// docs/paged_attention.md: T tokens, B rows, P pages, S page size, D head dimension.
// Functions are static: a copy built for a newer instruction set must not be linked into another file.
// Kernels trust these structs; whoever fills them has validated every number.
#pragma once

#include <cstdint>

namespace edgekv {

enum class Dtype : int32_t { kFloat32, kFloat16, kBfloat16, kInt8 };

// Attributes of the node, fixed when the graph is loaded.
struct Geometry {
  int32_t num_heads;     // Hq
  int32_t num_kv_heads;  // Hk
  int32_t head_dim;      // D
  int32_t rotary_pairs;  // rotary_dim / 2, 0 = no rotation
  bool rotary_interleaved;
  float scale;
  float softcap;                     // 0 = none
  int32_t window;                    // 0 = none
  const double* turns_per_position;  // (rotary_pairs), inv_freq / 2 pi
  const int32_t* freq_axes;          // (rotary_pairs)
};

// A used page-table entry. `rotation` numbers a cos/sin table of the call, -1 = the shift is zero.
struct Entry {
  int32_t page;
  int32_t count;  // valid tokens, 1..S
  int32_t start;  // logical index of its first token in the row
  int32_t rotation;
};

// A run of one row's query tokens against one KV head and one part of the row's entries.
struct Task {
  int32_t first_token, last_token;  // [first, last) of T
  int32_t first_entry, last_entry;  // [first, last) of Call::entries
  int32_t kv_head;
  int32_t part, num_parts;  // num_parts > 1: result goes to `partial`, merged afterwards
  int64_t partial;          // offset in floats into Call::partials, of part 0
  int64_t mass;             // offset into Call::masses of its first entry, -1 = its row has no weight
  float mass_weight;        // of its row
};

struct Call {
  Geometry geometry;
  Dtype query_dtype;
  Dtype pool_dtype;
  int32_t num_tokens;    // T
  int32_t num_pages;     // P
  int32_t page_size;     // S
  const void* query;     // (T, Hq * D)
  const void* key;       // (T, Hk * D) or null = read-only pages
  const void* value;     // (T, Hk * D) or null
  void* key_pool;        // (P, Hk, S, D)
  void* value_pool;      // (P, Hk, S, D)
  float* key_scales;     // (P, Hk, S), int8 pools only
  float* value_scales;   // (P, Hk, S), int8 pools only
  const int32_t* slot_mapping;   // (T)
  const int32_t* kv_limits;      // (T)
  const int32_t* query_indices;  // (T), null when window is 0
  const float* sinks;            // (Hq) or null
  void* output;                  // (T, Hq * D)
  float* page_mass;              // (P) or null
  const float* mass_weights;     // (B), with page_mass

  const Entry* entries;
  const float* rotations;  // (num_rotations, 2, rotary_pairs): cosines, then sines
  float* partials;
  float* softmax;  // (T, Hq, 2) maximum and 1 / sum of each softmax; null when no row has a weight
  float* masses;   // one float per task with a weight and entry of that task
};

constexpr int32_t kTileTokens = 64;  // keys per inner step
constexpr int32_t kBlockRows = 32;   // query rows (tokens x heads of a group) a task aims at

// Every vector width in use divides this, so a padded row is whole vectors.
constexpr int32_t kPadFloats = 16;

static inline int32_t padded(int32_t count) { return (count + kPadFloats - 1) / kPadFloats * kPadFloats; }

// Query tokens per task: at least one, so a group wider than kBlockRows still works.
static inline int32_t tokens_per_task(const Geometry& g) {
  const int32_t group = g.num_heads / g.num_kv_heads;
  return group >= kBlockRows ? 1 : kBlockRows / group;
}

static inline int32_t max_rows(const Geometry& g) {
  return tokens_per_task(g) * (g.num_heads / g.num_kv_heads);
}

// One partial result is max, sum and padded accumulator of each of `rows` query rows.
static inline int64_t partial_floats(const Geometry& g, int32_t rows) {
  return int64_t{rows} * (2 + padded(g.head_dim));
}

// Scratch one thread needs for run_task, in floats: plain and rotated queries, accumulators, scores,
// max and sum per row, one tile of keys or values and one of transposed keys.
static inline int64_t scratch_floats(const Geometry& g) {
  const int64_t rows = max_rows(g);
  const int64_t dim = padded(g.head_dim);
  return rows * (3 * dim + kTileTokens + 2) + 2 * kTileTokens * dim;
}

// The kernels of one instruction set.
struct Kernels {
  const char* name;
  // cos and sin of `shift` (one int per rope axis) into table (2, rotary_pairs)
  void (*fill_rotation)(const Geometry&, const int32_t* shift, float* table);
  // Writes the new tokens of one KV head into their slots, in token order.
  void (*write_head)(const Call&, int32_t kv_head);
  // `scratch`: scratch_floats(), aligned to 64 bytes, used by one thread at a time.
  void (*run_task)(const Call&, const Task&, float* scratch);
  // Joins the parts of the task whose part 0 is given and writes its output.
  void (*merge)(const Call&, const Task&);
  // Fills the task's masses, once every output has been written. Scratch as for run_task.
  void (*weigh)(const Call&, const Task&, float* scratch);
};

// Best instruction set of this machine, or the lower one EDGEKV_CPU_ISA names
// (baseline, avx2, avx512, neon). Null, with `reason` set, when that name cannot run here.
const Kernels* select_kernels(const char** reason);

}  // namespace edgekv
