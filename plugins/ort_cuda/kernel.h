// One node of a graph that ONNX Runtime runs on a GPU: its attributes, and a call.
//
// Owns: how ONNX Runtime's tensors become a cuda::Call, and the stream's workspace. Guarantees: shapes
// and dtypes are checked before anything is launched; calls may come from several threads at once.
// Knows no kernel. The numbers in the tables lie in device memory and are not looked at.
#pragma once

#include <mutex>

#include "../cpu/ort_io.h"
#include "../cuda/launch.h"
#include "../cuda/workspace.h"

namespace edgekv::cuda {

class OrtKernel {
 public:
  OrtKernel(const ort::Api& api, const OrtKernelInfo* info, Dtype query, Dtype pool);

  void compute(OrtKernelContext* context);

 private:
  void read_inputs(OrtKernelContext* context, Tensor (&tensors)[kNumInputs]) const;
  void bind_outputs(OrtKernelContext* context, const Tensor (&tensors)[kNumInputs], Call& call) const;

  const ort::Api& api_;
  ::edgekv::cuda::Attributes attributes_;
  std::mutex mutex_;  // of what follows
  Launcher launcher_;
  std::shared_ptr<StreamWorkspace> workspace_;
};

}  // namespace edgekv::cuda
