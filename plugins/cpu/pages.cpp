#include "pages.h"

#include <cstring>

int32_t edgekv_copy_pages(unsigned char* const* pools, int64_t num_pools, int64_t num_pages,
                          int64_t page_bytes, const int32_t* source, const int32_t* target,
                          int64_t num_copies) {
  for (int64_t i = 0; i < num_copies; ++i) {
    if (source[i] < 0 || source[i] >= num_pages || target[i] < 0 || target[i] >= num_pages) return 1;
  }
  // A step copies a page or two, so looking at all pairs is faster than a table of the pool.
  for (int64_t i = 0; i < num_copies; ++i) {
    for (int64_t j = 0; j < num_copies; ++j) {
      if (target[i] == source[j] || (i != j && target[i] == target[j])) return 2;
    }
  }
  for (int64_t pool = 0; pool < num_pools; ++pool) {
    for (int64_t i = 0; i < num_copies; ++i) {
      std::memcpy(pools[pool] + target[i] * page_bytes, pools[pool] + source[i] * page_bytes,
                  static_cast<size_t>(page_bytes));
    }
  }
  return 0;
}
