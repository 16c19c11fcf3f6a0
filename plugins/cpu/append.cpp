#include "append.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "segments.h"

namespace {

using edgekv::Segments;
using edgekv::entry_width;

constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

int32_t* last_entry(const EdgekvLayout& layout) {
  return layout.entries + (layout.num_pages - 1) * entry_width(layout);
}

int32_t* planned_advance(const EdgekvAppend& append) {
  return append.taken - append.layout.num_axes;
}

// A page with a shift takes no new token: those stand where they are written.
bool has_moved(const EdgekvLayout& layout, const int32_t* entry) {
  return std::any_of(entry + 2, entry + 2 + layout.num_axes, [](int32_t shift) { return shift; });
}

// One holder alone has the page, nobody can find it, and no step in flight uses it.
bool is_writable(const EdgekvLedger& ledger, int32_t page) {
  return ledger.refs[page] == 1 && !ledger.fences[page] && !ledger.kept[page];
}

// What the page that a sequence ends with takes of an append, and how many pages that needs.
struct Tail {
  int64_t num_tokens, copies, num_taken;
};

int32_t find_tail(const EdgekvAppend& append, int32_t kind, int64_t num_tokens, int32_t extend,
                  int64_t index, Tail& out) {
  const EdgekvLayout& layout = append.layout;
  out = {};
  if (extend) {
    if (!layout.num_segments) return EDGEKV_APPEND_EMPTY;
    const Segments segments(layout);
    const int64_t last = layout.num_segments - 1;
    if (segments.kind(last) != kind) return EDGEKV_APPEND_OTHER_KIND;
    if (index != -1 && segments[last].index != index) return EDGEKV_APPEND_OTHER_INDEX;
    const int32_t* entry = last_entry(layout);
    const int64_t fitting = std::min(num_tokens, append.page_size - entry[1]);
    if (fitting && !has_moved(layout, entry)) {
      out.num_tokens = fitting;
      out.copies = !is_writable(*append.ledger, entry[0]);
    }
  }
  const int64_t left = num_tokens - out.num_tokens;
  out.num_taken = out.copies + (left + append.page_size - 1) / append.page_size;
  return EDGEKV_APPEND_DONE;
}

// The largest relative position of any axis, and the largest position.
struct Reach {
  int64_t relative, last;
};

// False when a relative position is negative. One that is no int32 counts as the first that is not.
bool reach(const EdgekvLayout& layout, const int64_t* relative, int64_t n, Reach& out) {
  out = {n - 1, 0};
  if (relative) out.relative = 0;
  for (int64_t axis = 0; axis < layout.num_axes; ++axis) {
    int64_t furthest = n - 1;
    if (relative) {
      const auto [low, high] = std::minmax_element(relative + axis * n, relative + (axis + 1) * n);
      if (*low < 0) return false;
      furthest = std::min(*high, kLargest + 1);
    }
    out.relative = std::max(out.relative, furthest);
    out.last = std::max(out.last, layout.next_position[axis] + furthest);
  }
  return true;
}

// Where the segment of the planned tokens starts.
int32_t segment_start(const EdgekvAppend& append, int64_t axis) {
  const EdgekvLayout& layout = append.layout;
  const int32_t next = layout.next_position[axis];
  return append.extends ? next - Segments(layout).span(layout.num_segments - 1, axis) : next;
}

void stage(const EdgekvAppend& append) {
  const EdgekvLayout& layout = append.layout;
  const int64_t num_axes = layout.num_axes, num_new = append.num_taken - append.copies;
  int32_t* entry = layout.entries + layout.num_pages * entry_width(layout);
  for (int64_t k = 0; k < num_new; ++k, entry += entry_width(layout)) {
    entry[0] = append.taken[append.copies + k];
    entry[1] = static_cast<int32_t>(append.page_size);
    for (int64_t axis = 0; axis < num_axes; ++axis) {
      entry[2 + axis] = 0;
      entry[2 + num_axes + axis] = segment_start(append, axis);
    }
  }
  const int64_t unused = num_new * append.page_size - (append.num_tokens - append.tail_tokens);
  if (num_new) entry[1 - entry_width(layout)] -= static_cast<int32_t>(unused);
}

void fill_slots(const EdgekvAppend& append, int32_t* slots) {
  const int32_t page_size = static_cast<int32_t>(append.page_size);
  int32_t* const end = slots + append.num_tokens;
  if (append.tail_tokens) {
    const int32_t* tail = last_entry(append.layout);
    int32_t slot = (append.copies ? append.taken[0] : tail[0]) * page_size + tail[1];
    for (int64_t i = 0; i < append.tail_tokens; ++i) *slots++ = slot++;
  }
  for (const int32_t* page = append.taken + append.copies; slots < end; ++page)
    for (int32_t offset = 0; offset < page_size && slots < end; ++offset)
      *slots++ = *page * page_size + offset;
}

void fill_limits(const EdgekvAppend& append, const int64_t* runs, int64_t num_runs,
                 int32_t* indices, int32_t* limits) {
  const int32_t num_held = static_cast<int32_t>(append.layout.num_tokens);
  for (int32_t i = 0; i < append.num_tokens; ++i) {
    indices[i] = num_held + i;
    limits[i] = num_held + i + 1;
  }
  for (; num_runs > 0; --num_runs, runs += 2)
    std::fill(limits + runs[0], limits + runs[1], limits[runs[1] - 1]);
}

void fill_positions(const EdgekvAppend& append, const int64_t* relative, int64_t* positions) {
  for (int64_t axis = 0; axis < append.layout.num_axes; ++axis)
    for (int64_t i = 0; i < append.num_tokens; ++i)
      *positions++ = append.layout.next_position[axis] + (relative ? *relative++ : i);
}

void fill_table(const EdgekvAppend& append, int64_t num_entries, int64_t num_columns,
                int32_t* table) {
  const EdgekvLayout& layout = append.layout;
  const int64_t num_held = layout.num_pages + append.num_taken - append.copies;
  for (int64_t k = 0; k < num_held; ++k) {
    const int32_t* entry = layout.entries + k * entry_width(layout);
    std::copy(entry, entry + num_columns, table + k * num_columns);
  }
  for (int64_t k = num_held; k < num_entries; ++k) {
    std::fill(table + k * num_columns, table + (k + 1) * num_columns, 0);
    table[k * num_columns] = -1;
  }
  if (append.tail_tokens) {
    int32_t* tail = table + (layout.num_pages - 1) * num_columns;
    tail[1] += static_cast<int32_t>(append.tail_tokens);
    if (append.copies) tail[0] = append.taken[0];
  }
}

}  // namespace

