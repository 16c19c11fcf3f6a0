// Which segments of the past leave first: one call, plain memory, no runtime.
//
// Again and again the one with the lowest rating leaves, of equals the oldest, until enough pages are
// given back. edgekv/cache/retention/thinning.py says what the ratings are and what they are for.
#pragma once

#include <cstdint>

extern "C" {

struct EdgekvThinning {
  const unsigned char* segments;  // (num_segments, segment_bytes), see layout.h
  int64_t segment_bytes;
  int64_t num_segments;
  int64_t num_past;        // only the first so many may leave
  const int32_t* pages;    // (num_segments,) that each gives back, or null: all that it has
  const double* worth;     // (num_segments,) a factor of the rating, or null
  const float* products;   // (num_segments, num_segments) of their vectors, or null
  int32_t by_gap;          // whether the gap that it leaves is a factor of the rating
};

// Writes the places of those that leave for num_pages, ascending, to `gone`, which has room for
// num_past of them. Returns how many; `missing` gets the pages that they do not give back.
__attribute__((visibility("default"))) int64_t edgekv_thin_out(const EdgekvThinning*,
                                                               int64_t num_pages, int64_t* gone,
                                                               int64_t* missing);
}
