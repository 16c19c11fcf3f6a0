// The paged-attention kernels, built once per instruction set (EDGEKV_KERNELS names the table).
//
// Owns: rotation of queries, gathering of pages into tiles, the two small matrix products, the online
// softmax, and the writing of new tokens. Guarantees: accumulation in f32; a slot that is not valid
// or not visible is never loaded into a product that reaches an output; no allocation.
// Knows nothing of a runtime, of threads or of validation.
//
// A task walks its entries in runs of equal shift: the queries are turned back by the shift once per
// run, then the run's tokens are gathered, up to kTileTokens at a time, as f32 rows. Heads of a group
// share every gathered tile.

#include "paged_attention.h"
#include "vec.h"

namespace edgekv {
namespace {

constexpr float kMinusInf = -__builtin_inff();
constexpr int kRowBlock = 4;
// From this many rows on, transposing a tile of keys is cheaper than summing across lanes.
constexpr int kTransposeRows = 8;

EDGEKV_INLINE int min_int(int a, int b) { return a < b ? a : b; }
EDGEKV_INLINE int max_int(int a, int b) { return a > b ? a : b; }

// --- rotation ---------------------------------------------------------------------------------

// sin(2 pi x) for x in [-0.75, 0.75].
EDGEKV_INLINE float sin_turns(float x) {
  x = x > 0.5f ? x - 1.0f : x;
  x = x > 0.25f ? 0.5f - x : (x < -0.25f ? -0.5f - x : x);
  const float a = x * 6.28318531f;
  const float b = a * a;
  float p = b * 1.60590438e-10f - 2.50521084e-8f;
  p = p * b + 2.75573192e-6f;
  p = p * b - 1.98412698e-4f;
  p = p * b + 8.33333333e-3f;
  p = p * b - 1.66666667e-1f;
  return a + a * (b * p);
}

void fill_rotation(const Geometry& g, const int32_t* shift, float* table) {
  for (int i = 0; i < g.rotary_pairs; ++i) {
    // Whole turns are dropped in double, so a large shift loses nothing.
    const double turns = shift[g.freq_axes[i]] * g.turns_per_position[i];
    const double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
    const float x = float(turns - ((turns + magic) - magic));
    table[i] = sin_turns(x + 0.25f);
    table[g.rotary_pairs + i] = sin_turns(x);
  }
}

// out = R(-shift) q, one row of D numbers.
EDGEKV_INLINE void unrotate(const Geometry& g, const float* table, const float* q, float* out) {
  const int pairs = g.rotary_pairs;
  const float* cosine = table;
  const float* sine = table + pairs;
  const int step = g.rotary_interleaved ? 2 : 1;
  const int partner = g.rotary_interleaved ? 1 : pairs;
  for (int i = 0; i < pairs; ++i) {
    const float a = q[step * i], b = q[step * i + partner];
    out[step * i] = a * cosine[i] + b * sine[i];
    out[step * i + partner] = b * cosine[i] - a * sine[i];
  }
  for (int d = 2 * pairs; d < g.head_dim; ++d) out[d] = q[d];
}

// --- loading ----------------------------------------------------------------------------------

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

// --- products ---------------------------------------------------------------------------------

// Register block: out[R rows][V vectors] += a[R][depth] * b[depth][V vectors].
template <int R, int V>
EDGEKV_INLINE void product_block(const float* a, int a_stride, const float* b, int b_stride,
                                 int depth, float* out, int out_stride) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = load(out + r * out_stride + v * kWidth);
  for (int k = 0; k < depth; ++k) {
    Vec row[V];
    for (int v = 0; v < V; ++v) row[v] = load(b + int64_t{k} * b_stride + v * kWidth);
    for (int r = 0; r < R; ++r) {
      const Vec factor = splat(a[int64_t{r} * a_stride + k]);
      for (int v = 0; v < V; ++v) sum[r][v] += factor * row[v];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(out + r * out_stride + v * kWidth, sum[r][v]);
}

template <int R>
EDGEKV_INLINE void product_rows(const float* a, int a_stride, const float* b, int b_stride,
                                int depth, int columns, float* out, int out_stride) {
  int c = 0;
  for (; c + kColumnVectors * kWidth <= columns; c += kColumnVectors * kWidth)
    product_block<R, kColumnVectors>(a, a_stride, b + c, b_stride, depth, out + c, out_stride);
  for (; c < columns; c += kWidth)
    product_block<R, 1>(a, a_stride, b + c, b_stride, depth, out + c, out_stride);
}

// out (rows, columns) += a (rows, depth) b (depth, columns); columns a multiple of kWidth.
void product(const float* a, int a_stride, const float* b, int b_stride, int rows, int depth,
             int columns, float* out, int out_stride) {
  int r = 0;
  for (; r + kRowBlock <= rows; r += kRowBlock)
    product_rows<kRowBlock>(a + r * a_stride, a_stride, b, b_stride, depth, columns,
                            out + r * out_stride, out_stride);
  const float* rest = a + r * a_stride;
  float* to = out + r * out_stride;
  if (rows - r == 3) product_rows<3>(rest, a_stride, b, b_stride, depth, columns, to, out_stride);
  if (rows - r == 2) product_rows<2>(rest, a_stride, b, b_stride, depth, columns, to, out_stride);
  if (rows - r == 1) product_rows<1>(rest, a_stride, b, b_stride, depth, columns, to, out_stride);
}

// scores (rows, kTileTokens) = q (rows, dim) keys^T, summing across lanes: for few rows.
void score_few(const float* q, const float* keys, int rows, int dim, int count, float* scores) {
  for (int k = 0; k < count; k += kWidth) {
    for (int r = 0; r < rows; ++r) {
      Vec sum[kWidth] = {};
      for (int d = 0; d < dim; d += kWidth) {
        const Vec x = load(q + r * dim + d);
        for (int i = 0; i < kWidth; ++i) sum[i] += x * load(keys + (k + i) * dim + d);
      }
      store(scores + r * kTileTokens + k, sum_each(sum));
    }
  }
}

// The same for many rows: keys are transposed once, then no sum crosses lanes.
void score_many(const float* q, const float* keys, int rows, int dim, int count, float* transposed,
                float* scores) {
  for (int k = 0; k < count; k += kWidth) {
    for (int d = 0; d < dim; d += kWidth) {
      Vec block[kWidth];
      for (int i = 0; i < kWidth; ++i) block[i] = load(keys + (k + i) * dim + d);
      transpose(block);
      for (int i = 0; i < kWidth; ++i) store(transposed + (d + i) * kTileTokens + k, block[i]);
    }
  }
  const int columns = (count + kWidth - 1) / kWidth * kWidth;
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < columns; k += kWidth) store(scores + r * kTileTokens + k, splat(0.0f));
  product(q, dim, transposed, kTileTokens, rows, dim, columns, scores, kTileTokens);
}

// --- one task ---------------------------------------------------------------------------------

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

// Turns a row of scores over tile positions [low, high) into weights and updates max, sum and the
// row's accumulator. Positions outside get weight 0.
EDGEKV_INLINE void soften(const Call& call, const Work& w, int row, int count, int low, int high) {
  float* scores = w.scores + row * kTileTokens;
  const int columns = (count + kWidth - 1) / kWidth * kWidth;
  const float cap = call.geometry.softcap;
  if (cap != 0.0f) {
    for (int k = 0; k < columns; k += kWidth)
      store(scores + k, vtanh(load(scores + k) * (1.0f / cap)) * cap);
  }
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

template <class T>
void run_typed(const Call& call, const Task& task, float* scratch) {
  const Geometry& g = call.geometry;
  const Work w = make_work(call, task, scratch);
  const T* key_pool = static_cast<const T*>(call.key_pool);
  const T* value_pool = static_cast<const T*>(call.value_pool);
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
    finish_tile(call, task, w, at, tile, any.last, value_pool);
    at = tile;
  }
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

// --- writing new tokens -----------------------------------------------------------------------

template <class From, class To>
EDGEKV_INLINE void convert_row(const From* from, int count, To* to) {
  int d = 0;
  for (; d + kWidth <= count; d += kWidth) store(to + d, load(from + d));
  for (; d < count; ++d) store_one(to + d, to_float(from[d]));
}

template <class From>
EDGEKV_INLINE void quantize_row(const From* from, int count, int8_t* to, float* scale) {
  float largest = 0.0f;
  bool finite = true;
  for (int d = 0; d < count; ++d) {
    const float x = __builtin_fabsf(to_float(from[d]));
    finite = finite && x <= 3.402823466e38f;
    largest = x > largest ? x : largest;
  }
  *scale = finite ? largest / 127.0f : __builtin_nanf("");
  const bool divide = finite && *scale > 0.0f;
  for (int d = 0; d < count; ++d) {
    const float q = divide ? __builtin_rintf(to_float(from[d]) / *scale) : 0.0f;
    to[d] = int8_t(q > 127.0f ? 127.0f : (q < -127.0f ? -127.0f : q));  // a subnormal scale is inexact
  }
}

template <class From>
void write_rows(const Call& call, int kv_head, const From* from, void* pool, float* scales) {
  const Geometry& g = call.geometry;
  for (int t = 0; t < call.num_tokens; ++t) {
    const int slot = call.slot_mapping[t];
    if (slot < 0) continue;
    const int64_t row =
        (int64_t{slot / call.page_size} * g.num_kv_heads + kv_head) * call.page_size +
        slot % call.page_size;
    const From* source = from + (int64_t{t} * g.num_kv_heads + kv_head) * g.head_dim;
    const int64_t to = row * g.head_dim;
    switch (call.pool_dtype) {
      case Dtype::kFloat32: convert_row(source, g.head_dim, static_cast<float*>(pool) + to); break;
      case Dtype::kFloat16: convert_row(source, g.head_dim, static_cast<Half*>(pool) + to); break;
      case Dtype::kBfloat16: convert_row(source, g.head_dim, static_cast<Brain*>(pool) + to); break;
      case Dtype::kInt8:
        quantize_row(source, g.head_dim, static_cast<int8_t*>(pool) + to, scales + row);
        break;
    }
  }
}

void write_head(const Call& call, int32_t kv_head) {
  if (call.query_dtype == Dtype::kFloat32) {
    const float* key = static_cast<const float*>(call.key);
    const float* value = static_cast<const float*>(call.value);
    write_rows(call, kv_head, key, call.key_pool, call.key_scales);
    write_rows(call, kv_head, value, call.value_pool, call.value_scales);
  } else {
    const Half* key = static_cast<const Half*>(call.key);
    const Half* value = static_cast<const Half*>(call.value);
    write_rows(call, kv_head, key, call.key_pool, call.key_scales);
    write_rows(call, kv_head, value, call.value_pool, call.value_scales);
  }
}

}  // namespace

extern const Kernels EDGEKV_KERNELS;
const Kernels EDGEKV_KERNELS = {EDGEKV_ISA_NAME, fill_rotation, write_head, run_task, merge};

}  // namespace edgekv