int64_t edgekv_append_pages(const EdgekvAppend* append, int32_t kind, int64_t num_tokens,
                            int32_t extend) {
  Tail tail;
  const int32_t code = find_tail(*append, kind, num_tokens, extend, -1, tail);
  return code ? -code : tail.num_taken;
}

int32_t edgekv_append_plan(EdgekvAppend* append, int32_t kind, int64_t num_tokens, int32_t extend,
                           int64_t index, const int64_t* relative, const int64_t* advance,
                           const int64_t* runs, int64_t num_runs, const int32_t* own,
                           int64_t num_own, int32_t* tokens, int64_t* positions) {
  Tail tail;
  if (const int32_t code = find_tail(*append, kind, num_tokens, extend, index, tail)) return code;
  append->extends = extend != 0;
  append->tail_tokens = tail.num_tokens;
  append->copies = tail.copies;
  append->num_taken = tail.num_taken;
  const EdgekvLayout& layout = append->layout;
  EdgekvLedger& ledger = *append->ledger;
  Reach far;
  if (!reach(layout, relative, num_tokens, far)) return EDGEKV_APPEND_NEGATIVE;
  const int64_t num_free = ledger.num_pages - ledger.top;
  const int64_t num_new = append->num_taken - append->copies;
  const auto is_drawable = [&](int32_t page) { return !ledger.fences[page]; };
  const int64_t num_drawable = std::count_if(own, own + num_own, is_drawable);
  // A pool that has too few pages is told of first, also of the only sequence in it.
  const bool pool_has = num_new <= num_free + ledger.num_cached + num_drawable;
  if ((num_new > append->max_pages - layout.num_pages && pool_has) ||
      far.last >= append->end_position)
    return EDGEKV_APPEND_NO_ROOM;
  const auto move = [&](int64_t axis) { return advance ? advance[axis] : far.relative + 1; };
  for (int64_t axis = 0; axis < layout.num_axes; ++axis)
    if (move(axis) > kLargest - layout.next_position[axis]) return EDGEKV_APPEND_ADVANCE;
  append->num_drawn = std::min(num_drawable, append->num_taken);
  const int64_t missing = append->num_taken - append->num_drawn;
  if (missing > num_free) return EDGEKV_APPEND_NOT_FREE;

  append->num_tokens = num_tokens;
  append->taken = tokens + 3 * num_tokens + layout.num_axes;
  append->uniform = !relative;
  for (int64_t axis = 0; axis < layout.num_axes; ++axis) {
    planned_advance(*append)[axis] = static_cast<int32_t>(move(axis));
    if (move(axis) != num_tokens) append->uniform = 0;
  }
  for (int64_t k = 0; k < append->num_drawn; ++own)
    if (is_drawable(*own)) append->taken[k++] = *own;
  edgekv_ledger_take(&ledger, append->taken + append->num_drawn, missing);
  stage(*append);
  fill_slots(*append, tokens);
  fill_limits(*append, runs, num_runs, tokens + num_tokens, tokens + 2 * num_tokens);
  fill_positions(*append, relative, positions);
  return EDGEKV_APPEND_DONE;
}

