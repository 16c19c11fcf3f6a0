// Random calls of the operator and what they must give, in plain double precision.
//
// Owns: nothing that ships. Every array has exactly its size, so a sanitizer sees any step outside; pools
// hold NaN wherever no valid token lies. Knows no kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "paged_attention.h"

namespace edgekv::reference {

struct Random {
  std::mt19937 engine{7};
  int integer(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); }
  float real() { return std::normal_distribution<float>(0.0f, 1.0f)(engine); }
};

// A call with all its arrays. Pools hold NaN wherever no valid token lies.
struct Problem {
  Geometry g{};
  Dtype pool_dtype = Dtype::kFloat32;
  int tokens = 0, pages = 0, page_size = 0, columns = 0, rows = 0;
  std::vector<double> turns;
  std::vector<int32_t> axes, table, starts, slots, limits, indices;
  std::vector<float> query, key, value, key_scales, value_scales, sinks, output;
  std::vector<float> weights, mass;    // (B), (P), or both empty
  std::vector<double> expected_mass;  // (P)
  std::vector<uint8_t> key_pool, value_pool;
};

inline size_t element_bytes(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? 4 : dtype == Dtype::kInt8 ? 1 : 2;
}

inline float half_to_float(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(float(mantissa), -24);
  return sign * std::ldexp(float(mantissa + 1024), exponent - 25);
}

inline double pool_number(const Problem& p, const std::vector<uint8_t>& pool, const std::vector<float>& scales,
                   int64_t row, int d) {
  const uint8_t* at = pool.data() + (row * p.g.head_dim + d) * element_bytes(p.pool_dtype);
  float x;
  uint16_t h;
  switch (p.pool_dtype) {
    case Dtype::kFloat32: std::memcpy(&x, at, 4); return x;
    case Dtype::kInt8: return double(int8_t(*at)) * scales[row];
    case Dtype::kFloat16: std::memcpy(&h, at, 2); return half_to_float(h);
    default: {
      std::memcpy(&h, at, 2);
      const uint32_t bits = uint32_t(h) << 16;
      std::memcpy(&x, &bits, 4);
      return x;
    }
  }
}

inline Problem make_problem(Random& random, Dtype pool_dtype, const std::vector<int>& dims,
                            const std::vector<int>& page_sizes) {
  Problem p;
  p.pool_dtype = pool_dtype;
  p.g.num_kv_heads = random.integer(1, 3);
  p.g.num_heads = p.g.num_kv_heads * random.integer(1, 5);
  p.g.head_dim = dims[size_t(random.integer(0, int(dims.size()) - 1))];
  p.g.rotary_pairs = random.integer(0, p.g.head_dim / 2);
  p.g.rotary_interleaved = random.integer(0, 1);
  p.g.scale = 0.2f;
  p.g.softcap = random.integer(0, 2) == 0 ? 3.0f : 0.0f;
  p.g.window = random.integer(0, 2) == 0 ? random.integer(1, 40) : 0;
  for (int i = 0; i < p.g.rotary_pairs; ++i) {
    p.turns.push_back(0.1 / (1 + i));
    p.axes.push_back(random.integer(0, 1));
  }
  p.page_size = page_sizes[size_t(random.integer(0, int(page_sizes.size()) - 1))];
  p.pages = random.integer(1, 60);
  p.columns = random.integer(0, 50);
  p.rows = random.integer(0, 3);
  const int64_t slots = int64_t{p.pages} * p.g.num_kv_heads * p.page_size;
  p.key_pool.assign(slots * p.g.head_dim * element_bytes(pool_dtype), 0xff);  // NaN in every dtype
  p.value_pool = p.key_pool;
  if (pool_dtype == Dtype::kInt8) p.key_scales.assign(slots, NAN), p.value_scales.assign(slots, NAN);
  p.starts.push_back(0);
  for (int row = 0; row < p.rows; ++row) {
    int total = 0, shift = 0;
    for (int m = 0; m < p.columns; ++m) {
      if (random.integer(0, 4) == 0) shift = -random.integer(0, 200);
      const int page = random.integer(-1, p.pages - 1), valid = random.integer(0, p.page_size);
      p.table.insert(p.table.end(), {page, valid, shift, shift / 3});
      if (page >= 0) total += valid;
    }
    const int queries = random.integer(0, random.integer(0, 3) == 0 ? 60 : 3);
    for (int q = 0; q < queries; ++q) {
      p.limits.push_back(random.integer(0, total));
      p.indices.push_back(p.limits.back() - 1);
      p.slots.push_back(-1);
    }
    p.starts.push_back(p.starts.back() + queries);
  }
  p.tokens = p.starts.back();
  const auto fill = [&](std::vector<float>& v, int64_t count) {
    for (int64_t i = 0; i < count; ++i) v.push_back(random.real());
  };
  fill(p.query, int64_t{p.tokens} * p.g.num_heads * p.g.head_dim);
  if (random.integer(0, 1)) fill(p.sinks, p.g.num_heads);
  p.output.assign(p.query.size(), NAN);
  if (random.integer(0, 1)) {
    for (int row = 0; row < p.rows; ++row) p.weights.push_back(0.5f * random.integer(0, 3));
    p.mass.assign(p.pages, 0.0f);
    p.expected_mass.assign(p.pages, 0.0);
  }
  return p;
}

