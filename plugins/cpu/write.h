// New tokens into their slots.
//
// Owns: conversion to the pool's dtype, int8 scales included. Guarantees: one call touches one KV head,
// in token order, so calls for different heads may run at once. Built once per instruction set.
#pragma once

#include "paged_attention.h"
#include "vec.h"

namespace edgekv {
namespace {

template <class From, class To>
EDGEKV_INLINE void convert_row(const From* from, int count, To* to) {
  int d = 0;
  for (; d + kWidth <= count; d += kWidth) store(to + d, load(from + d));
  for (; d < count; ++d) store_one(to + d, to_float(from[d]));
}

template <class From>
EDGEKV_INLINE void quantize_row(const From* from, int count, int8_t* to, float* scale) {
  float largest = 0.0f;
  bool finite = true;
  for (int d = 0; d < count; ++d) {
    const float x = __builtin_fabsf(to_float(from[d]));
    finite = finite && x <= 3.402823466e38f;
    largest = x > largest ? x : largest;
  }
  *scale = finite ? largest / 127.0f : __builtin_nanf("");
  const bool divide = finite && *scale > 0.0f;
  for (int d = 0; d < count; ++d) {
    const float q = divide ? __builtin_rintf(to_float(from[d]) / *scale) : 0.0f;
    to[d] = int8_t(q > 127.0f ? 127.0f : (q < -127.0f ? -127.0f : q));  // a subnormal scale is inexact
  }
}

template <class From>
void write_rows(const Call& call, int kv_head, const From* from, void* pool, float* scales) {
  const Geometry& g = call.geometry;
  for (int t = 0; t < call.num_tokens; ++t) {
    const int slot = call.slot_mapping[t];
    if (slot < 0) continue;
    const int64_t row =
        (int64_t{slot / call.page_size} * g.num_kv_heads + kv_head) * call.page_size +
        slot % call.page_size;
    const From* source = from + (int64_t{t} * g.num_kv_heads + kv_head) * g.head_dim;
    const int64_t to = row * g.head_dim;
    switch (call.pool_dtype) {
      case Dtype::kFloat32: convert_row(source, g.head_dim, static_cast<float*>(pool) + to); break;
      case Dtype::kFloat16: convert_row(source, g.head_dim, static_cast<Half*>(pool) + to); break;
      case Dtype::kBfloat16: convert_row(source, g.head_dim, static_cast<Brain*>(pool) + to); break;
      case Dtype::kInt8:
        quantize_row(source, g.head_dim, static_cast<int8_t*>(pool) + to, scales + row);
        break;
    }
  }
}

void write_head(const Call& call, int32_t kv_head) {
  if (call.query_dtype == Dtype::kFloat32) {
    const float* key = static_cast<const float*>(call.key);
    const float* value = static_cast<const float*>(call.value);
    write_rows(call, kv_head, key, call.key_pool, call.key_scales);
    write_rows(call, kv_head, value, call.value_pool, call.value_scales);
  } else {
    const Half* key = static_cast<const Half*>(call.key);
    const Half* value = static_cast<const Half*>(call.value);
    write_rows(call, kv_head, key, call.key_pool, call.key_scales);
    write_rows(call, kv_head, value, call.value_pool, call.value_scales);
  }
}

}  // namespace
}  // namespace edgekv
