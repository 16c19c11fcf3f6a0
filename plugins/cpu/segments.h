// Stored segments, read and written at any address.
//
// Owns: where in a row its numbers are, see layout.h. Knows nothing of pages.
#pragma once

#include <cstdint>
#include <cstring>

#include "layout.h"

namespace edgekv {

static_assert(sizeof(EdgekvSegment) == 32);

class Segments {
 public:
  explicit Segments(const EdgekvLayout& layout)
      : rows_(layout.segments), row_bytes_(layout.segment_bytes), num_axes_(layout.num_axes) {}

  EdgekvSegment& operator[](int64_t place) const {
    return *reinterpret_cast<EdgekvSegment*>(rows_ + place * row_bytes_);
  }
  int32_t span(int64_t place, int64_t axis) const {
    int32_t span;
    std::memcpy(&span, spans(place) + axis * 4, sizeof(span));
    return span;
  }
  void set_span(int64_t place, int64_t axis, int32_t span) const {
    std::memcpy(spans(place) + axis * 4, &span, sizeof(span));
  }
  int8_t& kind(int64_t place) const {
    return *reinterpret_cast<int8_t*>(spans(place) + num_axes_ * 4);
  }
  // Whether every token advances every axis by one.
  bool& uniform(int64_t place) const {
    return *reinterpret_cast<bool*>(spans(place) + num_axes_ * 4 + 1);
  }

 private:
  unsigned char* spans(int64_t place) const {
    return rows_ + place * row_bytes_ + sizeof(EdgekvSegment);
  }

  unsigned char* rows_;
  int64_t row_bytes_, num_axes_;
};

// Numbers of a page-table entry.
inline int64_t entry_width(const EdgekvLayout& layout) { return 2 + 2 * layout.num_axes; }

}  // namespace edgekv
