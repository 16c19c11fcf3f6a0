// See launch_plan.h.

#include "launch_plan.h"

#include <algorithm>

namespace edgekv::cuda {
namespace {

constexpr int64_t kAlignment = 256;           // bytes, of every workspace part
constexpr int64_t kDecodePrograms = 2;        // blocks in flight per multiprocessor that a split
constexpr int64_t kPrefillPrograms = 1;       // aims at
constexpr int64_t kMaxDecodeRows = 32;        // mean query rows of a batch row that decode is for

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

void lay_out(const NodeSizes& node, const CallSizes& call, int64_t partial_rows, LaunchPlan& plan) {
  const int64_t entries = call.num_rows * call.num_columns;
  int64_t offset = 0;
  const auto part = [&](int64_t bytes) {
    const Part result{offset, bytes};
    offset += up(bytes, kAlignment) * kAlignment;
    return result;
  };
  plan.starts = part(4 * (entries + call.num_rows));
  plan.run_ends = part(4 * entries);
  plan.lse = part(node.page_mass ? 4 * call.num_tokens * node.num_heads : 0);
  plan.stats = part(8 * partial_rows);
  plan.partial = part(4 * partial_rows * node.head_dim);
  plan.workspace_bytes = offset;
}

}  // namespace

LaunchPlan plan_launches(const NodeSizes& node, const CallSizes& call, const Blocks& blocks,
                         int64_t num_multiprocessors) {
  LaunchPlan plan{};
  plan.num_splits = 1;
  const int64_t tokens = call.num_tokens, rows = call.num_rows, columns = call.num_columns;
  if (tokens == 0 || rows == 0) return plan;
  const int64_t group = node.num_heads / node.num_kv_heads;
  plan.prefill = tokens * group > kMaxDecodeRows * rows;
  const int64_t block_m = plan.prefill ? blocks.prefill_m : blocks.decode_m;
  const int64_t block_n = plan.prefill ? blocks.prefill_n : blocks.decode_n;
  const int64_t num_blocks = tokens * group / block_m + rows;
  const int64_t working = std::min(num_blocks, tokens * up(group, block_m));
  const int64_t programs = num_multiprocessors * (plan.prefill ? kPrefillPrograms : kDecodePrograms);
  const int64_t longest = columns * node.page_size / (2 * block_n);
  plan.num_splits =
      std::max<int64_t>(1, std::min(programs / (working * node.num_kv_heads), longest));
  plan.num_writers = node.read_only ? 0 : up(tokens, blocks.prepare_m) * node.num_kv_heads;
  plan.prepare = {plan.num_writers + rows, 1, 1};
  plan.attend = {num_blocks, node.num_kv_heads, plan.num_splits};
  if (plan.num_splits > 1) plan.combine = {tokens, node.num_heads, 1};
  if (node.page_mass && columns > 0)
    plan.mass = {up(columns, blocks.mass_n / node.page_size), rows, 1};
  lay_out(node, call, plan.num_splits > 1 ? plan.num_splits * tokens * node.num_heads : 0, plan);
  return plan;
}

int64_t workspace_bound(const NodeSizes& node, const CallSizes& largest, const Blocks& blocks,
                        int64_t num_multiprocessors) {
  LaunchPlan plan{};
  const int64_t rows = std::max(kDecodePrograms * num_multiprocessors * blocks.decode_m,
                                kPrefillPrograms * num_multiprocessors * blocks.prefill_m);
  lay_out(node, largest, rows, plan);
  return plan.workspace_bytes;
}

}  // namespace edgekv::cuda
