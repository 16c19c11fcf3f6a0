// See plugin.h.

#include "plugin.h"

#include <exception>

#include "descs.h"
#include "report.h"

namespace edgekv::tensorrt {
namespace {

using cuda::Message;
using nvinfer1::DataType;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

}  // namespace

Plugin::Plugin(Definition definition, nvinfer1::TensorRTPhase phase)
    : definition_(std::move(definition)), phase_(phase), description_(describe(definition_)) {}

int32_t Plugin::fail(const Message& message) const noexcept {
  report(message.text(), recorder_);
  return 1;
}

nvinfer1::IPluginCapability* Plugin::getCapabilityInterface(
    nvinfer1::PluginCapabilityType type) noexcept {
  switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuildV2*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

nvinfer1::IPluginV3* Plugin::clone() noexcept {
  try {
    auto copy = std::make_unique<Plugin>(definition_, phase_);
    copy->pool_type_ = pool_type_;
    copy->places_ = places_;
    copy->launcher_ = launcher_;
    copy->recorder_ = recorder_;
    return copy.release();
  } catch (const std::exception& fault) {
    report(fault.what(), recorder_);
    return nullptr;
  }
}

nvinfer1::IPluginV3* Plugin::attachToContext(nvinfer1::IPluginResourceContext* context) noexcept {
  auto* attached = static_cast<Plugin*>(clone());
  if (!attached) return nullptr;
  attached->recorder_ = context ? context->getErrorRecorder() : nullptr;
  attached->attached_ = true;
  return attached;
}

const nvinfer1::PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept {
  try {
    bytes_ = write_bytes(definition_);
  } catch (const std::exception& fault) {
    report(fault.what(), recorder_);
    return nullptr;
  }
  bytes_field_ = {kBytesField, bytes_.data(), nvinfer1::PluginFieldType::kUNKNOWN,
                  int32_t(bytes_.size())};
  serialized_ = {1, &bytes_field_};
  return &serialized_;
}

bool Plugin::place(const int32_t* ranks, int32_t num_inputs, int32_t num_outputs, Places& places,
                   Message& message) const noexcept {
  if (!place_inputs(ranks, num_inputs, places, message)) return false;
  cuda::Output order[cuda::kNumOutputs];
  const int32_t wanted = places.presence().outputs(order);
  if (num_outputs == wanted && definition_.num_outputs == wanted) return true;
  return message.set("the node has %d outputs and says num_outputs = %d; with its inputs it must be %d",
                     int(num_outputs), int(definition_.num_outputs), int(wanted));
}

bool Plugin::largest_call(const DynamicPluginTensorDesc* in, const Places& places, cuda::Call& call,
                          Message& message) const noexcept {
  cuda::Tensor tensors[cuda::kNumInputs];
  for (int32_t i = 0; i < cuda::kNumInputs; ++i) {
    if (places.of[i] < 0) continue;
    const DynamicPluginTensorDesc& desc = in[places.of[i]];
    copy_dims(desc.max, tensors[i]);
    tensors[i].element = element_of(desc.desc.type);
  }
  return cuda::bind_call(definition_.attributes, tensors, call, message);
}

int32_t Plugin::configurePlugin(const DynamicPluginTensorDesc* in, int32_t num_inputs,
                                const DynamicPluginTensorDesc*, int32_t num_outputs) noexcept {
  Message message;
  try {
    int32_t ranks[kMaxPlaces];
    Places places;
    cuda::Call call;
    size_t bytes = 0;
    int32_t num_multiprocessors = 0;
    if (!read_ranks(in, num_inputs, ranks, message) ||
        !place(ranks, num_inputs, num_outputs, places, message) ||
        !largest_call(in, places, call, message) ||
        !cuda::workspace_bytes(definition_.attributes, call, num_multiprocessors, bytes, message))
      return fail(message);
    places_ = places;
    definition_.num_multiprocessors = num_multiprocessors;
    return 0;
  } catch (const std::exception& fault) {
    message.set("%s", fault.what());
    return fail(message);
  }
}

int32_t Plugin::getOutputDataTypes(DataType* out, int32_t num_outputs, const DataType* in,
                                   int32_t num_inputs) const noexcept {
  Message message;
  const cuda::Presence presence = presence_of(definition_.num_outputs);
  cuda::Output order[cuda::kNumOutputs];
  const int32_t wanted = presence.outputs(order);
  if (num_outputs != wanted || num_inputs <= cuda::kValuePool) {
    message.set("types asked for %d inputs and %d outputs, the node has %d outputs", int(num_inputs),
                int(num_outputs), int(wanted));
    return fail(message);
  }
  // Without key and value, pools stand in their places, or absent inputs do and page_table comes later.
  const bool pools_first = !presence.writes && in[cuda::kKeyPool] == DataType::kINT32;
  pool_type_ = in[pools_first ? cuda::kKey : cuda::kKeyPool];
  for (int32_t i = 0; i < num_outputs; ++i) {
    // A node with pool outputs has every input before them, so their places are the operator's own.
    const cuda::Input model = model_of(order[i]);
    out[i] = model <= cuda::kValuePool ? in[model] : DataType::kFLOAT;
  }
  return 0;
}

int32_t Plugin::getOutputShapes(const nvinfer1::DimsExprs* in, int32_t num_inputs,
                                const nvinfer1::DimsExprs*, int32_t num_shape_inputs,
                                nvinfer1::DimsExprs* out, int32_t num_outputs,
                                nvinfer1::IExprBuilder&) noexcept {
  Message message;
  int32_t ranks[kMaxPlaces];
  Places places;
  if (num_shape_inputs != 0) {
    message.set("the node has %d shape inputs, must have none", int(num_shape_inputs));
    return fail(message);
  }
  if (!read_ranks(in, num_inputs, ranks, message) ||
      !place(ranks, num_inputs, num_outputs, places, message))
    return fail(message);
  cuda::Output order[cuda::kNumOutputs];
  places.presence().outputs(order);
  for (int32_t i = 0; i < num_outputs; ++i) out[i] = in[places.of[model_of(order[i])]];
  return 0;
}

bool Plugin::supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* in_out,
                                       int32_t num_inputs, int32_t num_outputs) noexcept {
  if (position < 0 || position >= num_inputs + num_outputs || num_inputs > kMaxPlaces) return false;
  const PluginTensorDesc& desc = in_out[position].desc;
  if (position < num_inputs && is_absent(desc.dims.nbDims)) return true;
  if (desc.format != nvinfer1::TensorFormat::kLINEAR) return false;
  const auto type_of = [&](cuda::Input wanted) {
    for (int32_t i = 0; i < num_inputs; ++i)
      if (!is_absent(rank_of(in_out[i])) && input_at(in_out, i) == wanted)
        return in_out[i].desc.type;
    return DataType::kBOOL;  // no input of the operator has it
  };
  if (position < num_inputs) {
    const cuda::Input input = input_at(in_out, position);
    if (input == cuda::kKey || input == cuda::kValue) return desc.type == in_out[0].desc.type;
    if (input == cuda::kKeyPool && pool_type_ != DataType::kBOOL) return desc.type == pool_type_;
    if (input == cuda::kValuePool) return desc.type == type_of(cuda::kKeyPool);
    return cuda::may_have(input, element_of(desc.type));
  }
  cuda::Output order[cuda::kNumOutputs];
  if (presence_of(definition_.num_outputs).outputs(order) != num_outputs) return false;
  const cuda::Input model = model_of(order[position - num_inputs]);
  if (model > cuda::kValuePool) return desc.type == DataType::kFLOAT;
  return desc.type == (model == cuda::kQuery ? in_out[0].desc.type : type_of(model));
}

size_t Plugin::getWorkspaceSize(const DynamicPluginTensorDesc* in, int32_t num_inputs,
                                const DynamicPluginTensorDesc*, int32_t) const noexcept {
  Message message;
  try {
    int32_t ranks[kMaxPlaces];
    Places places;
    cuda::Call call;
    size_t bytes = 0;
    int32_t num_multiprocessors = definition_.num_multiprocessors;
    if (read_ranks(in, num_inputs, ranks, message) &&
        place_inputs(ranks, num_inputs, places, message) && largest_call(in, places, call, message) &&
        cuda::workspace_bytes(definition_.attributes, call, num_multiprocessors, bytes, message))
      return bytes;
  } catch (const std::exception& fault) {
    message.set("%s", fault.what());
  }
  fail(message);
  return 0;
}

bool Plugin::bind(const PluginTensorDesc* in, const void* const* inputs, cuda::Call& call,
                  Message& message) const noexcept {
  cuda::Tensor tensors[cuda::kNumInputs];
  for (int32_t i = 0; i < cuda::kNumInputs; ++i) {
    if (places_.of[i] < 0) continue;
    const PluginTensorDesc& desc = in[places_.of[i]];
    if (desc.format != nvinfer1::TensorFormat::kLINEAR)
      return message.set("%s is not laid out linearly", cuda::kInputNames[i]);
    copy_dims(desc.dims, tensors[i]);
    tensors[i].element = element_of(desc.type);
    if (inputs) tensors[i].data = inputs[places_.of[i]];
  }
  return cuda::bind_call(definition_.attributes, tensors, call, message);
}

int32_t Plugin::onShapeChange(const PluginTensorDesc* in, int32_t num_inputs, const PluginTensorDesc*,
                              int32_t num_outputs) noexcept {
  Message message;
  try {
    int32_t ranks[kMaxPlaces];
    Places places;
    cuda::Call call;
    if (!read_ranks(in, num_inputs, ranks, message) ||
        !place(ranks, num_inputs, num_outputs, places, message))
      return fail(message);
    places_ = places;
    if (!bind(in, nullptr, call, message) ||
        !launcher_.prepare(definition_.attributes, call, definition_.num_multiprocessors, message))
      return fail(message);
    return 0;
  } catch (const std::exception& fault) {
    message.set("%s", fault.what());
    return fail(message);
  }
}

int32_t Plugin::enqueue(const PluginTensorDesc* in, const PluginTensorDesc*, const void* const* inputs,
                        void* const* outputs, void* workspace, cudaStream_t stream) noexcept {
  Message message;
  cuda::Call call;
  if (places_.num_inputs == 0) {
    message.set("enqueue before onShapeChange");
    return fail(message);
  }
  if (!bind(in, inputs, call, message)) return fail(message);
  if (phase_ == nvinfer1::TensorRTPhase::kBUILD && !attached_) return 0;
  cuda::Output order[cuda::kNumOutputs];
  const int32_t num_outputs = call.presence.outputs(order);
  for (int32_t i = 0; i < num_outputs; ++i) call.outputs[order[i]] = outputs[i];
  if (!launcher_.launch(definition_.attributes, call, workspace,
                        reinterpret_cast<cuda::Stream>(stream), message))
    return fail(message);
  return 0;
}

}  // namespace edgekv::tensorrt
