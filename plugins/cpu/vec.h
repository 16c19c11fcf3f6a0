// Vectors of floats at the width of the instruction set this file is compiled for.
//
// Owns: width, load/store and conversion of the pool dtypes, exp. Written with the compiler's vector
// types (GCC, Clang), so one kernel source serves SSE2, AVX2, AVX-512 and NEON.
// Everything is `static` in an unnamed namespace and no C++ library header with inline functions is
// used: files built for a newer instruction set must not leak code into files built for an older one.
#pragma once

#include <stdint.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace edgekv {
namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
constexpr int kColumnVectors = 4;  // register block of the products: 4 rows x this many vectors
#elif defined(__AVX2__)
constexpr int kWidth = 8;
constexpr int kColumnVectors = 2;
#elif defined(__aarch64__)
constexpr int kWidth = 4;
constexpr int kColumnVectors = 4;
#else
constexpr int kWidth = 4;
constexpr int kColumnVectors = 2;
#endif

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef int32_t IntVec __attribute__((vector_size(kWidth * 4)));

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

#define EDGEKV_INLINE inline __attribute__((always_inline))

EDGEKV_INLINE Vec splat(float x) { return Vec{} + x; }

EDGEKV_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

EDGEKV_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

EDGEKV_INLINE float bits_to_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

EDGEKV_INLINE uint32_t float_to_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Half to float by moving exponent and mantissa up and scaling by 2^112; infinities and NaN, whose
// exponent the scaling cannot reach, get theirs set.
EDGEKV_INLINE float to_float(Half h) {
  const uint32_t magnitude = uint32_t(h.bits & 0x7fffu) << 13;
  const uint32_t sign = uint32_t(h.bits & 0x8000u) << 16;
  uint32_t bits = float_to_bits(bits_to_float(magnitude) * 0x1p112f);
  if ((h.bits & 0x7c00u) == 0x7c00u) bits = magnitude | 0x7f800000u;
  return bits_to_float(bits | sign);
}
EDGEKV_INLINE float to_float(Brain b) { return bits_to_float(uint32_t(b.bits) << 16); }
EDGEKV_INLINE float to_float(float x) { return x; }

// Float to half, ties to even, overflow to infinity, NaN stays NaN.
EDGEKV_INLINE Half to_half(float x) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  uint16_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 aligns the mantissa for us
    half = uint16_t(float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u);
  } else {
    half = uint16_t((magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13);
  }
  return Half{uint16_t(half | sign)};
}

EDGEKV_INLINE Brain to_brain(float x) {
  uint32_t bits = float_to_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Brain{uint16_t((bits >> 16) | 0x40u)};
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return Brain{uint16_t(bits >> 16)};
}

EDGEKV_INLINE Vec load(const Half* p) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__) && defined(__F16C__)
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
#else
  typedef uint16_t Narrow __attribute__((vector_size(kWidth * 2)));
  Narrow narrow;
  __builtin_memcpy(&narrow, p, sizeof narrow);
  const IntVec bits = __builtin_convertvector(narrow, IntVec);
  const IntVec magnitude = (bits & 0x7fff) << 13;
  const IntVec special = (bits & 0x7c00) == 0x7c00;
  const IntVec scaled = (IntVec)((Vec)magnitude * 0x1p112f);
  return (Vec)((special ? magnitude | 0x7f800000 : scaled) | (bits & 0x8000) << 16);
#endif
}

EDGEKV_INLINE Vec load(const Brain* p) {
#if defined(__AVX512F__)
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
#elif defined(__AVX2__)
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (Vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
#else
  typedef uint16_t Narrow __attribute__((vector_size(kWidth * 2)));
  Narrow narrow;
  __builtin_memcpy(&narrow, p, sizeof narrow);
  return (Vec)(__builtin_convertvector(narrow, IntVec) << 16);
#endif
}

EDGEKV_INLINE Vec load(const int8_t* p) {
#if defined(__AVX512F__)
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(narrow));
#elif defined(__AVX2__)
  const __m128i narrow = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(narrow));
#else
  typedef int8_t Narrow __attribute__((vector_size(kWidth)));
  Narrow narrow;
  __builtin_memcpy(&narrow, p, sizeof narrow);
  return __builtin_convertvector(__builtin_convertvector(narrow, IntVec), Vec);
#endif
}

EDGEKV_INLINE void store(Half* p, Vec v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__) && defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  vst1_u16(reinterpret_cast<uint16_t*>(p),
           vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#else
  for (int i = 0; i < kWidth; ++i) p[i] = to_half(v[i]);
#endif
}

EDGEKV_INLINE void store(Brain* p, Vec v) {
  for (int i = 0; i < kWidth; ++i) p[i] = to_brain(v[i]);
}

EDGEKV_INLINE float to_float(int8_t x) { return float(x); }
EDGEKV_INLINE void store_one(float* p, float x) { *p = x; }
EDGEKV_INLINE void store_one(Half* p, float x) { *p = to_half(x); }
EDGEKV_INLINE void store_one(Brain* p, float x) { *p = to_brain(x); }

EDGEKV_INLINE Vec maximum(Vec a, Vec b) { return a > b ? a : b; }

