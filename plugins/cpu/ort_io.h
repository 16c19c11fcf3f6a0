// Attributes and tensors of a node, read through ONNX Runtime's C interface.
//
// Owns: the names and order of inputs and outputs, how a fault becomes a status. Guarantees: a tensor
// has the dtype and shape asked for; an attribute of the wrong type is refused, never taken for absent.
// Knows nothing of attention.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "ort_api.h"
#include "paged_attention.h"

namespace edgekv {

enum Input {
  kQuery, kKey, kValue, kKeyPool, kValuePool, kPageTable, kQueryStarts, kSlotMapping, kKvLimits,
  kQueryIndices, kSinks, kKeyScales, kValueScales, kPageMass, kMassWeights, kNumInputs
};
// page_mass_out is the last: it takes the place of key_scales_out where pools have no scales.
enum Output {
  kOutput, kKeyPoolOut, kValuePoolOut, kKeyScalesOut, kValueScalesOut, kPageMassOut, kNumOutputs
};

inline constexpr const char* kInputNames[kNumInputs] = {
    "query", "key", "value", "key_pool", "value_pool", "page_table", "query_starts", "slot_mapping",
    "kv_limits", "query_indices", "sinks", "key_scales", "value_scales", "page_mass", "mass_weights"};

// Inside the binding a fault travels as this exception, at the edge it becomes a status.
struct Fault {
  int code;
  std::string message;
};

[[noreturn]] inline void refuse(const std::string& message) { throw Fault{ort::kInvalidArgument, message}; }

// A status that is not null becomes a Fault. The runtime's own text is not worth passing on: these
// calls fail only when the runtime is out of memory or the graph lies about a tensor.
inline void check(const ort::Api& api, OrtStatus* status, const char* what) {
  if (!status) return;
  api.release_status(status);
  throw Fault{ort::kFail, std::string("the runtime refused ") + what};
}

template <class Body>
OrtStatus* guarded(const ort::Api& api, Body body) {
  try {
    body();
    return nullptr;
  } catch (const Fault& fault) {
    return api.create_status(fault.code, ("PagedAttention: " + fault.message).c_str());
  } catch (const std::bad_alloc&) {
    return api.create_status(ort::kFail, "PagedAttention: out of memory");
  } catch (...) {
    return api.create_status(ort::kFail, "PagedAttention: unexpected fault");
  }
}

inline int element_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32: return ort::kFloat;
    case Dtype::kFloat16: return ort::kFloat16;
    case Dtype::kBfloat16: return ort::kBfloat16;
    default: return ort::kInt8;
  }
}

inline int64_t element_bytes(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? 4 : dtype == Dtype::kInt8 ? 1 : 2;
}

