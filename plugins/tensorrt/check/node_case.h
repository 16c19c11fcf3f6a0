// A node of the operator and one call of it, as TensorRT would describe them.
//
// Owns: fields, descriptions of inputs and outputs, and host memory that stands for device memory.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "../../cuda/node.h"

namespace edgekv::check {

using nvinfer1::DataType;

struct NodeCase {
  bool writes = true, sinks = false, mass = false;
  bool positional = true;  // absent inputs are handed over as null tensors, else left out
  DataType query = DataType::kHALF, pool = DataType::kHALF;
  int32_t heads = 6, kv_heads = 2, dim = 64, pairs = 8, axes = 1, window = 0;
  float softcap = 0.0f;
  int32_t tokens = 3, rows = 2, columns = 5, pages = 7, page_size = 16;

  bool quantized() const { return pool == DataType::kINT8; }
  int32_t num_outputs() const {
    return 1 + (writes ? 2 : 0) + (writes && quantized() ? 2 : 0) + (mass ? 1 : 0);
  }
  std::string name() const;
};

// Every combination of inputs, dtypes and ways to leave inputs out.
std::vector<NodeCase> all_cases();

// The node's attributes; fields point into it, so it is not copied.
class Fields {
 public:
  explicit Fields(const NodeCase& node);
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  nvinfer1::PluginFieldCollection collection() const { return {int32_t(fields.size()), fields.data()}; }
  nvinfer1::PluginField& operator[](const char* name);
  void remove(const char* name);

  std::vector<nvinfer1::PluginField> fields;
  int32_t schema_version = 2, num_outputs, heads, kv_heads, dim, window, interleaved = 0;
  float scale = 0.125f, softcap;
  std::vector<float> inv_freq;
  std::vector<int32_t> freq_axes;
};

nvinfer1::Dims dims_of(std::initializer_list<int64_t> values);

// Descriptions of one call. `places[i]`: which operator input stands there, -1 = a null tensor.
struct Described {
  explicit Described(const NodeCase& node);

  std::vector<int32_t> places;
  std::vector<nvinfer1::PluginTensorDesc> in, out;
  std::vector<cuda::Output> outputs;  // which output stands where

  int32_t num_inputs() const { return int32_t(in.size()); }
  int32_t num_outputs() const { return int32_t(out.size()); }
  int32_t place(cuda::Input input) const;
  std::vector<nvinfer1::DynamicPluginTensorDesc> dynamic_in() const;
  std::vector<nvinfer1::DynamicPluginTensorDesc> dynamic_out() const;
};

// Memory of a described call, each tensor at an address of its own, aligned as CUDA does.
class Memory {
 public:
  Memory(const Described& described, bool in_place);

  std::vector<const void*> inputs;
  std::vector<void*> outputs;

 private:
  void* allocate(const nvinfer1::PluginTensorDesc& desc);
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::vector<std::unique_ptr<void, Free>> blocks_;
};

}  // namespace edgekv::check