// Slots that hold a valid token of some row.
inline std::vector<int32_t> used_slots(const Problem& p) {
  std::vector<char> used(size_t(p.pages) * p.page_size, 0);
  for (size_t e = 0; e + 3 < p.table.size(); e += 4)
    for (int i = 0; p.table[e] >= 0 && i < p.table[e + 1]; ++i)
      used[size_t(p.table[e]) * p.page_size + i] = 1;
  std::vector<int32_t> slots;
  for (size_t slot = 0; slot < used.size(); ++slot)
    if (used[slot]) slots.push_back(int32_t(slot));
  return slots;
}

// One head's output of one token; adds what it gives to each page to the expected mass.
inline std::vector<double> reference_row(Problem& p, int row, int token, int head) {
  const int pairs = p.g.rotary_pairs, dim = p.g.head_dim;
  const int kv_head = head / (p.g.num_heads / p.g.num_kv_heads);
  const float* q = p.query.data() + (int64_t{token} * p.g.num_heads + head) * dim;
  std::vector<double> scores, out(dim, 0.0);
  std::vector<int64_t> at;
  int j = 0;
  for (int m = 0; m < p.columns; ++m) {
    const int32_t* entry = p.table.data() + (int64_t{row} * p.columns + m) * 4;
    if (entry[0] < 0) continue;
    std::vector<double> turned(q, q + dim);
    for (int i = 0; i < pairs; ++i) {
      const double angle = -entry[2 + p.axes[i]] * p.turns[i] * 6.283185307179586;
      const int a = p.g.rotary_interleaved ? 2 * i : i, b = p.g.rotary_interleaved ? 2 * i + 1 : i + pairs;
      turned[a] = q[a] * std::cos(angle) - q[b] * std::sin(angle);
      turned[b] = q[a] * std::sin(angle) + q[b] * std::cos(angle);
    }
    for (int i = 0; i < entry[1]; ++i, ++j) {
      if (j >= p.limits[token] || (p.g.window && j <= p.indices[token] - p.g.window)) continue;
      const int64_t where = (int64_t{entry[0]} * p.g.num_kv_heads + kv_head) * p.page_size + i;
      double score = 0.0;
      for (int d = 0; d < dim; ++d) score += turned[d] * pool_number(p, p.key_pool, p.key_scales, where, d);
      score *= p.g.scale;
      scores.push_back(p.g.softcap ? p.g.softcap * std::tanh(score / p.g.softcap) : score);
      at.push_back(where);
    }
  }
  double top = p.sinks.empty() ? -INFINITY : p.sinks[head], total = 0.0;
  for (const double s : scores) top = std::max(top, s);
  for (size_t k = 0; k < at.size(); ++k) {
    const double weight = std::exp(scores[k] - top);
    total += weight;
    for (int d = 0; d < dim; ++d) out[d] += weight * pool_number(p, p.value_pool, p.value_scales, at[k], d);
  }
  if (!p.sinks.empty()) total += std::exp(p.sinks[head] - top);
  for (size_t k = 0; k < at.size() && !p.mass.empty(); ++k)
    p.expected_mass[at[k] / (int64_t{p.g.num_kv_heads} * p.page_size)] +=
        p.weights[row] * std::exp(scores[k] - top) / total;
  for (double& x : out) x = at.empty() ? 0.0 : x / total;
  return out;
}

inline double largest_difference(Problem& p) {
  double worst = 0.0;
  for (int row = 0; row < p.rows; ++row)
    for (int token = p.starts[row]; token < p.starts[row + 1]; ++token)
      for (int head = 0; head < p.g.num_heads; ++head) {
        const std::vector<double> expected = reference_row(p, row, token, head);
        for (int d = 0; d < p.g.head_dim; ++d) {
          const float got = p.output[(size_t(token) * p.g.num_heads + head) * p.g.head_dim + d];
          const double difference = std::fabs(expected[d] - got);
          worst = difference <= worst ? worst : difference;  // NaN counts as different
        }
      }
  for (size_t page = 0; page < p.mass.size(); ++page) {
    const double expected = p.expected_mass[page];
    const double difference = std::fabs(expected - p.mass[page]) / (1.0 + std::fabs(expected));
    worst = difference <= worst ? worst : difference;
  }
  return worst;
}

}  // namespace edgekv::reference
