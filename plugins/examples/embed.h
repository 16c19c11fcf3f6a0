// The rows of a bundle's embed.npy: a (vocabulary, hidden) array of float16 or float32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace edgekv::example {

class Embeddings {
 public:
  explicit Embeddings(const char* path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    if (bytes_.size() < 12 || std::memcmp(bytes_.data(), "\x93NUMPY\x01", 7) != 0)
      throw std::runtime_error(std::string(path) + " is not a NumPy file of version 1");
    uint16_t length = 0;
    std::memcpy(&length, bytes_.data() + 8, 2);
    start_ = size_t{10} + length;
    const std::string header(bytes_.data() + 10, std::min(size_t{length}, bytes_.size() - 10));
    half_ = header.find("<f2") != std::string::npos;
    const size_t shape = header.find("'shape': (");
    if ((!half_ && header.find("<f4") == std::string::npos) || shape == std::string::npos)
      throw std::runtime_error(std::string(path) + " holds neither float16 nor float32");
    char* end = nullptr;
    count_ = int32_t(std::strtol(header.c_str() + shape + 10, &end, 10));
    width_ = int32_t(std::strtol(end + 1, nullptr, 10));
    if (count_ < 1 || width_ < 1 || bytes_.size() - start_ != size_t(count_) * width_ * (half_ ? 2 : 4))
      throw std::runtime_error(std::string(path) + " is cut short or not an array of rows");
  }

  int32_t width() const { return width_; }

  // (tokens, width)
  std::vector<float> rows(const std::vector<int32_t>& tokens) const {
    std::vector<float> result;
    for (const int32_t token : tokens) {
      if (token < 0 || token >= count_)
        throw std::runtime_error("token " + std::to_string(token) + ", the vocabulary has " +
                                 std::to_string(count_));
      for (int32_t i = 0; i < width_; ++i) result.push_back(number(size_t(token) * width_ + i));
    }
    return result;
  }

 private:
  float number(size_t index) const {
    if (!half_) {
      float value;
      std::memcpy(&value, bytes_.data() + start_ + index * 4, 4);
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes_.data() + start_ + index * 2, 2);
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    const float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(float(fraction), -24);
    return sign * std::ldexp(float(fraction + 1024), exponent - 25);
  }

  std::vector<char> bytes_;
  size_t start_ = 0;
  bool half_ = false;
  int32_t count_ = 0, width_ = 0;
};

}  // namespace edgekv::example