class Attributes {
 public:
  Attributes(const ort::Api& api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  int64_t integer(const char* name) const {
    int64_t value = 0;
    if (!found(api_.attribute_int(info_, name, &value))) missing(name, "int");
    return value;
  }

  float real(const char* name) const {
    float value = 0.0f;
    if (!found(api_.attribute_float(info_, name, &value))) missing(name, "float");
    return value;
  }

  int64_t integer(const char* name, int64_t otherwise) const {
    int64_t value = otherwise;
    if (found(api_.attribute_int(info_, name, &value))) return value;
    absent(name, "int");
    return otherwise;
  }

  float real(const char* name, float otherwise) const {
    float value = otherwise;
    if (found(api_.attribute_float(info_, name, &value))) return value;
    absent(name, "float");
    return otherwise;
  }

  std::vector<float> reals(const char* name) const {
    return list<float>(name, api_.attribute_floats, "floats");
  }

  std::vector<int64_t> integers(const char* name) const {
    return list<int64_t>(name, api_.attribute_ints, "ints");
  }

 private:
  bool found(OrtStatus* status) const {
    if (status) api_.release_status(status);
    return status == nullptr;
  }

  template <class T, class Get>
  std::vector<T> list(const char* name, Get get, const char* type) const {
    size_t count = 0;
    if (!found(get(info_, name, nullptr, &count)) || count == 0) {
      absent(name, type);
      return {};
    }
    std::vector<T> values(count);
    check(api_, get(info_, name, values.data(), &count), name);
    return values;
  }

  [[noreturn]] static void missing(const char* name, const char* type) {
    refuse(std::string("attribute ") + name + " (" + type + ") is missing");
  }

  // The runtime answers "not there" for an attribute of another type: only when no getter finds it
  // does the default hold.
  void absent(const char* name, const char* type) const {
    int64_t one_int = 0;
    float one_float = 0.0f;
    size_t num_ints = 0, num_floats = 0;
    const bool any = found(api_.attribute_int(info_, name, &one_int)) ||
                     found(api_.attribute_float(info_, name, &one_float)) ||
                     (found(api_.attribute_ints(info_, name, nullptr, &num_ints)) && num_ints > 0) ||
                     (found(api_.attribute_floats(info_, name, nullptr, &num_floats)) && num_floats > 0);
    if (any) refuse(std::string("attribute ") + name + " must be of type " + type);
  }

  const ort::Api& api_;
  const OrtKernelInfo* info_;
};

inline int32_t narrow(int64_t value, const char* name) {
  if (value < INT32_MIN || value > INT32_MAX)
    refuse(std::string(name) + " = " + std::to_string(value) + " does not fit 32 bits");
  return int32_t(value);
}

struct Tensor {
  void* data = nullptr;  // null = absent
  int64_t dims[4] = {};
};

inline std::string shape_text(const int64_t* dims, size_t rank) {
  std::string text = "(";
  for (size_t i = 0; i < rank; ++i)
    text += (i ? ", " : "") + (dims[i] < 0 ? std::string("any") : std::to_string(dims[i]));
  return text + ")";
}

class Tensors {
 public:
  Tensors(const ort::Api& api, OrtKernelContext* context) : api_(api), context_(context) {
    check(api_, api_.input_count(context_, &num_inputs_), "the input count");
    check(api_, api_.output_count(context_, &num_outputs_), "the output count");
  }

  // The tensor with this element type and these dimensions (-1 = any), absent when optional and not
  // given.
  Tensor read(Input index, int type, std::initializer_list<int64_t> wanted, bool optional = false) {
    const OrtValue* value = nullptr;
    if (size_t(index) < num_inputs_)
      check(api_, api_.input(context_, index, &value), kInputNames[index]);
    if (!value) {
      if (!optional) refuse(std::string("input ") + kInputNames[index] + " is missing");
      return {};
    }
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api_, api_.tensor_info(value, &raw), kInputNames[index]);
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> info(
        raw, api_.release_tensor_info);
    int found_type = 0;
    size_t rank = 0;
    check(api_, api_.element_type(raw, &found_type), kInputNames[index]);
    check(api_, api_.rank(raw, &rank), kInputNames[index]);
    std::vector<int64_t> dims(rank);
    check(api_, api_.dims(raw, dims.data(), rank), kInputNames[index]);
    bool fits = rank == wanted.size();
    for (size_t i = 0; fits && i < rank; ++i)
      fits = wanted.begin()[i] < 0 || wanted.begin()[i] == dims[i];
    if (!fits)
      refuse(std::string(kInputNames[index]) + " has shape " + shape_text(dims.data(), rank) +
             ", must be " + shape_text(wanted.begin(), wanted.size()));
    if (found_type != type)
      refuse(std::string(kInputNames[index]) + " has element type " + std::to_string(found_type) +
             ", must be " + std::to_string(type));
    Tensor tensor;
    std::copy(dims.begin(), dims.end(), tensor.dims);
    check(api_, api_.tensor_data(const_cast<OrtValue*>(value), &tensor.data), kInputNames[index]);
    if (!tensor.data) tensor.data = empty_;  // an empty tensor is present all the same
    return tensor;
  }

  void* write(Output index, std::initializer_list<int64_t> dims, const char* name) {
    OrtValue* value = nullptr;
    if (size_t(index) < num_outputs_)
      check(api_, api_.output(context_, index, dims.begin(), dims.size(), &value), name);
    if (!value) refuse(std::string("output ") + name + " is missing");
    void* data = nullptr;
    check(api_, api_.tensor_data(value, &data), name);
    return data;
  }

  size_t num_outputs() const { return num_outputs_; }

 private:
  const ort::Api& api_;
  OrtKernelContext* context_;
  size_t num_inputs_ = 0, num_outputs_ = 0;
  int64_t empty_[1] = {};
};

}  // namespace edgekv
