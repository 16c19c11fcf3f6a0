// The operator as a TensorRT plugin: IPluginV3 with its three capabilities.
//
// Owns: how TensorRT's questions (types, shapes, formats, workspace) are answered from a node's
// definition, and how enqueue() becomes a cuda::Call. Guarantees: no exception leaves it; every fault is
// a return code and one reported line; enqueue() allocates nothing and waits for nothing. Knows no
// kernel. Needs TensorRT 10.3: see docs/adr on the plugin for the interface levels.
#pragma once

#include <NvInferRuntime.h>

#include <string>
#include <vector>

#include "../cuda/launch.h"
#include "fields.h"
#include "places.h"

static_assert(NV_TENSORRT_VERSION >= 100300, "the plugin needs the headers of TensorRT 10.3 or newer");

namespace edgekv::tensorrt {

class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuildV2,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  Plugin(Definition definition, nvinfer1::TensorRTPhase phase);

  // IPluginV3
  nvinfer1::IPluginCapability* getCapabilityInterface(
      nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  // IPluginV3OneCore
  const char* getPluginName() const noexcept override { return cuda::kOperatorName; }
  const char* getPluginVersion() const noexcept override { return cuda::kOperatorVersionText; }
  const char* getPluginNamespace() const noexcept override { return cuda::kOperatorDomain; }

  // IPluginV3OneBuildV2
  int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* in, int32_t num_inputs,
                          const nvinfer1::DynamicPluginTensorDesc* out,
                          int32_t num_outputs) noexcept override;
  int32_t getOutputDataTypes(nvinfer1::DataType* out, int32_t num_outputs,
                             const nvinfer1::DataType* in, int32_t num_inputs) const noexcept override;
  int32_t getOutputShapes(const nvinfer1::DimsExprs* in, int32_t num_inputs,
                          const nvinfer1::DimsExprs* shape_inputs, int32_t num_shape_inputs,
                          nvinfer1::DimsExprs* out, int32_t num_outputs,
                          nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* in_out,
                                 int32_t num_inputs, int32_t num_outputs) noexcept override;
  int32_t getNbOutputs() const noexcept override { return definition_.num_outputs; }
  size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* in, int32_t num_inputs,
                          const nvinfer1::DynamicPluginTensorDesc* out,
                          int32_t num_outputs) const noexcept override;
  const char* getMetadataString() noexcept override { return description_.c_str(); }
  // The application binds a pool to the same memory on both sides. An alias declared here would make
  // TensorRT keep a copy of the pool.
  int32_t getAliasedInput(int32_t) noexcept override { return -1; }

  // IPluginV3OneRuntime
  int32_t onShapeChange(const nvinfer1::PluginTensorDesc* in, int32_t num_inputs,
                        const nvinfer1::PluginTensorDesc* out, int32_t num_outputs) noexcept override;
  int32_t enqueue(const nvinfer1::PluginTensorDesc* in, const nvinfer1::PluginTensorDesc* out,
                  const void* const* inputs, void* const* outputs, void* workspace,
                  cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

 private:
  int32_t fail(const cuda::Message& message) const noexcept;
  bool place(const int32_t* ranks, int32_t num_inputs, int32_t num_outputs, Places& places,
             cuda::Message& message) const noexcept;
  bool largest_call(const nvinfer1::DynamicPluginTensorDesc* in, const Places& places,
                    cuda::Call& call, cuda::Message& message) const noexcept;
  bool bind(const nvinfer1::PluginTensorDesc* in, const void* const* inputs, cuda::Call& call,
            cuda::Message& message) const noexcept;

  Definition definition_;
  // While an engine is built TensorRT may time the plugin on memory that holds nothing meaningful. Tables
  // from there would lead the kernels anywhere, so an instance made for building launches nothing, until
  // it is attached to an execution context: an engine can be used as it was built.
  nvinfer1::TensorRTPhase phase_;
  bool attached_ = false;
  // What the network says the pools are, once it has asked for types; kBOOL before. A builder that may
  // choose precisions must not choose another for the pools: it would convert them whole, each step.
  mutable nvinfer1::DataType pool_type_ = nvinfer1::DataType::kBOOL;
  std::string description_;
  std::vector<uint8_t> bytes_;  // what getFieldsToSerialize() points to
  nvinfer1::PluginField bytes_field_;
  nvinfer1::PluginFieldCollection serialized_{};
  Places places_{};
  cuda::Launcher launcher_;
  nvinfer1::IErrorRecorder* recorder_ = nullptr;  // of the context this plugin is attached to
};

}  // namespace edgekv::tensorrt
