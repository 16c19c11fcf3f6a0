#include "columns.h"

#include <algorithm>
#include <limits>

#include "layout.h"
#include "vec.h"

namespace {

using edgekv::Brain;
using edgekv::Half;
using edgekv::kWidth;
using edgekv::load;
using edgekv::row_of;
using edgekv::store;
using edgekv::to_float;

const EdgekvSegment& at(const unsigned char* segments, int64_t segment_bytes, int64_t place) {
  return *reinterpret_cast<const EdgekvSegment*>(segments + place * segment_bytes);
}

bool has_row(const EdgekvRows& rows, const EdgekvSegment& segment) {
  return reinterpret_cast<const int8_t*>(&segment + 1)[rows.num_axes * 4] == rows.frame_kind;
}

template <class T>
void add_tokens(const EdgekvValues& values, int64_t page, int64_t num_tokens, float* sum) {
  for (int64_t head = 0; head < values.num_heads; ++head, sum += values.head_dim) {
    const int64_t first = (page * values.num_heads + head) * values.page_size;
    for (int64_t slot = first; slot < first + num_tokens; ++slot) {
      const T* numbers = static_cast<const T*>(values.numbers) + slot * values.head_dim;
      const float scale = values.scales ? values.scales[slot] : 1.f;
      int64_t d = 0;
      for (; d + kWidth <= values.head_dim; d += kWidth)
        store(sum + d, load(sum + d) + load(numbers + d) * scale);
      for (; d < values.head_dim; ++d) sum[d] += to_float(numbers[d]) * scale;
    }
  }
}

// The row of page `first` is the mean over num_tokens tokens, which fill pages page_of(0), page_of(1),
// ... of `values` one after another.
template <class PageOf>
void make_row(const EdgekvRows& rows, int32_t first, int64_t num_tokens, const EdgekvValues& values,
              const PageOf& page_of) {
  constexpr decltype(&add_tokens<float>) kAdd[] = {add_tokens<float>, add_tokens<Half>,
                                                   add_tokens<Brain>, add_tokens<int8_t>};
  float* row = rows.rows + first * rows.width;
  std::fill(row, row + rows.width, 0.f);
  for (int64_t i = 0, left = num_tokens; left > 0; ++i, left -= values.page_size)
    kAdd[values.dtype](values, page_of(i), std::min(values.page_size, left), row);
  for (int64_t d = 0; d < rows.width; ++d) row[d] /= static_cast<float>(num_tokens);
  rows.known[first] = rows.times_taken[first];
}

}  // namespace

void edgekv_sum_pages(const unsigned char* segments, int64_t segment_bytes, int64_t n,
                      const int32_t* pages, const EdgekvNumbers* known, double* out) {
  for (int64_t place = 0; place < n; ++place) {
    double sum = 0;
    for (int64_t i = at(segments, segment_bytes, place).num_pages; i > 0; --i, ++pages)
      if (known->known[*pages] == known->times_taken[*pages]) sum += known->numbers[*pages];
    out[place] = sum * known->factor;
  }
}

// Asked for all at once, since they lie anywhere: the processor cannot guess the next one.
void fetch_ahead(const unsigned char* segments, int64_t segment_bytes, int64_t n,
                 const int32_t* pages, const EdgekvRows& rows) {
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int64_t place = 0; place < n; ++place) {
    const float* row = rows.rows + pages[0] * rows.width;
    for (int64_t i = 0; i < rows.width; i += kLine) __builtin_prefetch(row + i);
    pages += at(segments, segment_bytes, place).num_pages;
  }
}

int64_t edgekv_make_rows(const unsigned char* segments, int64_t segment_bytes, int64_t n,
                         const int32_t* pages, const EdgekvRows* rows, int64_t* missing,
                         int32_t* missing_pages, int64_t* num_pages) {
  fetch_ahead(segments, segment_bytes, n, pages, *rows);
  int64_t num_missing = 0;
  *num_pages = 0;
  for (int64_t place = 0; place < n; ++place) {
    const EdgekvSegment& segment = at(segments, segment_bytes, place);
    if (has_row(*rows, segment) && !row_of(*rows, pages[0])) {
      if (rows->values) {
        make_row(*rows, pages[0], segment.num_tokens, *rows->values,
                 [&](int64_t i) { return pages[i]; });
      } else {
        if (missing) {
          missing[num_missing] = place;
          std::copy(pages, pages + segment.num_pages, missing_pages + *num_pages);
        }
        ++num_missing;
        *num_pages += segment.num_pages;
      }
    }
    pages += segment.num_pages;
  }
  return num_missing;
}

void edgekv_mean_rows(const unsigned char* segments, int64_t segment_bytes, const int64_t* places,
                      int64_t m, const int32_t* pages, const EdgekvRows* rows,
                      const EdgekvValues* values) {
  int64_t done = 0;  // pages
  for (int64_t i = 0; i < m; ++i) {
    const EdgekvSegment& segment = at(segments, segment_bytes, places[i]);
    make_row(*rows, pages[done], segment.num_tokens, *values,
             [&](int64_t page) { return done + page; });
    done += segment.num_pages;
  }
}

void edgekv_copy_rows(const unsigned char* segments, int64_t segment_bytes, int64_t n,
                      const int32_t* pages, const EdgekvRows* rows, float* out) {
  for (int64_t place = 0; place < n; ++place, out += rows->width) {
    if (const float* row = row_of(*rows, pages[0]))
      std::copy(row, row + rows->width, out);
    else
      std::fill_n(out, rows->width, std::numeric_limits<float>::quiet_NaN());
    pages += at(segments, segment_bytes, place).num_pages;
  }
}