// exp to about 2 units in the last place. Below -87.3 the result is 0, NaN stays NaN.
EDGEKV_INLINE Vec vexp(Vec x) {
  const Vec low = splat(-87.3f), high = splat(88.3f);
  const IntVec underflow = x < low;
  x = underflow ? low : x;  // written so that NaN passes through
  x = x > high ? high : x;
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = x * 1.44269504f + magic;
  const Vec n = shifted - magic;
  const Vec r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  Vec p = r * 1.38888889e-3f + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const IntVec power = ((IntVec)shifted - 0x4b400000 + 127) << 23;
  const Vec result = p * (Vec)power;
  return (Vec)((IntVec)result & ~underflow);
}

EDGEKV_INLINE float exp_one(float x) { return vexp(splat(x))[0]; }

// tanh(x) = 1 - 2 / (exp(2x) + 1); absolute error about 1e-7.
EDGEKV_INLINE Vec vtanh(Vec x) { return 1.0f - 2.0f / (vexp(2.0f * x) + 1.0f); }

// Lane shuffles of two vectors, for the sums and transposes below. `H` is a power of two.
// GCC knows __builtin_shufflevector only from version 12 on; JetPack 6 brings version 11.
#if defined(__clang__)
#define EDGEKV_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define EDGEKV_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, IntVec{__VA_ARGS__})
#endif

template <int... I>
struct Lanes {
  template <int H>
  static EDGEKV_INLINE Vec flip(Vec v) {
    return EDGEKV_SHUFFLE(v, v, (I ^ H)...);
  }
  template <int H>
  static EDGEKV_INLINE Vec keep(Vec a, Vec b) {  // a where bit H is clear, else b
    return EDGEKV_SHUFFLE(a, b, ((I & H) ? kWidth + I : I)...);
  }
  template <int H>
  static EDGEKV_INLINE Vec cross(Vec a, Vec b) {  // the same of their exchanged lanes
    return EDGEKV_SHUFFLE(a, b, ((I & H) ? kWidth + (I ^ H) : (I ^ H))...);
  }
  template <int H>
  static EDGEKV_INLINE Vec low(Vec a, Vec b) {  // transpose step, first row
    return EDGEKV_SHUFFLE(a, b, ((I & H) ? kWidth + (I ^ H) : I)...);
  }
  template <int H>
  static EDGEKV_INLINE Vec high(Vec a, Vec b) {  // transpose step, second row
    return EDGEKV_SHUFFLE(a, b, ((I & H) ? kWidth + I : (I ^ H))...);
  }
};

#if defined(__AVX512F__)
typedef Lanes<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> AllLanes;
#elif defined(__AVX2__)
typedef Lanes<0, 1, 2, 3, 4, 5, 6, 7> AllLanes;
#else
typedef Lanes<0, 1, 2, 3> AllLanes;
#endif

EDGEKV_INLINE float horizontal_sum(Vec v) {
  if constexpr (kWidth >= 16) v += AllLanes::flip<8>(v);
  if constexpr (kWidth >= 8) v += AllLanes::flip<4>(v);
  v += AllLanes::flip<2>(v);
  v += AllLanes::flip<1>(v);
  return v[0];
}

EDGEKV_INLINE float horizontal_max(Vec v) {
  if constexpr (kWidth >= 16) v = maximum(v, AllLanes::flip<8>(v));
  if constexpr (kWidth >= 8) v = maximum(v, AllLanes::flip<4>(v));
  v = maximum(v, AllLanes::flip<2>(v));
  v = maximum(v, AllLanes::flip<1>(v));
  return v[0];
}

// v[0..kWidth) -> one vector whose lane i is the sum of v[i]'s lanes.
EDGEKV_INLINE Vec sum_each(Vec* v) {
  for (int i = 0; i < kWidth; i += 2)
    v[i] = AllLanes::keep<1>(v[i], v[i + 1]) + AllLanes::cross<1>(v[i], v[i + 1]);
  for (int i = 0; i < kWidth; i += 4)
    v[i] = AllLanes::keep<2>(v[i], v[i + 2]) + AllLanes::cross<2>(v[i], v[i + 2]);
  if constexpr (kWidth >= 8)
    for (int i = 0; i < kWidth; i += 8)
      v[i] = AllLanes::keep<4>(v[i], v[i + 4]) + AllLanes::cross<4>(v[i], v[i + 4]);
  if constexpr (kWidth >= 16) v[0] = AllLanes::keep<8>(v[0], v[8]) + AllLanes::cross<8>(v[0], v[8]);
  return v[0];
}

template <int H>
EDGEKV_INLINE void transpose_step(Vec* v) {
  for (int i = 0; i < kWidth; ++i) {
    if (i & H) continue;
    const Vec a = v[i], b = v[i + H];
    v[i] = AllLanes::low<H>(a, b);
    v[i + H] = AllLanes::high<H>(a, b);
  }
}

// kWidth x kWidth block in place.
EDGEKV_INLINE void transpose(Vec* v) {
  transpose_step<1>(v);
  transpose_step<2>(v);
  if constexpr (kWidth >= 8) transpose_step<4>(v);
  if constexpr (kWidth >= 16) transpose_step<8>(v);
}

}  // namespace
}  // namespace edgekv
