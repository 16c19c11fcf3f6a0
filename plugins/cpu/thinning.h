// Which segments of the past leave first: one call, plain memory, no runtime.
//
// Again and again the one with the lowest rating leaves, of equals the oldest, until enough pages are
// given back. edgekv/cache/retention/thinning.py says what the ratings are and what they are for.
#pragma once

#include <cstdint>

extern "C" {

// `segments` (num_segments, segment_bytes), see layout.h; only the first num_past may leave. `pages`
// (num_segments,) that each gives back, or null: all that it has. A rating is the product of `worth`
// (num_segments,), or null; of norm and distance of the `vectors` (num_segments, width), or null; and of
// the gap that is left behind, if by_gap.
//
// Writes the places of those that leave for num_pages, ascending, to `gone`, which has room for
// num_past of them. Returns how many, -1 without memory; `missing` gets the pages that they do not
// give back.
__attribute__((visibility("default"))) int64_t edgekv_thin_out(
    const unsigned char* segments, int64_t segment_bytes, int64_t num_segments, int64_t num_past,
    const int32_t* pages, const double* worth, const float* vectors, int64_t width,
    int32_t by_gap, int64_t num_pages, int64_t* gone, int64_t* missing);
}
