// Runs the kernels without a runtime, on random calls, against a plain double-precision reference.
//
// Owns: nothing that ships. For sanitizers and for processors that are emulated, where loading ONNX
// Runtime is not wanted.
// Prints what it ran; exit code 1 and one line at the first call that differs.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "paged_attention.h"
#include "plan.h"
#include "reference.h"
#include "validate.h"

namespace {

using namespace edgekv;
using namespace edgekv::reference;

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
  std::vector<int32_t> slots = used_slots(p);
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
  const std::vector<int> dims{8, 16, 20, 32, 40, 64, 80, 96, 128, 256}, page_sizes{1, 4, 8, 16, 32};
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
      Problem problem = make_problem(random, dtype, dims, page_sizes);
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
