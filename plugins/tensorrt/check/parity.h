// See parity.cpp.
#pragma once

#include <vector>

#include "gpu.h"
#include "library.h"

namespace edgekv::check {

// A kind of node that the library has kernels for, on the current device.
struct Supported {
  DataType query, pool;
  int32_t head_dim, page_size;
  bool softcap;
};

std::vector<Supported> find_supported(Creator& creator);

// The largest difference from the reference; counts into g_tally what is beyond the tolerance.
double check_parity(Creator& creator, Gpu& gpu, const Supported& kind, int rounds);

}  // namespace edgekv::check
