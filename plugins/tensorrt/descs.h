// TensorRT's descriptions of tensors, in the operator's terms.
//
// Owns: dtypes, ranks, which outputs a node has, which input an output is shaped like, and which input
// stands at a place while only the ranks before it are known. Knows nothing of a plugin's life.
#pragma once

#include <NvInferRuntime.h>

#include "places.h"

namespace edgekv::tensorrt {

// More inputs than this are refused before anything is read.
constexpr int32_t kMaxPlaces = 32;

inline cuda::Element element_of(nvinfer1::DataType type) {
  switch (type) {
    case nvinfer1::DataType::kFLOAT: return cuda::Element::kFloat32;
    case nvinfer1::DataType::kHALF: return cuda::Element::kFloat16;
    case nvinfer1::DataType::kBF16: return cuda::Element::kBfloat16;
    case nvinfer1::DataType::kINT8: return cuda::Element::kInt8;
    case nvinfer1::DataType::kINT32: return cuda::Element::kInt32;
    default: return cuda::Element::kOther;
  }
}

// Which outputs a node has, as far as their number says.
inline cuda::Presence presence_of(int32_t num_outputs) {
  return {num_outputs >= 3, false, num_outputs >= 5, num_outputs % 2 == 0};
}

// The input that an output has its dtype and shape from.
inline cuda::Input model_of(cuda::Output output) {
  constexpr cuda::Input kModels[cuda::kNumOutputs] = {cuda::kQuery,     cuda::kKeyPool,
                                                      cuda::kValuePool, cuda::kKeyScales,
                                                      cuda::kValueScales, cuda::kPageMass};
  return kModels[output];
}

inline void copy_dims(const nvinfer1::Dims& dims, cuda::Tensor& tensor) {
  tensor.rank = dims.nbDims;
  for (int32_t i = 0; i < dims.nbDims && i < 4; ++i) tensor.dims[i] = dims.d[i];
}

inline int32_t rank_of(const nvinfer1::PluginTensorDesc& desc) { return desc.dims.nbDims; }
inline int32_t rank_of(const nvinfer1::DynamicPluginTensorDesc& desc) { return desc.desc.dims.nbDims; }
inline int32_t rank_of(const nvinfer1::DimsExprs& dims) { return dims.nbDims; }

// Ranks of the inputs; false when there are too many to be ours.
template <class Desc>
bool read_ranks(const Desc* in, int32_t num_inputs, int32_t (&ranks)[kMaxPlaces], cuda::Message& message) {
  if (num_inputs < 0 || num_inputs > kMaxPlaces)
    return message.set("the node has %d inputs, at most %d", int(num_inputs), int(cuda::kNumInputs));
  for (int32_t i = 0; i < num_inputs; ++i) ranks[i] = rank_of(in[i]);
  return true;
}

// The operator input that stands at `position`, judged by the ranks up to there: what follows cannot be
// known yet, and sinks and masses, which look alike, have the same dtype.
inline cuda::Input input_at(const nvinfer1::DynamicPluginTensorDesc* in, int32_t position) {
  int32_t next = cuda::kQuery;
  for (int32_t i = 0;; ++i) {
    const int32_t rank = rank_of(in[i]);
    const bool absent = is_absent(rank);
    if (!absent && next == cuda::kKey && rank == 4) next = cuda::kKeyPool;
    if (!absent && next == cuda::kSinks && rank == 3) next = cuda::kKeyScales;
    if (i == position) return cuda::Input(next < cuda::kNumInputs ? next : cuda::kMassWeights);
    if (!absent) ++next;
  }
}

}  // namespace edgekv::tensorrt
