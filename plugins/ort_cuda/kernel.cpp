// See kernel.h.

#include "kernel.h"

#include <memory>

namespace edgekv::cuda {
namespace {

Attributes read_attributes(const ::edgekv::Attributes& node) {
  const int64_t version = node.integer("schema_version");
  if (version != kOperatorVersion)
    refuse("schema_version = " + std::to_string(version) + ", this library implements " +
           kOperatorVersionText);
  Attributes a;
  a.num_heads = ::edgekv::narrow(node.integer("num_heads"), "num_heads");
  a.num_kv_heads = ::edgekv::narrow(node.integer("num_kv_heads"), "num_kv_heads");
  a.head_dim = ::edgekv::narrow(node.integer("head_dim"), "head_dim");
  a.scale = node.real("scale");
  a.softcap = node.real("softcap", 0.0f);
  a.window = ::edgekv::narrow(node.integer("window", 0), "window");
  const int64_t interleaved = node.integer("rotary_interleaved", 0);
  if (interleaved != 0 && interleaved != 1)
    refuse("rotary_interleaved = " + std::to_string(interleaved) + ", must be 0 or 1");
  a.rotary_interleaved = interleaved == 1;
  a.inv_freq = node.reals("inv_freq");
  for (const int64_t axis : node.integers("freq_axes"))
    a.freq_axes.push_back(::edgekv::narrow(axis, "freq_axes"));
  if (std::string error = complete_attributes(a); !error.empty()) refuse(error);
  return a;
}

Element element_of(int type) {
  switch (type) {
    case ort::kFloat: return Element::kFloat32;
    case ort::kFloat16: return Element::kFloat16;
    case ort::kBfloat16: return Element::kBfloat16;
    case ort::kInt8: return Element::kInt8;
    case ort::kInt32: return Element::kInt32;
    default: return Element::kOther;
  }
}

// The number an output has on an ONNX node: page_mass_out is the last, see docs/paged_attention.md.
size_t position_of(Output output, const Presence& presence) {
  if (output == kPageMassOut && !presence.quantized) return kKeyScalesOut;
  return size_t(output);
}

[[noreturn]] void fail(const Message& message) { throw Fault{ort::kFail, message.text()}; }

}  // namespace

OrtKernel::OrtKernel(const ort::Api& api, const OrtKernelInfo* info, Dtype, Dtype)
    : api_(api), attributes_(read_attributes(::edgekv::Attributes(api, info))) {}

void OrtKernel::read_inputs(OrtKernelContext* context, Tensor (&tensors)[kNumInputs]) const {
  size_t count = 0;
  check(api_, api_.input_count(context, &count), "the input count");
  for (size_t i = 0; i < count && i < size_t{kNumInputs}; ++i) {
    const OrtValue* value = nullptr;
    check(api_, api_.input(context, i, &value), kInputNames[i]);
    if (!value) continue;
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api_, api_.tensor_info(value, &raw), kInputNames[i]);
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> info(
        raw, api_.release_tensor_info);
    int type = 0;
    size_t rank = 0;
    int64_t dims[4];
    check(api_, api_.element_type(raw, &type), kInputNames[i]);
    check(api_, api_.rank(raw, &rank), kInputNames[i]);
    if (rank != size_t(kInputRanks[i]))
      refuse(std::string(kInputNames[i]) + " has " + std::to_string(rank) + " dimensions, must have " +
             std::to_string(kInputRanks[i]));
    check(api_, api_.dims(raw, dims, rank), kInputNames[i]);
    tensors[i].rank = int32_t(rank);
    std::copy(dims, dims + rank, tensors[i].dims);
    tensors[i].element = element_of(type);
    void* data = nullptr;
    check(api_, api_.tensor_data(const_cast<OrtValue*>(value), &data), kInputNames[i]);
    tensors[i].data = data;
  }
}

void OrtKernel::bind_outputs(OrtKernelContext* context, const Tensor (&tensors)[kNumInputs],
                             Call& call) const {
  Output order[kNumOutputs];
  const int32_t num_outputs = call.presence.outputs(order);
  size_t count = 0;
  check(api_, api_.output_count(context, &count), "the output count");
  const size_t wanted = position_of(order[num_outputs - 1], call.presence) + 1;
  if (count != wanted)
    refuse("the node has " + std::to_string(count) + " outputs, must have " + std::to_string(wanted));
  for (int32_t i = 0; i < num_outputs; ++i) {
    const Tensor& model = tensors[in_place(attributes_, call, order[i]).input];
    OrtValue* value = nullptr;
    check(api_,
          api_.output(context, position_of(order[i], call.presence), model.dims, size_t(model.rank),
                      &value),
          "an output");
    if (!value) refuse("output " + std::to_string(order[i]) + " is missing");
    check(api_, api_.tensor_data(value, &call.outputs[order[i]]), "an output");
  }
}

void OrtKernel::compute(OrtKernelContext* context) {
  Tensor tensors[kNumInputs];
  Call call;
  Message message;
  read_inputs(context, tensors);
  if (!bind_call(attributes_, tensors, call, message)) refuse(message.text());
  bind_outputs(context, tensors, call);
  void* handle = nullptr;
  check(api_, api_.gpu_stream(context, &handle), "the stream");
  const auto stream = static_cast<Stream>(handle);
  const Driver* driver = open_driver(message);
  if (!driver) fail(message);
  const std::lock_guard<std::mutex> lock(mutex_);
  Context device_context = nullptr;
  if (!launcher_.prepare(attributes_, call, 0, message) ||
      !succeeded(*driver, driver->current_context(&device_context), "cuCtxGetCurrent", message))
    fail(message);
  if (!workspace_ || !workspace_->is_of(device_context, stream))
    workspace_ = StreamWorkspace::of(*driver, device_context, stream);
  void* memory = nullptr;
  if (!workspace_->reserve(launcher_.call_bytes(attributes_, call), memory, message) ||
      !launcher_.launch(attributes_, call, memory, stream, message))
    fail(message);
}

}  // namespace edgekv::cuda
