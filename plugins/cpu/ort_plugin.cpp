// The CPU kernels as an ONNX Runtime custom-operator library.

#include "ort_kernel.h"
#include "ort_operator.h"

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using edgekv::Dtype;
  return edgekv::register_operator<edgekv::Kernel>(
      options, base, "CPUExecutionProvider", {Dtype::kFloat32, Dtype::kFloat16},
      {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8});
}
