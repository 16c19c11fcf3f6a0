// Which segments of the past leave first: one call, plain memory, no runtime.
//
// Again and again the one with the lowest rating leaves, of equals the oldest, until enough pages are
// given back. edgekv/cache/retention/thinning.py says what the ratings are and what they are for.
#pragma once

#include <cstdint>

#include "columns.h"

extern "C" {

// Of num_segments `segments` (see columns.h, also for `pages`) those from place `first` on are offered, n
// of them, and only the first num_past of these may leave. What follows counts from `first`: `given` (n,)
// pages that each gives back, or null: all that it has. A rating is the product of what is not null:
// `worth` (n,); the sums of `heat`; norm and distance of the vectors, which are `vectors` (n, width) or
// `rows`; and of the gap that is left behind, if by_gap. Heat and rows need `pages`, which else is null.
//
// Writes the places of those that leave for num_pages, ascending, to `gone` (num_past,). Returns how many;
// -1 without memory; -2 if rows are missing whose values are not in memory. `missing` gets the pages that
// they do not give back.
__attribute__((visibility("default"))) int64_t edgekv_thin_out(
    const unsigned char* segments, int64_t segment_bytes, int64_t num_segments,
    const int32_t* pages, int64_t first, int64_t num_past, const int32_t* given,
    const double* worth, const EdgekvNumbers* heat, const float* vectors, int64_t width,
    const EdgekvRows* rows, int32_t by_gap, int64_t num_pages, int64_t* gone, int64_t* missing);
}
