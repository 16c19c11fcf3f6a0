// The GPU kernels' work, done on the CPU from what a launch was given.
//
// Exists so that a whole call can be checked in numbers where there is no GPU: parameters, copies and
// addresses are the real ones, only the arithmetic is the CPU kernels' (which the oracle proves). Parts
// that a call is split into are not emulated: `attend` writes the joined output.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace edgekv::check {

// What a variant was compiled for.
struct Constants {
  std::string kernel;
  int32_t head_dim = 0, page_size = 0;
  std::string query_dtype, pool_dtype;
};

// `parameter(name)`: the launch's parameter, pointers and numbers alike as 64 bits. False when the CPU
// kernels do not know the dtypes.
bool emulate(const Constants& constants, const std::function<uint64_t(const char*)>& parameter);

}  // namespace edgekv::check
