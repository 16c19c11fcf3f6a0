// Prints the plan of each call named on standard input, so that a test can hold it to
// plugins/triton/launch_cases.json. One call a line, as numbers; see the reading below for their order.

#include <cstdio>
#include <initializer_list>

#include "launch_plan.h"

namespace {

using namespace edgekv::cuda;

void print(const Grid& grid) {
  std::printf(" %lld %lld %lld", static_cast<long long>(grid.x), static_cast<long long>(grid.y),
              static_cast<long long>(grid.z));
}

void print(const Part& part) {
  std::printf(" %lld %lld", static_cast<long long>(part.offset), static_cast<long long>(part.bytes));
}

bool read(int64_t* values, int count) {
  for (int i = 0; i < count; ++i) {
    long long value = 0;
    if (std::scanf("%lld", &value) != 1) return false;
    values[i] = value;
  }
  return true;
}

}  // namespace

int main() {
  enum { kNode = 6, kCall = 3, kBlocks = 6, kAll = kNode + kCall + kBlocks + 1 + kCall };
  for (int64_t v[kAll]; read(v, kAll);) {
    const NodeSizes node{v[0], v[1], v[2], v[3], v[4] != 0, v[5] != 0};
    const CallSizes call{v[6], v[7], v[8]}, largest{v[16], v[17], v[18]};
    const Blocks blocks{v[9], v[10], v[11], v[12], v[13], v[14]};
    const LaunchPlan plan = plan_launches(node, call, blocks, v[15]);
    std::printf("%d %lld %lld", int(plan.prefill), static_cast<long long>(plan.num_splits),
                static_cast<long long>(plan.num_writers));
    for (const Grid& grid : {plan.prepare, plan.attend, plan.combine, plan.mass}) print(grid);
    for (const Part& part : {plan.starts, plan.run_ends, plan.lse, plan.stats, plan.partial}) print(part);
    std::printf(" %lld %lld\n", static_cast<long long>(plan.workspace_bytes),
                static_cast<long long>(workspace_bound(node, largest, blocks, v[15])));
  }
  return 0;
}
