// Numbers as tensors hold them: float32, float16 and bfloat16 as bytes, and back.
#pragma once

#include <NvInferRuntime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../../cpu/reference.h"

namespace edgekv::check {

using nvinfer1::DataType;

inline uint16_t to_bfloat(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Round to nearest even; no number here is near the ends of float16's range.
inline uint16_t to_half(float x) {
  const double magnitude = std::fabs(double(x));
  const int exponent = magnitude < 6.103515625e-05 ? -14 : std::ilogb(magnitude);
  const auto fraction = int(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  const int bits = magnitude < 6.103515625e-05 ? fraction : ((exponent + 14) << 10) + fraction;
  return uint16_t(bits | (std::signbit(x) ? 0x8000 : 0));
}

inline float from_bfloat(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

inline std::vector<uint8_t> encode(const std::vector<float>& values, DataType type) {
  std::vector<uint8_t> bytes(values.size() * (type == DataType::kFLOAT ? 4 : 2));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DataType::kFLOAT) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t half = type == DataType::kHALF ? to_half(values[i]) : to_bfloat(values[i]);
      std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
  }
  return bytes;
}

inline std::vector<float> decode(const std::vector<uint8_t>& bytes, DataType type) {
  std::vector<float> values(bytes.size() / (type == DataType::kFLOAT ? 4 : 2));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half;
    if (type == DataType::kFLOAT) {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
      continue;
    }
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    values[i] = type == DataType::kHALF ? reference::half_to_float(half) : from_bfloat(half);
  }
  return values;
}

inline Dtype dtype_of(DataType type) {
  switch (type) {
    case DataType::kFLOAT: return Dtype::kFloat32;
    case DataType::kHALF: return Dtype::kFloat16;
    case DataType::kBF16: return Dtype::kBfloat16;
    default: return Dtype::kInt8;
  }
}

}  // namespace edgekv::check
