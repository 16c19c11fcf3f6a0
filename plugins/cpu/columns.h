// What is known of pages, put together by segment: plain memory, no runtime.
//
// `segments` (n, segment_bytes), see layout.h; `pages` are theirs, one segment behind the other, ids of
// a pool. edgekv/cache/summaries.py and heat.py own the memory and say what it means.
#pragma once

#include <cstdint>

extern "C" {

// Since when what is known of the pages of a pool is known: of a page that was taken anew since then
// it is not.
struct EdgekvSince {
  const int64_t* times_taken;  // (pool pages,) of the ledger
  int64_t* known;              // (pool pages,) how often each had been taken then
};

// The sum of the known `numbers` (pool pages,) over the pages of each segment, times `factor`:
// out (n,).
__attribute__((visibility("default"))) void edgekv_sum_pages(
    const unsigned char* segments, int64_t segment_bytes, int64_t n, const int32_t* pages,
    const EdgekvSince* since, const double* numbers, double factor, double* out);

// The values that pages of a pool hold in one layer: numbers (pages, num_heads, page_size, head_dim).
struct EdgekvValues {
  const void* numbers;
  const float* scales;  // (pages, num_heads, page_size) of int8 numbers, null of others
  int64_t dtype;        // 0 float32, 1 float16, 2 bfloat16, 3 int8
  int64_t num_heads, page_size, head_dim;
};

// The row of the first page of each segment: rows (pool pages, width) -> out (n, width), NaN where none
// is known. Segments of kind `frame_kind` without one are missing. With `values`, whose heads * dim is
// width, such a row is made first: the mean over the segment's tokens. Without, the segments' places go
// to `missing`, which has room for n, and their pages to `missing_pages`, which has room for all.
// Returns how many segments are missing still; `num_pages` gets how many pages those have.
__attribute__((visibility("default"))) int64_t edgekv_first_rows(
    const unsigned char* segments, int64_t segment_bytes, int64_t num_axes, int64_t n,
    const int32_t* pages, const EdgekvValues* values, const EdgekvSince* since, float* rows,
    int64_t width, int32_t frame_kind, float* out, int64_t* missing, int32_t* missing_pages,
    int64_t* num_pages);

// Makes the rows of the n segments at `places`, whose pages are `pages`; what they hold is in
// `values`, page by page in this order.
__attribute__((visibility("default"))) void edgekv_mean_rows(
    const unsigned char* segments, int64_t segment_bytes, const int64_t* places, int64_t n,
    const int32_t* pages, const EdgekvValues* values, const EdgekvSince* since, float* rows);
}
