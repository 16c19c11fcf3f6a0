// The attributes of a node as TensorRT's plugin fields, and as bytes inside an engine.
//
// Owns: the list of fields, how each is read, the layout of the bytes. Guarantees: a field of another
// type, an unknown field, a missing one and bytes of another version are refused with one line.
// Knows nothing of tensors.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../cuda/node.h"

namespace edgekv::tensorrt {

// What a plugin is made of. The number of outputs is not an attribute of the operator: TensorRT asks for
// it before it shows the plugin its inputs, so the node has to say it.
struct Definition {
  cuda::Attributes attributes;
  int32_t num_outputs = 0;
  // Of the device the engine was built on: a call is cut so that it fits the workspace sized there. 0 in
  // a definition that comes from a node.
  int32_t num_multiprocessors = 0;
};

// The fields that the ONNX parser copies from the node's attributes.
const nvinfer1::PluginFieldCollection& field_names();

// The name of the one field that an engine keeps: the definition as bytes.
constexpr const char* kBytesField = "edgekv_definition";

// Each returns an empty string, or what is wrong.
std::string read_fields(const nvinfer1::PluginFieldCollection& fields, Definition& definition);
std::string read_bytes(const void* bytes, size_t size, Definition& definition);

std::vector<uint8_t> write_bytes(const Definition& definition);

// One line for TensorRT's engine inspector.
std::string describe(const Definition& definition);

}  // namespace edgekv::tensorrt
