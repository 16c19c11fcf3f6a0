// Rotation of queries.
//
// Owns: cosines and sines of a shift, and R(-shift) q. Guarantees: a shift of any size loses nothing,
// whole turns are dropped in double. Knows nothing of pages. Built once per instruction set, see vec.h.
#pragma once

#include "paged_attention.h"
#include "vec.h"

namespace edgekv {
namespace {

// sin(2 pi x) for x in [-0.75, 0.75].
EDGEKV_INLINE float sin_turns(float x) {
  x = x > 0.5f ? x - 1.0f : x;
  x = x > 0.25f ? 0.5f - x : (x < -0.25f ? -0.5f - x : x);
  const float a = x * 6.28318531f;
  const float b = a * a;
  float p = b * 1.60590438e-10f - 2.50521084e-8f;
  p = p * b + 2.75573192e-6f;
  p = p * b - 1.98412698e-4f;
  p = p * b + 8.33333333e-3f;
  p = p * b - 1.66666667e-1f;
  return a + a * (b * p);
}

void fill_rotation(const Geometry& g, const int32_t* shift, float* table) {
  for (int i = 0; i < g.rotary_pairs; ++i) {
    // Whole turns are dropped in double, so a large shift loses nothing.
    const double turns = shift[g.freq_axes[i]] * g.turns_per_position[i];
    const double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
    const float x = float(turns - ((turns + magic) - magic));
    table[i] = sin_turns(x + 0.25f);
    table[g.rotary_pairs + i] = sin_turns(x);
  }
}

// out = R(-shift) q, one row of D numbers.
EDGEKV_INLINE void unrotate(const Geometry& g, const float* table, const float* q, float* out) {
  const int pairs = g.rotary_pairs;
  const float* cosine = table;
  const float* sine = table + pairs;
  const int step = g.rotary_interleaved ? 2 : 1;
  const int partner = g.rotary_interleaved ? 1 : pairs;
  for (int i = 0; i < pairs; ++i) {
    const float a = q[step * i], b = q[step * i + partner];
    out[step * i] = a * cosine[i] + b * sine[i];
    out[step * i + partner] = b * cosine[i] - a * sine[i];
  }
  for (int d = 2 * pairs; d < g.head_dim; ++d) out[d] = q[d];
}

}  // namespace
}  // namespace edgekv
