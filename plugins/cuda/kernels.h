// The kernels of one node on one device: chosen from the table, loaded, ready to be launched.
//
// Owns: the choice, loaded modules (shared by all nodes of a context), and how a kernel's parameters are
// filled by name. Guarantees: a choice that cannot be made is refused with a line that says what the
// library has. Allocates; used when a node is prepared, never while a call is enqueued.
#pragma once

#include <memory>
#include <vector>

#include "driver.h"
#include "kernel_table.h"
#include "launch_plan.h"
#include "node.h"

namespace edgekv::cuda {

struct Device {
  Context context = nullptr;
  int32_t arch = 0;  // 87 = compute capability 8.7
  int32_t num_multiprocessors = 0;
};

// The device whose context is current in this thread.
bool current_device(const Driver& driver, Device& device, Message& message);

// Everything a kernel may take, by the names of plugins/triton/launch.md.
struct Values {
  Address inputs[kNumInputs], output;
  Address starts, run_ends, stats, partial, lse, turns, freq_axes, null;
  int32_t num_tokens, num_rows, num_columns, table_stride, num_heads, num_kv_heads, num_writers;
  int32_t rotary_pairs, interleaved, window, has_sinks, has_lse, num_splits;
  float scale, softcap;
};

// What decides between variants.
struct Wanted {
  int32_t arch, head_dim, page_size;
  Element query, pool;
  bool softcap, mass;
};

enum KernelId { kPrepare, kAttendDecode, kAttendPrefill, kCombine, kMass, kNumKernels };

// The variants for a node; kMass only where it is wanted.
bool choose_variants(const KernelTable& table, const Wanted& wanted,
                     const Variant* (&chosen)[kNumKernels], Message& message);

Blocks blocks_of(const Variant* const (&chosen)[kNumKernels]);

class Kernel {
 public:
  // Null, with the reason in `message`, when the driver refuses. One per context and variant, shared.
  static std::shared_ptr<const Kernel> load(const Driver& driver, Context context,
                                            const Variant& variant, Message& message);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  bool launch(const Grid& grid, const Values& values, Stream stream, Message& message) const;

 private:
  explicit Kernel(const Driver& driver, const Variant& variant) : driver_(driver), variant_(variant) {}
  bool open(Message& message);

  const Driver& driver_;
  const Variant& variant_;
  Module module_ = nullptr;
  Function function_ = nullptr;
  std::vector<size_t> offsets_;  // of each parameter in Values
};

}  // namespace edgekv::cuda
