// What is known of pages, put together by segment: plain memory, no runtime.
//
// `segments` (n, segment_bytes), see layout.h; `pages` are theirs, one segment behind the other, ids of a
// pool. edgekv/native/columns.py owns the memory, edgekv/cache/{heat,summaries}.py say what it means.
#pragma once

#include <cstdint>

extern "C" {

// A number for every page of a pool. Of a page that was taken anew since nothing is known.
struct EdgekvNumbers {
  const int64_t* times_taken;  // (pool pages,) of the ledger
  const int64_t* known;        // (pool pages,) how often each had been taken then
  const double* numbers;       // (pool pages,)
  double factor;
};

// The values that pages of a pool hold in one layer: numbers (pages, num_heads, page_size, head_dim).
struct EdgekvValues {
  const void* numbers;
  const float* scales;  // (pages, num_heads, page_size) of int8 numbers, null of others
  int64_t dtype;        // 0 float32, 1 float16, 2 bfloat16, 3 int8
  int64_t num_heads, page_size, head_dim;
};

// A row for every page of a pool; a segment's is that of its first page.
struct EdgekvRows {
  const int64_t* times_taken;  // as above
  int64_t* known;
  float* rows;                 // (pool pages, width)
  int64_t width;
  int64_t num_axes, frame_kind;  // kind of the segments that have a row
  const EdgekvValues* values;    // of the pool, heads * dim is width; null where they are not in memory
};

#define EDGEKV_COLUMNS_CALL(type) __attribute__((visibility("default"))) type

// The sum of numbers * factor over the pages of each segment: out (n,).
EDGEKV_COLUMNS_CALL(void)
edgekv_sum_pages(const unsigned char* segments, int64_t segment_bytes, int64_t n,
                 const int32_t* pages, const EdgekvNumbers*, double* out);

// Makes the rows of frames that have none, the mean over their tokens, if their values are in memory.
// Otherwise their places go to `missing` (n,), and all their pages to `missing_pages`, unless null.
// Returns how many are missing still; `num_pages` gets how many pages those have.
EDGEKV_COLUMNS_CALL(int64_t)
edgekv_make_rows(const unsigned char* segments, int64_t segment_bytes, int64_t n,
                 const int32_t* pages, const EdgekvRows*, int64_t* missing, int32_t* missing_pages,
                 int64_t* num_pages);

// Makes the rows of the segments at `places` (m,), whose pages are `pages`; what they hold is in
// `values`, page by page in this order.
EDGEKV_COLUMNS_CALL(void)
edgekv_mean_rows(const unsigned char* segments, int64_t segment_bytes, const int64_t* places,
                 int64_t m, const int32_t* pages, const EdgekvRows*, const EdgekvValues* values);

// out (n, width): the row of each segment, NaN where none is known.
EDGEKV_COLUMNS_CALL(void)
edgekv_copy_rows(const unsigned char* segments, int64_t segment_bytes, int64_t n,
                 const int32_t* pages, const EdgekvRows*, float* out);
}

namespace edgekv {

// The row of a segment whose first page this is; null: none is known.
inline const float* row_of(const EdgekvRows& rows, int32_t page) {
  return rows.known[page] == rows.times_taken[page] ? rows.rows + page * rows.width : nullptr;
}

}  // namespace edgekv
