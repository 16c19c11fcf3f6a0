// From a page table to tasks: which thread does what.
//
// Owns: the used entries of every row in logical order, one cos/sin table per run of equal shifts, and
// the cut into tasks. Guarantees: the cut depends on the row alone, never on the number of threads or
// on the other rows, so a row's numbers are the same alone and batched. Buffers are kept between calls
// and grow only to the largest call seen. Knows nothing of a runtime; trusts validated input.
#pragma once

#include <cstdint>
#include <vector>

#include "paged_attention.h"

namespace edgekv {

// Views of the two arrays that say which pages and which tokens a row has.
struct Tables {
  const int32_t* page_table;  // (B, M, 2 + A)
  int32_t num_rows;           // B
  int32_t num_columns;        // M
  int32_t num_axes;           // A
  const int32_t* query_starts;  // (B + 1)
};

class Plan {
 public:
  // Fills the call's entries, rotations and partials, and lists its tasks. Throws std::bad_alloc.
  void prepare(const Tables& tables, const Kernels& kernels, Call& call);

  const std::vector<Task>& tasks() const { return tasks_; }

  // Whether some task has a row with a weight.
  bool weighs() const { return num_masses_ > 0; }

  // Adds every task's masses to the pages, in the order of the tasks.
  void add_masses(const Call& call) const;

 private:
  void add_entries(const Tables& tables, int32_t row, const Kernels& kernels, const Geometry& g);
  void add_tasks(const Tables& tables, int32_t row, int32_t first_entry, const Call& call);

  std::vector<Entry> entries_;
  std::vector<float> rotations_;
  std::vector<float> partials_;
  std::vector<float> softmax_, masses_;
  std::vector<Task> tasks_;
  int64_t num_partial_floats_ = 0;
  int64_t num_masses_ = 0;
};

}  // namespace edgekv
