// Copies of whole pages in all pools of a model: one call, plain memory, no runtime.
//
// Guarantees: checks everything before it writes anything. Knows neither dtypes nor what pages hold.
#pragma once

#include <cstdint>

extern "C" {

// Copies page source[i] to page target[i] in each of num_pools pools of num_pages pages of page_bytes
// bytes. Returns 0; 1 if a page is not in the pools, 2 if a page is written that is also read or
// written by another copy: nothing is copied then.
__attribute__((visibility("default"))) int32_t edgekv_copy_pages(
    unsigned char* const* pools, int64_t num_pools, int64_t num_pages, int64_t page_bytes,
    const int32_t* source, const int32_t* target, int64_t num_copies);
}
