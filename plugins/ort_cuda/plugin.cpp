// The GPU kernels as an ONNX Runtime custom-operator library.
//
// EDGEKV_ORT_PROVIDER is another provider in the build that tests run without a GPU.

#include "../cpu/ort_operator.h"
#include "kernel.h"

#ifndef EDGEKV_ORT_PROVIDER
#define EDGEKV_ORT_PROVIDER "CUDAExecutionProvider"
#endif

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using edgekv::Dtype;
  return edgekv::register_operator<edgekv::cuda::OrtKernel>(
      options, base, EDGEKV_ORT_PROVIDER, {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16},
      {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8});
}
