#include "layout.h"

#include <algorithm>
#include <cstring>

#include "segments.h"

namespace {

using edgekv::Segments;
using edgekv::entry_width;

constexpr int64_t kMaxAxes = 4;

// Where the segment with this id is, or would be.
int64_t find(const EdgekvLayout& layout, const Segments& segments, int64_t id) {
  int64_t low = 0, high = layout.num_segments;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (segments[middle].id < id)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

int32_t refuse(EdgekvLayout& layout, int64_t id, int32_t code) {
  layout.culprit = id;
  return code;
}

// Ascending places of the segments with these ids.
int32_t find_all(EdgekvLayout& layout, const int64_t* ids, int64_t n, int32_t pinned_kind,
                 int64_t* places) {
  const Segments segments(layout);
  for (int64_t i = 0; i < n; ++i) {
    places[i] = find(layout, segments, ids[i]);
    if (places[i] == layout.num_segments || segments[places[i]].id != ids[i])
      return refuse(layout, ids[i], EDGEKV_LAYOUT_UNKNOWN);
  }
  std::sort(places, places + n);
  for (int64_t i = 1; i < n; ++i)
    if (places[i] == places[i - 1])
      return refuse(layout, segments[places[i]].id, EDGEKV_LAYOUT_REPEATED);
  for (int64_t i = 0; i < n; ++i)
    if (segments.kind(places[i]) == pinned_kind)
      return refuse(layout, segments[places[i]].id, EDGEKV_LAYOUT_PINNED);
  return EDGEKV_LAYOUT_DONE;
}

template <class T>
void copy(const T* from, int64_t n, T* to) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
}

void save_all(const EdgekvLayout& layout) {
  copy(layout.entries, layout.num_pages * entry_width(layout), layout.saved_entries);
  copy(layout.segments, layout.num_segments * layout.segment_bytes, layout.saved_segments);
  copy(layout.next_position, layout.num_axes, layout.saved_position);
}

}  // namespace

int32_t edgekv_layout_drop(EdgekvLayout* layout, const int64_t* ids, int64_t n, int32_t pinned_kind,
                           int32_t frame_kind, int32_t save, int32_t* released, int64_t* places) {
  layout->num_gone = 0;
  if (!n) return EDGEKV_LAYOUT_DONE;
  if (const int32_t code = find_all(*layout, ids, n, pinned_kind, places)) return code;
  if (save) save_all(*layout);
  const Segments segments(*layout);
  const int64_t num_axes = layout->num_axes, width = entry_width(*layout);
  int64_t page = 0;
  for (int64_t place = 0; place < places[0]; ++place) page += segments[place].num_pages;
  int64_t kept_page = page, kept_place = places[0], num_gone = 0;
  int32_t moved[kMaxAxes] = {};  // by what has left so far
  for (int64_t place = places[0]; place < layout->num_segments; ++place) {
    EdgekvSegment& segment = segments[place];
    const int64_t num_pages = segment.num_pages;
    int32_t* entry = layout->entries + page * width;
    page += num_pages;
    if (num_gone < n && places[num_gone] == place) {
      ++num_gone;
      for (int64_t i = 0; i < num_pages; ++i) *released++ = entry[i * width];
      for (int64_t axis = 0; axis < num_axes; ++axis) moved[axis] += segments.span(place, axis);
      layout->num_tokens -= segment.num_tokens;
      layout->num_gone += segments.kind(place) == frame_kind;
      continue;
    }
    for (int64_t i = 0; i < num_pages; ++i)
      for (int64_t axis = 0; axis < num_axes; ++axis) entry[i * width + 2 + axis] -= moved[axis];
    std::memmove(layout->entries + kept_page * width, entry,
                 static_cast<size_t>(num_pages * width) * sizeof(int32_t));
    std::memmove(layout->segments + kept_place * layout->segment_bytes, &segment,
                 static_cast<size_t>(layout->segment_bytes));
    kept_page += num_pages;
    ++kept_place;
  }
  for (int64_t axis = 0; axis < num_axes; ++axis) layout->next_position[axis] -= moved[axis];
  layout->num_pages = kept_page;
  layout->num_segments = kept_place;
  return EDGEKV_LAYOUT_DONE;
}

void edgekv_layout_restore(EdgekvLayout* layout) {
  copy(layout->saved_entries, layout->num_pages * entry_width(*layout), layout->entries);
  copy(layout->saved_segments, layout->num_segments * layout->segment_bytes, layout->segments);
  copy(layout->saved_position, layout->num_axes, layout->next_position);
}
