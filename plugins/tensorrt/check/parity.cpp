// Whole calls in numbers, through the plugin's own interface: on a GPU, or over the fake driver with its
// kernels emulated.
//
// A call writes every key and value the pool holds (one row of tokens that see nothing) and attends to
// them (the other rows), so one launch sequence shows writing, attention and mass. Behind it the same
// rows are computed by a node that only reads, as cross-attention has it. Each is run in place, and again
// with outputs apart and as a CUDA graph.

#include "parity.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "../../cpu/reference.h"
#include "check.h"
#include "life.h"
#include "numbers.h"

namespace edgekv::check {
namespace {

using cuda::Input;
using reference::Problem;
using reference::Random;

// How far an output may be from the reference, and a written number from what was given.
double output_tolerance(DataType query) {
  return query == DataType::kFLOAT ? 1e-3 : query == DataType::kHALF ? 2e-2 : 6e-2;
}
double write_tolerance(DataType pool) {
  return pool == DataType::kFLOAT ? 0.0 : pool == DataType::kHALF ? 0x1p-11 : 0x1p-8;
}

// A problem with the row that writes in front, and its bytes by input.
struct Prepared {
  NodeCase node;
  Problem problem;
  std::vector<int32_t> written;  // slots, one per token of the first row
  std::vector<float> key, value;
  std::map<int32_t, std::vector<uint8_t>> bytes;
};

template <class T>
std::vector<uint8_t> raw(const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const uint8_t*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

void put_first_row(Prepared& r, Random& random) {
  Problem& p = r.problem;
  r.written = reference::used_slots(p);
  const auto count = int32_t(r.written.size());
  const size_t width = size_t(p.g.num_heads) * p.g.head_dim;
  std::vector<float> query(size_t(count) * width, 1.0f);
  p.query.insert(p.query.begin(), query.begin(), query.end());
  p.output.assign(p.query.size(), NAN);
  for (int32_t& start : p.starts) start += count;
  p.starts.insert(p.starts.begin(), 0);
  p.limits.insert(p.limits.begin(), size_t(count), 0);
  p.indices.insert(p.indices.begin(), size_t(count), 0);
  p.slots.insert(p.slots.begin(), r.written.begin(), r.written.end());
  std::vector<int32_t> empty;
  for (int m = 0; m < p.columns; ++m) empty.insert(empty.end(), {-1, 0, 0, 0});
  p.table.insert(p.table.begin(), empty.begin(), empty.end());
  if (!p.mass.empty()) p.weights.insert(p.weights.begin(), 0.0f);
  p.rows += 1, p.tokens += count;
  const size_t numbers = size_t(p.tokens) * p.g.num_kv_heads * p.g.head_dim;
  for (size_t i = 0; i < numbers; ++i) {
    r.key.push_back(random.real());
    r.value.push_back(random.real());
  }
}

Prepared prepare(Random& random, const Supported& kind) {
  Prepared r;
  Problem& p = r.problem =
      reference::make_problem(random, dtype_of(kind.pool), {kind.head_dim}, {kind.page_size});
  p.g.softcap = kind.softcap ? 3.0f : 0.0f;
  for (double& turn : p.turns) turn = double(float(turn * 6.283185307179586)) / 6.283185307179586;
  put_first_row(r, random);
  for (std::vector<float>* values : {&p.query, &r.key, &r.value})
    *values = decode(encode(*values, kind.query), kind.query);  // what the device is given
  NodeCase& n = r.node;
  n.query = kind.query, n.pool = kind.pool, n.sinks = !p.sinks.empty(), n.mass = !p.mass.empty();
  n.heads = p.g.num_heads, n.kv_heads = p.g.num_kv_heads, n.dim = p.g.head_dim;
  n.pairs = p.g.rotary_pairs, n.axes = 2, n.window = p.g.window, n.softcap = p.g.softcap;
  n.tokens = p.tokens, n.rows = p.rows, n.columns = p.columns, n.pages = p.pages;
  n.page_size = p.page_size;
  r.bytes = {{cuda::kQuery, encode(p.query, kind.query)},
             {cuda::kKey, encode(r.key, kind.query)},
             {cuda::kValue, encode(r.value, kind.query)},
             {cuda::kKeyPool, p.key_pool},
             {cuda::kValuePool, p.value_pool},
             {cuda::kPageTable, raw(p.table)},
             {cuda::kQueryStarts, raw(p.starts)},
             {cuda::kSlotMapping, raw(p.slots)},
             {cuda::kKvLimits, raw(p.limits)},
             {cuda::kQueryIndices, raw(p.indices)},
             {cuda::kSinks, raw(p.sinks)},
             {cuda::kKeyScales, raw(p.key_scales)},
             {cuda::kValueScales, raw(p.value_scales)},
             {cuda::kPageMass, raw(p.mass)},
             {cuda::kMassWeights, raw(p.weights)}};
  return r;
}

Held create_for(Creator& creator, const Prepared& r) {
  Fields fields(r.node);
  const Geometry& g = r.problem.g;
  fields.scale = g.scale;
  fields.interleaved = g.rotary_interleaved;
  for (int32_t i = 0; i < g.rotary_pairs; ++i) {
    fields.inv_freq[size_t(i)] = float(r.problem.turns[size_t(i)] * 6.283185307179586);
    fields.freq_axes[size_t(i)] = r.problem.axes[size_t(i)];
  }
  return create(creator, fields);
}

void check_written(const std::string& where, const Prepared& r) {
  const Problem& p = r.problem;
  const int heads = p.g.num_kv_heads, dim = p.g.head_dim;
  double worst = 0.0;
  for (size_t t = 0; t < r.written.size(); ++t)
    for (int head = 0; head < heads; ++head)
      for (int d = 0; d < dim; ++d) {
        const int32_t slot = r.written[t];
        const int64_t row = (int64_t{slot / p.page_size} * heads + head) * p.page_size + slot % p.page_size;
        const size_t from = (t * size_t(heads) + size_t(head)) * size_t(dim) + size_t(d);
        for (const bool key : {true, false}) {
          const std::vector<float>& scales = key ? p.key_scales : p.value_scales;
          const double found = reference::pool_number(p, key ? p.key_pool : p.value_pool, scales, row, d);
          const double given = (key ? r.key : r.value)[from];
          const double allowed = p.pool_dtype == Dtype::kInt8
                                     ? 0.5001 * scales[size_t(row)]
                                     : write_tolerance(r.node.pool) * std::fabs(given) + 1e-7;
          const double excess = std::fabs(found - given) - allowed;
          worst = excess <= worst ? worst : excess;  // NaN counts as wrong
        }
      }
  CHECK(where + ", written", worst <= 0.0);
}

// Runs the call and leaves outputs in the problem.
void run_call(Creator& creator, Held& held, Gpu& gpu, Prepared& r, bool apart, const std::string& where) {
  const Described d(r.node);
  std::vector<const void*> inputs;
  for (const int32_t input : d.places) {
    void* memory = nullptr;
    if (input >= 0) {
      const std::vector<uint8_t>& bytes = r.bytes[input];
      memory = gpu.allocate(bytes.size());
      gpu.upload(memory, bytes.data(), bytes.size());
    }
    inputs.push_back(memory);
  }
  constexpr Input kModels[] = {cuda::kQuery,     cuda::kKeyPool,     cuda::kValuePool,
                               cuda::kKeyScales, cuda::kValueScales, cuda::kPageMass};
  std::vector<void*> outputs;
  for (const cuda::Output output : d.outputs) {
    const Input model = kModels[output];
    outputs.push_back(output == cuda::kOutput || apart
                          ? gpu.allocate(r.bytes[model].size())
                          : const_cast<void*>(inputs[size_t(d.place(model))]));
  }
  CHECK(where, configure(held, d) == 0);
  void* workspace = gpu.allocate(workspace_size(held, d));
  ResourceContext context;
  Held read = through_an_engine(creator, held);
  Held attached(read.runtime->attachToContext(&context));
  CHECK(where, change_shape(attached, d) == 0);
  const auto enqueue = [&] {
    CHECK(where, attached.runtime->enqueue(d.in.data(), d.out.data(), inputs.data(), outputs.data(),
                                           workspace, static_cast<cudaStream_t>(gpu.stream())) == 0);
  };
  if (apart) gpu.run_as_graph(enqueue);
  else enqueue();
  gpu.wait();
  Problem& p = r.problem;
  std::vector<uint8_t> output(r.bytes[cuda::kQuery].size());
  gpu.download(output.data(), outputs[0], output.size());
  p.output = decode(output, r.node.query);
  for (size_t i = 1; i < outputs.size(); ++i)
    switch (d.outputs[i]) {
      case cuda::kKeyPoolOut: gpu.download(p.key_pool.data(), outputs[i], p.key_pool.size()); break;
      case cuda::kValuePoolOut: gpu.download(p.value_pool.data(), outputs[i], p.value_pool.size()); break;
      case cuda::kKeyScalesOut: gpu.download(p.key_scales.data(), outputs[i], p.key_scales.size() * 4); break;
      case cuda::kValueScalesOut: gpu.download(p.value_scales.data(), outputs[i], p.value_scales.size() * 4); break;
      default: gpu.download(p.mass.data(), outputs[i], p.mass.size() * 4);
    }
  gpu.free_all();
}

// One call against the reference; the largest difference.
double check_call(Creator& creator, Gpu& gpu, Prepared& r, bool apart, const std::string& end) {
  const std::string where = r.node.name() + end;
  Held held = create_for(creator, r);
  run_call(creator, held, gpu, r, apart, where);
  if (r.node.writes) check_written(where, r);
  std::fill(r.problem.expected_mass.begin(), r.problem.expected_mass.end(), 0.0);
  const double difference = reference::largest_difference(r.problem);
  CHECK(where + ", differs by " + std::to_string(difference),
        difference <= output_tolerance(r.node.query));
  return difference;
}

// The same call by a node that writes nothing, over what was written by now: as cross-attention reads.
void read_only(Prepared& r, bool positional) {
  r.node.writes = false;
  r.node.positional = positional;
  r.bytes[cuda::kKeyPool] = r.problem.key_pool;
  r.bytes[cuda::kValuePool] = r.problem.value_pool;
  r.bytes[cuda::kKeyScales] = raw(r.problem.key_scales);
  r.bytes[cuda::kValueScales] = raw(r.problem.value_scales);
}

}  // namespace

std::vector<Supported> find_supported(Creator& creator) {
  std::vector<Supported> found;
  for (const DataType query : {DataType::kFLOAT, DataType::kHALF, DataType::kBF16})
    for (const DataType pool : {DataType::kFLOAT, DataType::kHALF, DataType::kBF16, DataType::kINT8})
      for (const int32_t dim : {32, 64, 80, 96, 128, 256})
        for (const int32_t size : {8, 16, 32})
          for (const bool softcap : {false, true}) {
            NodeCase node;
            node.query = query, node.pool = pool, node.dim = dim, node.page_size = size;
            node.softcap = softcap ? 3.0f : 0.0f;
            Held held = create(creator, Fields(node));
            if (configure(held, Described(node)) == 0) found.push_back({query, pool, dim, size, softcap});
          }
  g_log.take();
  return found;
}

double check_parity(Creator& creator, Gpu& gpu, const Supported& kind, int rounds) {
  Random random;
  double worst = 0.0;
  for (int round = 0; round < rounds; ++round) {
    const Prepared prepared = prepare(random, kind);
    for (const bool apart : {false, true}) {
      const std::string where = ", D " + std::to_string(kind.head_dim) + " S " +
                                std::to_string(kind.page_size) + (apart ? ", apart" : ", in place") +
                                ", round " + std::to_string(round);
      Prepared r = prepared;
      double difference = check_call(creator, gpu, r, apart, where);
      worst = difference <= worst ? worst : difference;
      if (apart != (round % 2 == 1)) continue;  // the node that reads: once a round, either way
      read_only(r, round % 4 < 2);
      difference = check_call(creator, gpu, r, apart, where);
      worst = difference <= worst ? worst : difference;
    }
  }
  return worst;
}

}  // namespace edgekv::check
