// What a node of the graph says, and what one call of it is, for kernels on a GPU.
//
// Owns: the inputs' and outputs' order and names, attributes, and Call: sizes and device addresses.
// Guarantees: bind_call() checks every shape and dtype of docs/paged_attention.md and allocates
// nothing. The numbers inside device memory are not looked at; whoever fills the tables answers for
// them. Knows no runtime and no kernel. Symbols as in docs/paged_attention.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "message.h"

namespace edgekv::cuda {

constexpr int64_t kOperatorVersion = 2;
constexpr const char* kOperatorVersionText = "2";
constexpr const char* kOperatorDomain = "edgekv";
constexpr const char* kOperatorName = "PagedAttention";

enum Input : int32_t {
  kQuery, kKey, kValue, kKeyPool, kValuePool, kPageTable, kQueryStarts, kSlotMapping, kKvLimits,
  kQueryIndices, kSinks, kKeyScales, kValueScales, kPageMass, kMassWeights, kNumInputs
};

enum Output : int32_t { kOutput, kKeyPoolOut, kValuePoolOut, kKeyScalesOut, kValueScalesOut,
                        kPageMassOut, kNumOutputs };

inline constexpr const char* kInputNames[kNumInputs] = {
    "query", "key", "value", "key_pool", "value_pool", "page_table", "query_starts", "slot_mapping",
    "kv_limits", "query_indices", "sinks", "key_scales", "value_scales", "page_mass", "mass_weights"};

inline constexpr int32_t kInputRanks[kNumInputs] = {2, 2, 2, 4, 4, 3, 1, 1, 1, 1, 1, 3, 3, 1, 1};

enum class Element : int32_t { kFloat32, kFloat16, kBfloat16, kInt8, kInt32, kOther };

const char* element_name(Element element);
int64_t element_bytes(Element element);

// Whether an input may have this dtype, whatever the other inputs are.
bool may_have(Input input, Element element);

struct Attributes {
  int32_t num_heads = 0;     // Hq
  int32_t num_kv_heads = 0;  // Hk
  int32_t head_dim = 0;      // D
  float scale = 0.0f;
  float softcap = 0.0f;  // 0 = none
  int32_t window = 0;    // 0 = none
  bool rotary_interleaved = false;
  std::vector<float> inv_freq;     // (rotary_dim / 2), radians per unit of shift
  std::vector<int32_t> freq_axes;  // one per frequency
};

// An empty string when all is well. An empty `freq_axes` becomes axis 0 for every frequency.
std::string complete_attributes(Attributes& attributes);

// A tensor as a runtime hands it over. rank 0 = the input is absent.
struct Tensor {
  int32_t rank = 0;
  int64_t dims[4] = {};
  Element element = Element::kOther;
  const void* data = nullptr;
};

// Inputs that stand together or not at all. Which outputs a node has follows from them.
struct Presence {
  bool writes = false;     // key, value
  bool sinks = false;
  bool quantized = false;  // key_scales, value_scales
  bool mass = false;       // page_mass, mass_weights

  // The outputs of a node with these inputs, in order; returns how many.
  int32_t outputs(Output (&order)[kNumOutputs]) const;
};

struct Call {
  Presence presence;
  Element query_element = Element::kOther;
  Element pool_element = Element::kOther;
  int32_t num_tokens = 0;   // T
  int32_t num_rows = 0;     // B
  int32_t num_columns = 0;  // M
  int32_t num_axes = 0;     // A
  int32_t num_pages = 0;    // P
  int32_t page_size = 0;    // S
  const void* inputs[kNumInputs] = {};  // device memory, null = absent or empty
  void* outputs[kNumOutputs] = {};      // device memory, null = the node has no such output
};

// Checks the inputs of a call and fills `call` but for its outputs.
bool bind_call(const Attributes& attributes, const Tensor (&inputs)[kNumInputs], Call& call,
               Message& message);

// Bytes of the input that this output starts as a copy of, and that input; kOutput has none.
struct InPlace {
  Input input;
  int64_t bytes;
};
InPlace in_place(const Attributes& attributes, const Call& call, Output output);

}  // namespace edgekv::cuda
