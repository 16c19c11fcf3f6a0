// See plan.h.

#include "plan.h"

#include <algorithm>

namespace edgekv {
namespace {

constexpr int32_t kWantedTasks = 16;   // a row with fewer tasks is cut along its keys
constexpr int32_t kTokensPerPart = 256;

int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

bool is_zero(const int32_t* shift, int32_t num_axes) {
  return std::all_of(shift, shift + num_axes, [](int32_t s) { return s == 0; });
}

}  // namespace

void Plan::prepare(const Tables& tables, const Kernels& kernels, Call& call) {
  entries_.clear();
  rotations_.clear();
  tasks_.clear();
  num_partial_floats_ = 0;
  num_masses_ = 0;
  for (int32_t row = 0; row < tables.num_rows; ++row) {
    const int32_t first_entry = int32_t(entries_.size());
    add_entries(tables, row, kernels, call.geometry);
    add_tasks(tables, row, first_entry, call);
  }
  if (int64_t(partials_.size()) < num_partial_floats_) partials_.resize(num_partial_floats_);
  call.entries = entries_.data();
  call.rotations = rotations_.data();
  call.partials = partials_.data();
  if (!weighs()) return;
  const int64_t num_softmax = 2 * int64_t{call.num_tokens} * call.geometry.num_heads;
  if (int64_t(softmax_.size()) < num_softmax) softmax_.resize(num_softmax);
  if (int64_t(masses_.size()) < num_masses_) masses_.resize(num_masses_);
  call.softmax = softmax_.data();
  call.masses = masses_.data();
}

void Plan::add_masses(const Call& call) const {
  for (const Task& task : tasks_) {
    if (task.mass < 0) continue;
    const float* mass = call.masses + task.mass;
    for (int32_t e = task.first_entry; e < task.last_entry; ++e)
      call.page_mass[entries_[e].page] += task.mass_weight * mass[e - task.first_entry];
  }
}

void Plan::add_entries(const Tables& tables, int32_t row, const Kernels& kernels,
                       const Geometry& g) {
  const int32_t width = 2 + tables.num_axes;
  const int32_t* entry = tables.page_table + int64_t{row} * tables.num_columns * width;
  const int32_t* last_shift = nullptr;  // of the newest table in rotations_
  int32_t start = 0;
  for (int32_t column = 0; column < tables.num_columns; ++column, entry += width) {
    const int32_t page = entry[0], count = entry[1];
    if (page < 0 || count == 0) continue;
    const int32_t* shift = entry + 2;
    int32_t rotation = -1;
    if (g.rotary_pairs > 0 && !is_zero(shift, tables.num_axes)) {
      const size_t size = 2 * size_t(g.rotary_pairs);
      if (!last_shift || !std::equal(shift, shift + tables.num_axes, last_shift)) {
        rotations_.resize(rotations_.size() + size);
        kernels.fill_rotation(g, shift, rotations_.data() + rotations_.size() - size);
        last_shift = shift;
      }
      rotation = int32_t(rotations_.size() / size) - 1;
    }
    entries_.push_back({page, count, start, rotation});
    start += count;
  }
}

void Plan::add_tasks(const Tables& tables, int32_t row, int32_t first_entry, const Call& call) {
  const Geometry& g = call.geometry;
  const int32_t first = tables.query_starts[row], last = tables.query_starts[row + 1];
  if (first == last) return;
  const int32_t end_entry = int32_t(entries_.size());
  const int32_t num_kv_tokens =
      end_entry == first_entry ? 0 : entries_.back().start + entries_.back().count;
  const int32_t step = tokens_per_task(g);
  const int32_t blocks = ceil_div(last - first, step);
  int32_t parts = ceil_div(kWantedTasks, std::min(blocks * g.num_kv_heads, kWantedTasks));
  parts = std::max(1, std::min(parts, num_kv_tokens / kTokensPerPart));
  const float weight = call.page_mass ? call.mass_weights[row] : 0.0f;
  for (int32_t token = first; token < last; token += step) {
    const int32_t end_token = std::min(token + step, last);
    const int64_t part_floats =
        partial_floats(g, (end_token - token) * (g.num_heads / g.num_kv_heads));
    for (int32_t head = 0; head < g.num_kv_heads; ++head) {
      int32_t entry = first_entry;
      for (int32_t part = 0; part < parts; ++part) {
        // Cut at the first entry that starts at or after this part's share of the tokens.
        int32_t next = end_entry;
        if (part + 1 < parts) {
          const int32_t share = int32_t(int64_t{num_kv_tokens} * (part + 1) / parts);
          next = entry;
          while (next < end_entry && entries_[next].start < share) ++next;
        }
        const int64_t mass = weight != 0.0f && next > entry ? num_masses_ : -1;
        tasks_.push_back({token, end_token, entry, next, head, part, parts, num_partial_floats_, mass,
                          weight});
        if (mass >= 0) num_masses_ += next - entry;
        entry = next;
      }
      if (parts > 1) num_partial_floats_ += part_floats * parts;
    }
  }
}

}  // namespace edgekv
