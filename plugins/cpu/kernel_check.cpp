// Runs the kernels without a runtime, on random calls, against a plain double-precision reference.
//
// Owns: nothing that ships. For sanitizers and for processors that are emulated, where loading ONNX
// Runtime is not wanted: every buffer has exactly its size, so a sanitizer sees any step outside.
// Prints what it ran; exit code 1 and one line at the first call that differs.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "paged_attention.h"
#include "plan.h"
#include "validate.h"

namespace {

using namespace edgekv;

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

size_t element_bytes(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? 4 : dtype == Dtype::kInt8 ? 1 : 2;
}

float half_to_float(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(float(mantissa), -24);
  return sign * std::ldexp(float(mantissa + 1024), exponent - 25);
}

double pool_number(const Problem& p, const std::vector<uint8_t>& pool, const std::vector<float>& scales,
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

Problem make_problem(Random& random, Dtype pool_dtype) {
  constexpr int kDims[] = {8, 16, 20, 32, 40, 64, 80, 96, 128, 256};
  constexpr int kSizes[] = {1, 4, 8, 16, 32};
  Problem p;
  p.pool_dtype = pool_dtype;
  p.g.num_kv_heads = random.integer(1, 3);
  p.g.num_heads = p.g.num_kv_heads * random.integer(1, 5);
  p.g.head_dim = kDims[random.integer(0, 9)];
  p.g.rotary_pairs = random.integer(0, p.g.head_dim / 2);
  p.g.rotary_interleaved = random.integer(0, 1);
  p.g.scale = 0.2f;
  p.g.softcap = random.integer(0, 2) == 0 ? 3.0f : 0.0f;
  p.g.window = random.integer(0, 2) == 0 ? random.integer(1, 40) : 0;
  for (int i = 0; i < p.g.rotary_pairs; ++i) {
    p.turns.push_back(0.1 / (1 + i));
    p.axes.push_back(random.integer(0, 1));
  }
  p.page_size = kSizes[random.integer(0, 4)];
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

Call make_call(Problem& p) {
  p.g.turns_per_position = p.turns.data();
  p.g.freq_axes = p.axes.data();
  Call call{};
  call.geometry = p.g;
  call.pool_dtype = p.pool_dtype;
  call.num_tokens = p.tokens;
  call.num_pages = p.pages;
  call.page_size = p.page_size;
  call.query = p.query.data();
  call.key_pool = p.key_pool.data();
  call.value_pool = p.value_pool.data();
  call.key_scales = p.key_scales.empty() ? nullptr : p.key_scales.data();
  call.value_scales = p.value_scales.empty() ? nullptr : p.value_scales.data();
  call.slot_mapping = p.slots.data();
  call.kv_limits = p.limits.data();
  call.query_indices = p.indices.data();
  call.sinks = p.sinks.empty() ? nullptr : p.sinks.data();
  call.output = p.output.data();
  call.page_mass = p.mass.empty() ? nullptr : p.mass.data();
  call.mass_weights = p.weights.data();
  return call;
}

// Writes one token to every valid slot, through the kernel under test.
void fill_pools(Problem& p, const Kernels& kernels, Random& random) {
  std::vector<char> used(size_t(p.pages) * p.page_size, 0);
  for (size_t e = 0; e + 3 < p.table.size(); e += 4)
    for (int i = 0; p.table[e] >= 0 && i < p.table[e + 1]; ++i)
      used[size_t(p.table[e]) * p.page_size + i] = 1;
  std::vector<int32_t> slots;
  for (size_t slot = 0; slot < used.size(); ++slot)
    if (used[slot]) slots.push_back(int32_t(slot));
  slots.push_back(-1);
  std::vector<float> key, value;
  for (size_t i = 0; i < slots.size() * size_t(p.g.num_kv_heads) * p.g.head_dim; ++i) {
    key.push_back(random.real());
    value.push_back(random.real());
  }
  Call call = make_call(p);
  call.num_tokens = int32_t(slots.size());
  call.slot_mapping = slots.data();
  call.key = key.data();
  call.value = value.data();
  for (int head = 0; head < p.g.num_kv_heads; ++head) kernels.write_head(call, head);
}

// One head's output of one token; adds what it gives to each page to the expected mass.
std::vector<double> reference_row(Problem& p, int row, int token, int head) {
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

double largest_difference(Problem& p) {
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

void run(Problem& p, const Kernels& kernels, Plan& plan, Random& random) {
  fill_pools(p, kernels, random);
  Call call = make_call(p);
  const Tables tables{p.table.data(), p.rows, p.columns, 2, p.starts.data()};
  if (const std::string error = validate_call(call, tables); !error.empty()) {
    std::printf("%s\n", error.c_str());
    std::exit(1);
  }
  plan.prepare(tables, kernels, call);
  const size_t bytes = size_t(scratch_floats(p.g)) * sizeof(float);
  const std::unique_ptr<float, void (*)(void*)> scratch(
      static_cast<float*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), std::free);
  for (const Task& task : plan.tasks()) kernels.run_task(call, task, scratch.get());
  for (const Task& task : plan.tasks())
    if (task.num_parts > 1 && task.part == 0) kernels.merge(call, task);
  if (!plan.weighs()) return;
  for (const Task& task : plan.tasks())
    if (task.mass >= 0) kernels.weigh(call, task, scratch.get());
  plan.add_masses(call);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
  const char* reason = nullptr;
  const Kernels* kernels = select_kernels(&reason);
  if (!kernels) {
    std::printf("%s\n", reason);
    return 1;
  }
  Random random;
  Plan plan;
  double worst = 0.0;
  for (int round = 0; round < rounds; ++round)
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8}) {
      Problem problem = make_problem(random, dtype);
      run(problem, *kernels, plan, random);
      const double difference = largest_difference(problem);
      worst = difference > worst ? difference : worst;
      if (!(difference < 2e-5)) {
        std::printf("%s: call %d, pool dtype %d differs by %g\n", kernels->name, round, int(dtype),
                    difference);
        return 1;
      }
    }
  std::printf("%s: %d calls agree, largest difference %.2g\n", kernels->name, 4 * rounds, worst);
  return 0;
}
