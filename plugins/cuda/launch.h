// One call of the operator as kernel launches on a stream.
//
// Owns: which kernels a node's calls use (chosen from the table linked into the library), their loaded
// modules, and the node's constants in device memory. Guarantees: prepare() does everything that
// allocates or waits; launch() only copies on the device and launches, so it may be captured into a
// CUDA graph; a call that no kernel fits is refused with a line that says what there is. Knows no
// runtime. See launch.md.
#pragma once

#include <cstddef>
#include <memory>

#include "driver.h"
#include "node.h"

namespace edgekv::cuda {

class Prepared;

class Launcher {
 public:
  // For calls with the dtypes, page size, axes and inputs of `call`, on the device that is current.
  // Does nothing when it was last called for the same. `num_multiprocessors`: what the workspace was
  // sized for, 0 = this device's own number.
  bool prepare(const Attributes& attributes, const Call& call, int32_t num_multiprocessors,
               Message& message);

  // What launch() needs for this call. 0 when it was not prepared for it.
  size_t call_bytes(const Attributes& attributes, const Call& call) const;

  // `workspace`: call_bytes(), or workspace_bytes() for this call or a larger one. Outputs that are
  // not bound to the memory of their input start as a copy of it.
  bool launch(const Attributes& attributes, const Call& call, void* workspace, Stream stream,
              Message& message) const;

 private:
  std::shared_ptr<const Prepared> prepared_;
};

// Bytes that are enough for launch() on every call no larger than `largest` in any size, on a device
// with `num_multiprocessors`; 0 becomes the current device's number.
bool workspace_bytes(const Attributes& attributes, const Call& largest, int32_t& num_multiprocessors,
                     size_t& bytes, Message& message);

}  // namespace edgekv::cuda