int32_t edgekv_append_begin(const EdgekvAppend* const* appends, int64_t num_appends,
                            int64_t num_entries, int64_t num_columns, int32_t* page_table,
                            int32_t* query_starts, int32_t* fenced, int64_t* counts) {
  int32_t* next_fenced = fenced;
  query_starts[0] = 0;
  for (int64_t b = 0; b < num_appends; ++b, page_table += num_entries * num_columns) {
    const EdgekvAppend& append = *appends[b];
    fill_table(append, num_entries, num_columns, page_table);
    query_starts[b + 1] = query_starts[b] + static_cast<int32_t>(append.num_tokens);
    const EdgekvLayout& layout = append.layout;
    for (int64_t k = 0; k < layout.num_pages; ++k)
      *next_fenced++ = layout.entries[k * entry_width(layout)];
    next_fenced = std::copy(append.taken, append.taken + append.num_taken, next_fenced);
    counts[b] = layout.num_pages + append.num_taken;
  }
  return edgekv_ledger_fence(appends[0]->ledger, fenced, counts, num_appends);
}

int32_t edgekv_append_commit(EdgekvAppend* append, int32_t kind, int64_t id, int64_t index,
                             double time_s) {
  const EdgekvLayout& layout = append->layout;
  if (append->tail_tokens) {
    int32_t* tail = last_entry(layout);
    if (append->copies) {
      if (edgekv_ledger_release(append->ledger, tail, 1)) return EDGEKV_APPEND_UNHELD;
      tail[0] = append->taken[0];
    }
    tail[1] += static_cast<int32_t>(append->tail_tokens);
  }
  const Segments segments(layout);
  const int64_t last = layout.num_segments - (append->extends ? 1 : 0);
  if (!append->extends) {
    segments[last] = {id, index, time_s, 0, 0};
    for (int64_t axis = 0; axis < layout.num_axes; ++axis) segments.set_span(last, axis, 0);
    segments.kind(last) = static_cast<int8_t>(kind);
    segments.uniform(last) = true;
  }
  segments[last].num_pages += static_cast<int32_t>(append->num_taken - append->copies);
  segments[last].num_tokens += static_cast<int32_t>(append->num_tokens);
  segments.uniform(last) &= append->uniform != 0;
  for (int64_t axis = 0; axis < layout.num_axes; ++axis) {
    const int32_t moved = planned_advance(*append)[axis];
    segments.set_span(last, axis, segments.span(last, axis) + moved);
    layout.next_position[axis] += moved;
  }
  return EDGEKV_APPEND_DONE;
}
