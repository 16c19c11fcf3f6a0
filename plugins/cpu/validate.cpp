// See validate.h.

#include "validate.h"

#include <cmath>
#include <limits>

namespace edgekv {
namespace {

std::string number(int64_t value) { return std::to_string(value); }

std::string element(const char* array, int64_t index, int64_t value) {
  return std::string(array) + "[" + number(index) + "] = " + number(value);
}

std::string check_rows(const Tables& tables, int32_t num_tokens) {
  const int32_t* starts = tables.query_starts;
  const int32_t rows = tables.num_rows;
  if (starts[0] != 0) return element("query_starts", 0, starts[0]) + ", must be 0";
  for (int32_t b = 0; b < rows; ++b)
    if (starts[b + 1] < starts[b])
      return element("query_starts", b + 1, starts[b + 1]) + " is less than the one before it";
  if (starts[rows] != num_tokens)
    return element("query_starts", rows, starts[rows]) + ", must be the number of tokens " +
           number(num_tokens);
  return {};
}

// One row's entries; adds up its tokens.
std::string check_entries(const Call& call, const Tables& tables, int32_t row, int64_t* tokens) {
  const int64_t width = 2 + tables.num_axes;
  for (int32_t m = 0; m < tables.num_columns; ++m) {
    const int32_t* entry = tables.page_table + (int64_t{row} * tables.num_columns + m) * width;
    if (entry[0] == -1) continue;
    const std::string where = "page_table[" + number(row) + "][" + number(m) + "]";
    if (entry[0] < 0 || entry[0] >= call.num_pages)
      return where + " names page " + number(entry[0]) + ", the pool has pages 0 to " +
             number(call.num_pages - 1);
    if (entry[1] < 0 || entry[1] > call.page_size)
      return where + " says " + number(entry[1]) + " valid tokens, a page has " +
             number(call.page_size);
    *tokens += entry[1];
  }
  if (*tokens > std::numeric_limits<int32_t>::max())
    return "page_table row " + number(row) + " has " + number(*tokens) + " tokens, too many to count";
  return {};
}

std::string check_tokens(const Call& call, const Tables& tables, int32_t row, int64_t num_kv_tokens) {
  const int64_t num_slots = int64_t{call.num_pages} * call.page_size;
  for (int32_t t = tables.query_starts[row]; t < tables.query_starts[row + 1]; ++t) {
    if (call.kv_limits[t] < 0 || call.kv_limits[t] > num_kv_tokens)
      return element("kv_limits", t, call.kv_limits[t]) + ", row " + number(row) + " has " +
             number(num_kv_tokens) + " tokens";
    if (call.key && (call.slot_mapping[t] < -1 || call.slot_mapping[t] >= num_slots))
      return element("slot_mapping", t, call.slot_mapping[t]) + ", the pool has slots 0 to " +
             number(num_slots - 1);
  }
  return {};
}

}  // namespace

std::string validate_geometry(const Geometry& g) {
  constexpr int32_t kMaxHeads = 1 << 14, kMaxDim = 1 << 14;
  if (g.num_heads < 1 || g.num_heads > kMaxHeads)
    return "num_heads = " + number(g.num_heads) + ", must be 1 to " + number(kMaxHeads);
  if (g.num_kv_heads < 1 || g.num_heads % g.num_kv_heads != 0)
    return "num_kv_heads = " + number(g.num_kv_heads) + " does not divide num_heads = " +
           number(g.num_heads);
  if (g.head_dim < 1 || g.head_dim > kMaxDim)
    return "head_dim = " + number(g.head_dim) + ", must be 1 to " + number(kMaxDim);
  if (2 * int64_t{g.rotary_pairs} > g.head_dim)
    return "inv_freq has " + number(g.rotary_pairs) + " values, more than half of head_dim = " +
           number(g.head_dim);
  if (!std::isfinite(g.scale)) return "scale must be a finite number";
  if (!std::isfinite(g.softcap) || g.softcap < 0.0f) return "softcap must be 0 or a positive number";
  if (g.window < 0) return "window = " + number(g.window) + ", must be 0 or positive";
  for (int32_t i = 0; i < g.rotary_pairs; ++i) {
    if (!std::isfinite(g.turns_per_position[i]))
      return "inv_freq[" + number(i) + "] must be a finite number";
    if (g.freq_axes[i] < 0)
      return element("freq_axes", i, g.freq_axes[i]) + ", must be 0 or positive";
  }
  return {};
}

std::string validate_call(const Call& call, const Tables& tables) {
  for (int32_t i = 0; i < call.geometry.rotary_pairs; ++i)
    if (call.geometry.freq_axes[i] >= tables.num_axes)
      return element("freq_axes", i, call.geometry.freq_axes[i]) + ", page_table has " +
             number(tables.num_axes) + " rope axes";
  if (std::string error = check_rows(tables, call.num_tokens); !error.empty()) return error;
  for (int32_t row = 0; row < tables.num_rows; ++row) {
    if (call.page_mass && !std::isfinite(call.mass_weights[row]))
      return "mass_weights[" + number(row) + "] must be a finite number";
    int64_t num_kv_tokens = 0;
    if (std::string error = check_entries(call, tables, row, &num_kv_tokens); !error.empty())
      return error;
    if (std::string error = check_tokens(call, tables, row, num_kv_tokens); !error.empty())
      return error;
  }
  return {};
}

}  // namespace edgekv
