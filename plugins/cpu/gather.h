// From pages to tiles.
//
// Owns: walking a task's entries and turning their tokens, whatever the pool's dtype, into rows of f32.
// Guarantees: only valid tokens below the limit are loaded, padding is zero, a tile has one shift.
// Knows nothing of queries. Built once per instruction set, see vec.h.
#pragma once

#include "paged_attention.h"
#include "vec.h"

namespace edgekv {
namespace {

EDGEKV_INLINE int min_int(int a, int b) { return a < b ? a : b; }
EDGEKV_INLINE int max_int(int a, int b) { return a > b ? a : b; }

// One row of `count` numbers as f32 times `factor`, zeros behind it up to the padded length.
template <class T>
EDGEKV_INLINE void load_row(const T* from, int count, float factor, float* to) {
  int d = 0;
  for (; d + kWidth <= count; d += kWidth) store(to + d, load(from + d) * factor);
  for (; d < count; ++d) to[d] = to_float(from[d]) * factor;
  for (; d < padded(count); ++d) to[d] = 0.0f;
}

// Entries ahead of the one being read that are asked for: pages lie anywhere, so the processor cannot
// guess the next one. Asking costs nothing where the page is in the cache already.
constexpr int kPrefetchEntries = 4;
constexpr int kCacheLine = 64;

template <class T>
EDGEKV_INLINE void prefetch_row(const T* row, int count) {
  const char* bytes = reinterpret_cast<const char*>(row);
  for (int i = 0; i < count * int(sizeof(T)); i += kCacheLine) __builtin_prefetch(bytes + i, 0, 2);
}

struct Tile {
  int count;            // tokens gathered
  int start;            // logical index of the first
  int entry, offset;    // where the next tile begins
};

// Gathers up to kTileTokens tokens from logical index `from` on, ending at `limit` or where the
// shift changes, as rows of `stride` floats. A second call with the same cursor gathers the other pool.
template <class T>
Tile gather(const Call& call, const Task& task, Tile at, int limit, const T* pool,
            const float* scales, float* rows) {
  const Geometry& g = call.geometry;
  const int dim = g.head_dim, stride = padded(dim);
  const int rotation = call.entries[at.entry].rotation;
  Tile tile{0, call.entries[at.entry].start + at.offset, at.entry, at.offset};
  while (tile.entry < task.last_entry && tile.count < kTileTokens) {
    const Entry& entry = call.entries[tile.entry];
    const int room = min_int(kTileTokens - tile.count, entry.count - tile.offset);
    const int take = min_int(room, limit - (entry.start + tile.offset));
    if (entry.rotation != rotation || take <= 0) break;
    const int64_t slot =
        (int64_t{entry.page} * g.num_kv_heads + task.kv_head) * call.page_size + tile.offset;
    const int ahead = min_int(tile.entry + kPrefetchEntries, task.last_entry - 1);
    const int64_t ahead_slot =
        (int64_t{call.entries[ahead].page} * g.num_kv_heads + task.kv_head) * call.page_size +
        tile.offset;
    for (int i = 0; i < take; ++i) {
      const float factor = scales ? scales[slot + i] : 1.0f;
      prefetch_row(pool + (ahead_slot + i) * dim, dim);
      load_row(pool + (slot + i) * dim, dim, factor, rows + int64_t{tile.count + i} * stride);
    }
    tile.count += take;
    tile.offset += take;
    if (tile.offset == entry.count) {
      ++tile.entry;
      tile.offset = 0;
    }
  }
  return tile;
}

}  // namespace
}  // namespace edgekv
