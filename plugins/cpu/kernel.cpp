// The paged-attention kernels, built once per instruction set (EDGEKV_KERNELS names the table).
//
// Owns: the task, the online softmax, the joining of parts. Guarantees: accumulation in f32; a slot that
// is not valid or not visible is never loaded into a product that reaches an output; no allocation.
// Knows nothing of a runtime, of threads or of validation.
//
// A task walks its entries in runs of equal shift: the queries are turned back by the shift once per
// run, then the run's tokens are gathered, up to kTileTokens at a time, as f32 rows. Heads of a group
// share every gathered tile.

#include "gather.h"
#include "paged_attention.h"
#include "product.h"
#include "rotate.h"
#include "vec.h"
#include "write.h"

namespace edgekv {
namespace {

constexpr float kMinusInf = -__builtin_inff();
// From this many rows on, transposing a tile of keys is cheaper than summing across lanes.
constexpr int kTransposeRows = 8;

// Views into the thread's scratch, and what the task's rows are. Row r is query token
// first_token + r / group, head kv_head * group + r % group.
struct Work {
  int rows, group, dim;  // dim is padded
  float *query, *rotated, *sums, *scores, *row_max, *row_sum, *tile, *transposed;
};

Work make_work(const Call& call, const Task& task, float* scratch) {
  const Geometry& g = call.geometry;
  Work w;
  w.group = g.num_heads / g.num_kv_heads;
  w.rows = (task.last_token - task.first_token) * w.group;
  w.dim = padded(g.head_dim);
  const int64_t capacity = max_rows(g);
  w.query = scratch;
  w.rotated = w.query + capacity * w.dim;
  w.sums = w.rotated + capacity * w.dim;
  w.tile = w.sums + capacity * w.dim;
  w.transposed = w.tile + kTileTokens * w.dim;
  w.scores = w.transposed + kTileTokens * w.dim;
  w.row_max = w.scores + capacity * kTileTokens;
  w.row_sum = w.row_max + capacity;
  return w;
}

void load_queries(const Call& call, const Task& task, const Work& w) {
  const Geometry& g = call.geometry;
  for (int r = 0; r < w.rows; ++r) {
    const int64_t from = (int64_t{task.first_token + r / w.group} * g.num_heads +
                          task.kv_head * w.group + r % w.group) * g.head_dim;
    float* to = w.query + r * w.dim;
    if (call.query_dtype == Dtype::kFloat32) {
      load_row(static_cast<const float*>(call.query) + from, g.head_dim, g.scale, to);
    } else {
      load_row(static_cast<const Half*>(call.query) + from, g.head_dim, g.scale, to);
    }
    for (int d = g.head_dim; d < w.dim; ++d) w.rotated[r * w.dim + d] = 0.0f;
    for (int d = 0; d < w.dim; d += kWidth) store(w.sums + r * w.dim + d, splat(0.0f));
    w.row_max[r] = kMinusInf;
    w.row_sum[r] = 0.0f;
  }
}

// Logical indices [first, last) that a query token sees; empty when last <= first.
struct Visible {
  int first, last;
};

EDGEKV_INLINE Visible visible(const Call& call, int token) {
  const int window = call.geometry.window;
  // In 64 bits: an index near the smallest integer minus a window must not wrap around.
  const int64_t first = window > 0 ? int64_t{call.query_indices[token]} - window + 1 : 0;
  return {first > 0 ? int(first > 0x7fffffff ? 0x7fffffff : first) : 0, call.kv_limits[token]};
}

Visible visible_to_any(const Call& call, const Task& task) {
  Visible all{0x7fffffff, 0};
  for (int t = task.first_token; t < task.last_token; ++t) {
    const Visible one = visible(call, t);
    if (one.last <= one.first) continue;
    all.first = min_int(all.first, one.first);
    all.last = max_int(all.last, one.last);
  }
  return all;
}

EDGEKV_INLINE void cap_scores(const Call& call, float* scores, int columns) {
  const float cap = call.geometry.softcap;
  if (cap == 0.0f) return;
  for (int k = 0; k < columns; k += kWidth)
    store(scores + k, vtanh(load(scores + k) * (1.0f / cap)) * cap);
}

// Turns a row of scores over tile positions [low, high) into weights and updates max, sum and the
// row's accumulator. Positions outside get weight 0.
EDGEKV_INLINE void soften(const Call& call, const Work& w, int row, int count, int low, int high) {
  float* scores = w.scores + row * kTileTokens;
  const int columns = (count + kWidth - 1) / kWidth * kWidth;
  cap_scores(call, scores, columns);
  for (int k = 0; k < low; ++k) scores[k] = kMinusInf;
  for (int k = high; k < columns; ++k) scores[k] = kMinusInf;
  Vec best = load(scores);
  for (int k = kWidth; k < columns; k += kWidth) best = maximum(best, load(scores + k));
  const float before = w.row_max[row];
  const float tile_max = horizontal_max(best);
  const float now = tile_max > before ? tile_max : before;
  Vec total = splat(0.0f);
  for (int k = 0; k < columns; k += kWidth) {
    const Vec weight = vexp(load(scores + k) - now);
    store(scores + k, weight);
    total += weight;
  }
  if (now != before) {
    const float keep = exp_one(before - now);
    w.row_sum[row] *= keep;
    w.row_max[row] = now;
    float* sums = w.sums + row * w.dim;
    for (int d = 0; d < w.dim; d += kWidth) store(sums + d, load(sums + d) * keep);
  }
  w.row_sum[row] += horizontal_sum(total);
}

// Softmax and value product of one tile. Where some row does not see the whole tile, rows are taken
// one by one over what they see, so that no invisible value is ever multiplied, not even by 0.
template <class T>
void finish_tile(const Call& call, const Task& task, const Work& w, const Tile& at, const Tile& tile,
                 int limit, const T* pool) {
  bool whole = true;
  for (int r = 0; r < w.rows; ++r) {
    const Visible see = visible(call, task.first_token + r / w.group);
    const int low = max_int(see.first - tile.start, 0);
    const int high = min_int(see.last - tile.start, tile.count);
    whole = whole && low == 0 && high == tile.count;
    if (low < high) soften(call, w, r, tile.count, low, high);
  }
  gather(call, task, at, limit, pool, call.value_scales, w.tile);
  if (whole) {
    product(w.scores, kTileTokens, w.tile, w.dim, w.rows, tile.count, w.dim, w.sums, w.dim);
    return;
  }
  for (int r = 0; r < w.rows; ++r) {
    const Visible see = visible(call, task.first_token + r / w.group);
    const int low = max_int(see.first - tile.start, 0);
    const int high = min_int(see.last - tile.start, tile.count);
    if (low < high)
      product(w.scores + r * kTileTokens + low, kTileTokens, w.tile + low * w.dim, w.dim, 1,
              high - low, w.dim, w.sums + r * w.dim, w.dim);
  }
}

// Output row from accumulator, max and sum; the sink joins the sum here.
EDGEKV_INLINE void write_row(const Call& call, int token, int head, const float* sums, float row_max,
                             float row_sum) {
  const Geometry& g = call.geometry;
  const int64_t to = (int64_t{token} * g.num_heads + head) * g.head_dim;
  float factor = 0.0f;
  if (row_sum != 0.0f) {
    if (call.sinks) {
      const float sink = call.sinks[head];
      const float now = sink > row_max ? sink : row_max;
      const float keep = exp_one(row_max - now);
      factor = keep / (row_sum * keep + exp_one(sink - now));
    } else {
      factor = 1.0f / row_sum;
    }
  }
  if (call.softmax) {
    float* softmax = call.softmax + (int64_t{token} * g.num_heads + head) * 2;
    softmax[0] = row_max;
    softmax[1] = factor;
  }
  if (call.query_dtype == Dtype::kFloat32) {
    float* out = static_cast<float*>(call.output) + to;
    for (int d = 0; d < g.head_dim; ++d) out[d] = sums[d] * factor;
  } else {
    Half* out = static_cast<Half*>(call.output) + to;
    int d = 0;
    for (; d + kWidth <= g.head_dim; d += kWidth) store(out + d, load(sums + d) * factor);
    for (; d < g.head_dim; ++d) out[d] = to_half(sums[d] * factor);
  }
}

void write_results(const Call& call, const Task& task, const Work& w) {
  if (task.num_parts == 1) {
    for (int r = 0; r < w.rows; ++r)
      write_row(call, task.first_token + r / w.group, task.kv_head * w.group + r % w.group,
                w.sums + r * w.dim, w.row_max[r], w.row_sum[r]);
    return;
  }
  float* to = call.partials + task.partial + task.part * partial_floats(call.geometry, w.rows);
  for (int r = 0; r < w.rows; ++r) {
    to[r] = w.row_max[r];
    to[w.rows + r] = w.row_sum[r];
    float* sums = to + 2 * w.rows + r * w.dim;
    for (int d = 0; d < w.dim; d += kWidth) store(sums + d, load(w.sums + r * w.dim + d));
  }
}

// Walks the task's entries and scores one tile of keys after another: `finish(at, tile, limit)` finds
// the scores in w.scores, `at` where the tile began.
template <class T, class Finish>
EDGEKV_INLINE void score_tiles(const Call& call, const Task& task, const Work& w, Finish finish) {
  const Geometry& g = call.geometry;
  const T* key_pool = static_cast<const T*>(call.key_pool);
  load_queries(call, task, w);
  const Visible any = visible_to_any(call, task);
  int rotation = -2;  // none prepared yet
  Tile at{0, 0, task.first_entry, 0};
  while (at.entry < task.last_entry) {
    const Entry& entry = call.entries[at.entry];
    if (entry.start >= any.last) break;
    if (entry.start + entry.count <= any.first) {
      at = Tile{0, 0, at.entry + 1, 0};
      continue;
    }
    at.offset = max_int(at.offset, any.first - entry.start);
    if (entry.start + at.offset >= any.last) break;
    if (entry.rotation != rotation && entry.rotation >= 0) {
      const float* table = call.rotations + int64_t{entry.rotation} * 2 * g.rotary_pairs;
      for (int r = 0; r < w.rows; ++r)
        unrotate(g, table, w.query + r * w.dim, w.rotated + r * w.dim);
    }
    rotation = entry.rotation;
    const float* q = rotation >= 0 ? w.rotated : w.query;
    const Tile tile = gather(call, task, at, any.last, key_pool, call.key_scales, w.tile);
    if (w.rows >= kTransposeRows) {
      score_many(q, w.tile, w.rows, w.dim, tile.count, w.transposed, w.scores);
    } else {
      score_few(q, w.tile, w.rows, w.dim, tile.count, w.scores);
    }
    finish(at, tile, any.last);
    at = tile;
  }
}

template <class T>
void run_typed(const Call& call, const Task& task, float* scratch) {
  const Work w = make_work(call, task, scratch);
  const T* value_pool = static_cast<const T*>(call.value_pool);
  score_tiles<T>(call, task, w, [&](const Tile& at, const Tile& tile, int limit) {
    finish_tile(call, task, w, at, tile, limit, value_pool);
  });
  write_results(call, task, w);
}

void run_task(const Call& call, const Task& task, float* scratch) {
  switch (call.pool_dtype) {
    case Dtype::kFloat32: return run_typed<float>(call, task, scratch);
    case Dtype::kFloat16: return run_typed<Half>(call, task, scratch);
    case Dtype::kBfloat16: return run_typed<Brain>(call, task, scratch);
    case Dtype::kInt8: return run_typed<int8_t>(call, task, scratch);
  }
}

// Probabilities of one tile, summed over the task's rows, added to the entries they fell on. Only
// visible positions are read.
EDGEKV_INLINE void weigh_tile(const Call& call, const Task& task, const Work& w, Tile at,
                              const Tile& tile, float* mass) {
  float* columns = w.tile;  // the keys in it have been used
  const int padded_count = (tile.count + kWidth - 1) / kWidth * kWidth;
  for (int k = 0; k < padded_count; k += kWidth) store(columns + k, splat(0.0f));
  for (int r = 0; r < w.rows; ++r) {
    const int token = task.first_token + r / w.group, head = task.kv_head * w.group + r % w.group;
    const Visible see = visible(call, token);
    const int low = max_int(see.first - tile.start, 0);
    const int high = min_int(see.last - tile.start, tile.count);
    if (low >= high) continue;
    const float* softmax = call.softmax + (int64_t{token} * call.geometry.num_heads + head) * 2;
    float* scores = w.scores + r * kTileTokens;
    cap_scores(call, scores, padded_count);
    for (int k = 0; k < padded_count; k += kWidth) store(scores + k, vexp(load(scores + k) - softmax[0]));
    for (int k = low; k < high; ++k) columns[k] += scores[k] * softmax[1];
  }
  for (int k = 0; k < tile.count;) {
    const Entry& entry = call.entries[at.entry];
    const int take = min_int(tile.count - k, entry.count - at.offset);
    float sum = 0.0f;
    for (int i = 0; i < take; ++i) sum += columns[k + i];
    mass[at.entry - task.first_entry] += sum;
    k += take;
    at.offset += take;
    if (at.offset == entry.count) at = Tile{0, 0, at.entry + 1, 0};
  }
}

// The scores are worked out a second time: what a page's share is cannot be said before the whole
// softmax is known, and to keep the first time's would take memory that grows with the context.
template <class T>
void weigh_typed(const Call& call, const Task& task, float* scratch) {
  const Work w = make_work(call, task, scratch);
  float* mass = call.masses + task.mass;
  for (int e = 0; e < task.last_entry - task.first_entry; ++e) mass[e] = 0.0f;
  score_tiles<T>(call, task, w, [&](const Tile& at, const Tile& tile, int) {
    weigh_tile(call, task, w, at, tile, mass);
  });
}

void weigh(const Call& call, const Task& task, float* scratch) {
  switch (call.pool_dtype) {
    case Dtype::kFloat32: return weigh_typed<float>(call, task, scratch);
    case Dtype::kFloat16: return weigh_typed<Half>(call, task, scratch);
    case Dtype::kBfloat16: return weigh_typed<Brain>(call, task, scratch);
    case Dtype::kInt8: return weigh_typed<int8_t>(call, task, scratch);
  }
}

void merge(const Call& call, const Task& task) {
  const Geometry& g = call.geometry;
  const int group = g.num_heads / g.num_kv_heads, dim = padded(g.head_dim);
  const int rows = (task.last_token - task.first_token) * group;
  const int64_t part_floats = partial_floats(g, rows);
  float* first = call.partials + task.partial;  // part 0 becomes the total
  for (int r = 0; r < rows; ++r) {
    float* sums = first + 2 * rows + r * dim;
    for (int part = 1; part < task.num_parts; ++part) {
      const float* other = first + part * part_floats;
      if (other[rows + r] == 0.0f) continue;  // saw nothing
      const float now = other[r] > first[r] ? other[r] : first[r];
      const float keep = exp_one(first[r] - now), add = exp_one(other[r] - now);
      first[r] = now;
      first[rows + r] = first[rows + r] * keep + other[rows + r] * add;
      const float* from = other + 2 * rows + r * dim;
      for (int d = 0; d < dim; d += kWidth)
        store(sums + d, load(sums + d) * keep + load(from + d) * add);
    }
    write_row(call, task.first_token + r / group, task.kv_head * group + r % group, sums, first[r],
              first[rows + r]);
  }
}

}  // namespace

extern const Kernels EDGEKV_KERNELS;
const Kernels EDGEKV_KERNELS = {EDGEKV_ISA_NAME, fill_rotation, write_head, run_task, merge, weigh};

}  // namespace edgekv
