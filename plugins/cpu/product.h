// The two small matrix products.
//
// Owns: out += a b in register blocks, and the scores of a tile of keys in two forms, for few and for
// many query rows. Knows nothing of attention. Built once per instruction set, see vec.h.
#pragma once

#include "paged_attention.h"
#include "vec.h"

namespace edgekv {
namespace {

constexpr int kRowBlock = 4;

// Register block: out[R rows][V vectors] += a[R][depth] * b[depth][V vectors].
template <int R, int V>
EDGEKV_INLINE void product_block(const float* a, int a_stride, const float* b, int b_stride,
                                 int depth, float* out, int out_stride) {
  Vec sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = load(out + r * out_stride + v * kWidth);
  for (int k = 0; k < depth; ++k) {
    Vec row[V];
    for (int v = 0; v < V; ++v) row[v] = load(b + int64_t{k} * b_stride + v * kWidth);
    for (int r = 0; r < R; ++r) {
      const Vec factor = splat(a[int64_t{r} * a_stride + k]);
      for (int v = 0; v < V; ++v) sum[r][v] += factor * row[v];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(out + r * out_stride + v * kWidth, sum[r][v]);
}

template <int R>
EDGEKV_INLINE void product_rows(const float* a, int a_stride, const float* b, int b_stride,
                                int depth, int columns, float* out, int out_stride) {
  int c = 0;
  for (; c + kColumnVectors * kWidth <= columns; c += kColumnVectors * kWidth)
    product_block<R, kColumnVectors>(a, a_stride, b + c, b_stride, depth, out + c, out_stride);
  for (; c < columns; c += kWidth)
    product_block<R, 1>(a, a_stride, b + c, b_stride, depth, out + c, out_stride);
}

// out (rows, columns) += a (rows, depth) b (depth, columns); columns a multiple of kWidth.
void product(const float* a, int a_stride, const float* b, int b_stride, int rows, int depth,
             int columns, float* out, int out_stride) {
  int r = 0;
  for (; r + kRowBlock <= rows; r += kRowBlock)
    product_rows<kRowBlock>(a + r * a_stride, a_stride, b, b_stride, depth, columns,
                            out + r * out_stride, out_stride);
  const float* rest = a + r * a_stride;
  float* to = out + r * out_stride;
  if (rows - r == 3) product_rows<3>(rest, a_stride, b, b_stride, depth, columns, to, out_stride);
  if (rows - r == 2) product_rows<2>(rest, a_stride, b, b_stride, depth, columns, to, out_stride);
  if (rows - r == 1) product_rows<1>(rest, a_stride, b, b_stride, depth, columns, to, out_stride);
}

// scores (rows, kTileTokens) = q (rows, dim) keys^T, summing across lanes: for few rows.
void score_few(const float* q, const float* keys, int rows, int dim, int count, float* scores) {
  for (int k = 0; k < count; k += kWidth) {
    for (int r = 0; r < rows; ++r) {
      Vec sum[kWidth] = {};
      for (int d = 0; d < dim; d += kWidth) {
        const Vec x = load(q + r * dim + d);
        for (int i = 0; i < kWidth; ++i) sum[i] += x * load(keys + (k + i) * dim + d);
      }
      store(scores + r * kTileTokens + k, sum_each(sum));
    }
  }
}

// The same for many rows: keys are transposed once, then no sum crosses lanes.
void score_many(const float* q, const float* keys, int rows, int dim, int count, float* transposed,
                float* scores) {
  for (int k = 0; k < count; k += kWidth) {
    for (int d = 0; d < dim; d += kWidth) {
      Vec block[kWidth];
      for (int i = 0; i < kWidth; ++i) block[i] = load(keys + (k + i) * dim + d);
      transpose(block);
      for (int i = 0; i < kWidth; ++i) store(transposed + (d + i) * kTileTokens + k, block[i]);
    }
  }
  const int columns = (count + kWidth - 1) / kWidth * kWidth;
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < columns; k += kWidth) store(scores + r * kTileTokens + k, splat(0.0f));
  product(q, dim, transposed, kTileTokens, rows, dim, columns, scores, kTileTokens);
}

}  // namespace
}  // namespace edgekv
