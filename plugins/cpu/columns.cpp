#include "columns.h"

#include <algorithm>
#include <limits>

#include "layout.h"
#include "vec.h"

namespace {

using edgekv::Brain;
using edgekv::Half;
using edgekv::to_float;

const EdgekvSegment& at(const unsigned char* segments, int64_t segment_bytes, int64_t place) {
  return *reinterpret_cast<const EdgekvSegment*>(segments + place * segment_bytes);
}

bool is_known(const EdgekvSince& since, int32_t page) {
  return since.known[page] == since.times_taken[page];
}

template <class T>
void add_tokens(const EdgekvValues& values, int64_t page, int64_t num_tokens, float* sum) {
  for (int64_t head = 0; head < values.num_heads; ++head, sum += values.head_dim) {
    const int64_t first = (page * values.num_heads + head) * values.page_size;
    for (int64_t slot = first; slot < first + num_tokens; ++slot) {
      const T* numbers = static_cast<const T*>(values.numbers) + slot * values.head_dim;
      const float scale = values.scales ? values.scales[slot] : 1.f;
      for (int64_t d = 0; d < values.head_dim; ++d) sum[d] += to_float(numbers[d]) * scale;
    }
  }
}

// The mean over num_tokens tokens that fill page_of(0), page_of(1), ... one after another.
template <class PageOf>
void mean_row(const EdgekvValues& values, int64_t num_tokens, const PageOf& page_of, float* row) {
  const int64_t width = values.num_heads * values.head_dim;
  constexpr decltype(&add_tokens<float>) kAdd[] = {add_tokens<float>, add_tokens<Half>,
                                                   add_tokens<Brain>, add_tokens<int8_t>};
  std::fill(row, row + width, 0.f);
  for (int64_t i = 0, left = num_tokens; left > 0; ++i, left -= values.page_size)
    kAdd[values.dtype](values, page_of(i), std::min(values.page_size, left), row);
  for (int64_t d = 0; d < width; ++d) row[d] /= static_cast<float>(num_tokens);
}

}  // namespace

void edgekv_sum_pages(const unsigned char* segments, int64_t segment_bytes, int64_t n,
                      const int32_t* pages, const EdgekvSince* since, const double* numbers,
                      double factor, double* out) {
  for (int64_t place = 0; place < n; ++place) {
    double sum = 0;
    for (int64_t i = at(segments, segment_bytes, place).num_pages; i > 0; --i, ++pages)
      if (is_known(*since, *pages)) sum += numbers[*pages];
    out[place] = sum * factor;
  }
}

int64_t edgekv_first_rows(const unsigned char* segments, int64_t segment_bytes, int64_t num_axes,
                          int64_t n, const int32_t* pages, const EdgekvValues* values,
                          const EdgekvSince* since, float* rows, int64_t width, int32_t frame_kind,
                          float* out, int64_t* missing, int32_t* missing_pages,
                          int64_t* num_pages) {
  const int32_t* const first_missing = missing_pages;
  int64_t num_missing = 0;
  for (int64_t place = 0; place < n; ++place) {
    const EdgekvSegment& segment = at(segments, segment_bytes, place);
    float* row = rows + pages[0] * width;
    const auto* kind = reinterpret_cast<const int8_t*>(&segment + 1) + num_axes * 4;
    if (*kind == frame_kind && !is_known(*since, pages[0])) {
      if (values) {
        mean_row(*values, segment.num_tokens, [&](int64_t i) { return pages[i]; }, row);
        since->known[pages[0]] = since->times_taken[pages[0]];
      } else {
        missing[num_missing++] = place;
        missing_pages = std::copy(pages, pages + segment.num_pages, missing_pages);
      }
    }
    if (is_known(*since, pages[0]))
      std::copy(row, row + width, out + place * width);
    else
      std::fill_n(out + place * width, width, std::numeric_limits<float>::quiet_NaN());
    pages += segment.num_pages;
  }
  *num_pages = missing_pages - first_missing;
  return num_missing;
}

void edgekv_mean_rows(const unsigned char* segments, int64_t segment_bytes, const int64_t* places,
                      int64_t n, const int32_t* pages, const EdgekvValues* values,
                      const EdgekvSince* since, float* rows) {
  const int64_t width = values->num_heads * values->head_dim;
  int64_t done = 0;  // pages
  for (int64_t i = 0; i < n; ++i) {
    const EdgekvSegment& segment = at(segments, segment_bytes, places[i]);
    const int32_t first = pages[done];
    mean_row(*values, segment.num_tokens, [&](int64_t page) { return done + page; },
             rows + first * width);
    since->known[first] = since->times_taken[first];
    done += segment.num_pages;
  }
}
