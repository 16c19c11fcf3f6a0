// The part of ONNX Runtime's C interface that a custom-operator library needs, declared here so that
// building needs no ONNX Runtime headers.
//
// Owns: positions in the function table, the layout of OrtCustomOp, enum values. The table only ever
// grows at its end, so the positions hold for every runtime that knows kApiVersion; the positions were
// checked against declarations of API 17 to 28, and tests run on the oldest and newest runtime allowed.
// Knows nothing of the operator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

extern "C" {
struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtApi;

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, OrtKernelContext*);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};
}

namespace edgekv::ort {

constexpr uint32_t kApiVersion = 18;

enum ErrorCode { kFail = 1, kInvalidArgument = 2, kInvalidGraph = 10 };
enum ElementType { kFloat = 1, kInt8 = 3, kInt32 = 6, kFloat16 = 10, kBfloat16 = 16 };
enum Characteristic { kRequired = 0, kOptional = 1 };

// The functions used, each at its position in OrtApi.
struct Api {
  OrtStatus* (*create_status)(int code, const char* message);
  void (*release_status)(OrtStatus*);
  OrtStatus* (*create_domain)(const char* name, OrtCustomOpDomain**);
  OrtStatus* (*domain_add)(OrtCustomOpDomain*, const OrtCustomOp*);
  OrtStatus* (*add_domain)(OrtSessionOptions*, OrtCustomOpDomain*);
  void (*release_domain)(OrtCustomOpDomain*);
  OrtStatus* (*attribute_float)(const OrtKernelInfo*, const char* name, float*);
  OrtStatus* (*attribute_int)(const OrtKernelInfo*, const char* name, int64_t*);
  OrtStatus* (*attribute_floats)(const OrtKernelInfo*, const char* name, float*, size_t* count);
  OrtStatus* (*attribute_ints)(const OrtKernelInfo*, const char* name, int64_t*, size_t* count);
  OrtStatus* (*input_count)(const OrtKernelContext*, size_t*);
  OrtStatus* (*output_count)(const OrtKernelContext*, size_t*);
  OrtStatus* (*input)(const OrtKernelContext*, size_t index, const OrtValue**);
  OrtStatus* (*output)(OrtKernelContext*, size_t index, const int64_t* dims, size_t rank, OrtValue**);
  OrtStatus* (*tensor_data)(OrtValue*, void**);
  OrtStatus* (*tensor_info)(const OrtValue*, OrtTensorTypeAndShapeInfo**);
  void (*release_tensor_info)(OrtTensorTypeAndShapeInfo*);
  OrtStatus* (*element_type)(const OrtTensorTypeAndShapeInfo*, int*);
  OrtStatus* (*rank)(const OrtTensorTypeAndShapeInfo*, size_t*);
  OrtStatus* (*dims)(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t rank);
  OrtStatus* (*parallel_for)(const OrtKernelContext*, void (*task)(void*, size_t), size_t total,
                             size_t num_batch, void* data);
  OrtStatus* (*gpu_stream)(const OrtKernelContext*, void**);
};

inline Api load_api(const OrtApi* table) {
  void* const* slots = reinterpret_cast<void* const*>(table);
  Api api;
  const auto set = [slots](auto& function, int slot) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(slots[slot]);
  };
  set(api.create_status, 0);
  set(api.create_domain, 26);
  set(api.domain_add, 27);
  set(api.add_domain, 28);
  set(api.tensor_data, 51);
  set(api.element_type, 60);
  set(api.rank, 61);
  set(api.dims, 62);
  set(api.tensor_info, 65);
  set(api.attribute_float, 85);
  set(api.attribute_int, 86);
  set(api.input_count, 88);
  set(api.output_count, 89);
  set(api.input, 90);
  set(api.output, 91);
  set(api.release_status, 93);
  set(api.release_tensor_info, 99);
  set(api.release_domain, 101);
  set(api.attribute_floats, 162);
  set(api.attribute_ints, 163);
  set(api.gpu_stream, 193);
  set(api.parallel_for, 274);
  return api;
}

}  // namespace edgekv::ort
