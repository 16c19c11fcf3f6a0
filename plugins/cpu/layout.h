// Taking segments out of a sequence's page table: one call, plain memory, no runtime.
//
// Guarantees: a call checks everything before it changes anything. Knows neither what pages hold nor
// who else holds them. edgekv/cache/layout.py owns the memory and says what it means.
#pragma once

#include <cstdint>

extern "C" {

// A stored segment begins like this, at any address. Behind it are its spans, (num_axes,) int32, and
// its kind, int8.
struct __attribute__((packed)) EdgekvSegment {
  int64_t id;  // they grow along the list
  int64_t index;
  double time_s;
  int32_t num_pages;
  int32_t num_tokens;
};

struct EdgekvLayout {
  int32_t* entries;         // (num_pages, 2 + 2 num_axes): id, valid, shifts, where written
  int64_t num_pages;
  int64_t num_axes;
  unsigned char* segments;  // (num_segments, segment_bytes)
  int64_t num_segments;
  int64_t segment_bytes;
  int64_t num_tokens;
  int32_t* next_position;   // (num_axes,)
  int64_t culprit;          // the id that the last refused call was refused for
  int64_t num_gone;         // segments of kind frame_kind that the last call has taken out
  int32_t* saved_entries;   // as entries, segments and next_position: as they were before the last
  unsigned char* saved_segments;  // call that had to save them
  int32_t* saved_position;
};

// 0 is done. Otherwise nothing has changed and `culprit` is set.
enum EdgekvLayoutCode {
  EDGEKV_LAYOUT_DONE = 0,
  EDGEKV_LAYOUT_UNKNOWN = 1,   // no segment has this id
  EDGEKV_LAYOUT_REPEATED = 2,  // named twice
  EDGEKV_LAYOUT_PINNED = 3,    // a segment of kind pinned_kind
};

// Takes out the segments with these n ids; the shift of every entry behind one is lowered by its
// span. With `save` all is saved as it was. `released` gets the pages taken out, in order, and has room
// for num_pages; `places` is scratch for n numbers.
__attribute__((visibility("default"))) int32_t edgekv_layout_drop(
    EdgekvLayout*, const int64_t* ids, int64_t n, int32_t pinned_kind, int32_t frame_kind,
    int32_t save, int32_t* released, int64_t* places);

// Puts back what was saved, of which there were num_pages entries and num_segments segments.
__attribute__((visibility("default"))) void edgekv_layout_restore(EdgekvLayout*);
}
