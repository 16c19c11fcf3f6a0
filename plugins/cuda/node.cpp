// See node.h.

#include "node.h"

#include <cstring>
#include <initializer_list>

#include "../cpu/validate.h"

namespace edgekv::cuda {
namespace {

constexpr double kTwoPi = 6.283185307179586476925;

// "(4, any, 16)", in a buffer of the caller's.
const char* shape_text(const int64_t* dims, int32_t rank, char (&text)[112]) {
  size_t used = 0;
  const auto add = [&](const char* part) {
    const size_t length = std::strlen(part);
    if (used + length + 1 > sizeof(text)) return;
    std::memcpy(text + used, part, length + 1);
    used += length;
  };
  add("(");
  for (int32_t i = 0; i < rank; ++i) {
    char number[24];
    std::snprintf(number, sizeof(number), dims[i] < 0 ? "any" : "%lld",
                  static_cast<long long>(dims[i]));
    if (i) add(", ");
    add(number);
  }
  add(")");
  return text;
}

bool has_shape(Input index, const Tensor& tensor, std::initializer_list<int64_t> wanted,
               Message& message) {
  if (tensor.rank == 0) return message.set("input %s is missing", kInputNames[index]);
  bool fits = tensor.rank == int32_t(wanted.size());
  for (int32_t i = 0; fits && i < tensor.rank; ++i)
    fits = wanted.begin()[i] < 0 || wanted.begin()[i] == tensor.dims[i];
  if (fits) return true;
  char found[112], must[112];
  return message.set("%s has shape %s, must be %s", kInputNames[index],
                     shape_text(tensor.dims, tensor.rank < 4 ? tensor.rank : 4, found),
                     shape_text(wanted.begin(), int32_t(wanted.size()), must));
}

bool has_element(Input index, const Tensor& tensor, Element wanted, Message& message) {
  if (tensor.element == wanted) return true;
  return message.set("%s is %s, must be %s", kInputNames[index], element_name(tensor.element),
                     element_name(wanted));
}

bool narrow(int64_t value, const char* name, int32_t& result, Message& message) {
  if (value < 0 || value > INT32_MAX)
    return message.set("%s = %lld does not fit 32 bits", name, static_cast<long long>(value));
  result = int32_t(value);
  return true;
}

bool together(const Tensor (&inputs)[kNumInputs], Input first, Input second, bool& present,
              Message& message) {
  present = inputs[first].rank > 0;
  if (present == (inputs[second].rank > 0)) return true;
  return message.set("%s and %s must be given together or not at all", kInputNames[first],
                     kInputNames[second]);
}

bool read_presence(const Tensor (&inputs)[kNumInputs], Presence& presence, Message& message) {
  presence.sinks = inputs[kSinks].rank > 0;
  return together(inputs, kKey, kValue, presence.writes, message) &&
         together(inputs, kKeyScales, kValueScales, presence.quantized, message) &&
         together(inputs, kPageMass, kMassWeights, presence.mass, message);
}

bool check_elements(const Tensor (&inputs)[kNumInputs], const Presence& presence, Message& message) {
  for (int32_t i = 0; i < kNumInputs; ++i)
    if (inputs[i].rank > 0 && !may_have(Input(i), inputs[i].element))
      return message.set("%s cannot be %s", kInputNames[i], element_name(inputs[i].element));
  const Element query = inputs[kQuery].element, pool = inputs[kKeyPool].element;
  if (presence.writes && (!has_element(kKey, inputs[kKey], query, message) ||
                          !has_element(kValue, inputs[kValue], query, message)))
    return false;
  if (!has_element(kValuePool, inputs[kValuePool], pool, message)) return false;
  if (presence.quantized == (pool == Element::kInt8)) return true;
  return message.set("key_scales and value_scales go with int8 pools, and with no others");
}

bool check_axes(const Attributes& attributes, int32_t num_axes, Message& message) {
  for (size_t i = 0; i < attributes.freq_axes.size(); ++i)
    if (attributes.freq_axes[i] >= num_axes)
      return message.set("freq_axes[%zu] = %d, page_table has %d rope axes", i,
                         attributes.freq_axes[i], num_axes);
  return true;
}

// Shapes of what is there, in terms of the sizes that the call has.
bool check_shapes(const Attributes& a, const Tensor (&in)[kNumInputs], const Call& call,
                  Message& message) {
  const int64_t tokens = call.num_tokens, rows = call.num_rows, pages = call.num_pages;
  const int64_t size = call.page_size, heads = a.num_heads, kv_heads = a.num_kv_heads;
  const int64_t kv_width = kv_heads * a.head_dim;
  const Presence& p = call.presence;
  return (!p.writes || (has_shape(kKey, in[kKey], {tokens, kv_width}, message) &&
                        has_shape(kValue, in[kValue], {tokens, kv_width}, message))) &&
         has_shape(kValuePool, in[kValuePool], {pages, kv_heads, size, a.head_dim}, message) &&
         has_shape(kQueryStarts, in[kQueryStarts], {rows + 1}, message) &&
         has_shape(kSlotMapping, in[kSlotMapping], {tokens}, message) &&
         has_shape(kKvLimits, in[kKvLimits], {tokens}, message) &&
         has_shape(kQueryIndices, in[kQueryIndices], {tokens}, message) &&
         (!p.sinks || has_shape(kSinks, in[kSinks], {heads}, message)) &&
         (!p.quantized ||
          (has_shape(kKeyScales, in[kKeyScales], {pages, kv_heads, size}, message) &&
           has_shape(kValueScales, in[kValueScales], {pages, kv_heads, size}, message))) &&
         (!p.mass || (has_shape(kPageMass, in[kPageMass], {pages}, message) &&
                      has_shape(kMassWeights, in[kMassWeights], {rows}, message)));
}

}  // namespace

const char* element_name(Element element) {
  constexpr const char* kNames[] = {"float32", "float16", "bfloat16", "int8", "int32", "another dtype"};
  return kNames[int32_t(element)];
}

int64_t element_bytes(Element element) {
  constexpr int64_t kBytes[] = {4, 2, 2, 1, 4, 0};
  return kBytes[int32_t(element)];
}

bool may_have(Input input, Element element) {
  const bool real = element == Element::kFloat32 || element == Element::kFloat16 ||
                    element == Element::kBfloat16;
  if (input <= kValue) return real;
  if (input <= kValuePool) return real || element == Element::kInt8;
  return element == (input >= kSinks ? Element::kFloat32 : Element::kInt32);
}

std::string complete_attributes(Attributes& attributes) {
  if (attributes.freq_axes.empty()) attributes.freq_axes.assign(attributes.inv_freq.size(), 0);
  if (attributes.freq_axes.size() != attributes.inv_freq.size())
    return "freq_axes has " + std::to_string(attributes.freq_axes.size()) +
           " values, inv_freq has " + std::to_string(attributes.inv_freq.size());
  std::vector<double> turns;
  for (const float frequency : attributes.inv_freq) turns.push_back(double{frequency} / kTwoPi);
  Geometry geometry{};
  geometry.num_heads = attributes.num_heads;
  geometry.num_kv_heads = attributes.num_kv_heads;
  geometry.head_dim = attributes.head_dim;
  geometry.rotary_pairs = int32_t(turns.size());
  geometry.rotary_interleaved = attributes.rotary_interleaved;
  geometry.scale = attributes.scale;
  geometry.softcap = attributes.softcap;
  geometry.window = attributes.window;
  geometry.turns_per_position = turns.data();
  geometry.freq_axes = attributes.freq_axes.data();
  return validate_geometry(geometry);
}

int32_t Presence::outputs(Output (&order)[kNumOutputs]) const {
  int32_t count = 0;
  order[count++] = kOutput;
  if (writes) order[count++] = kKeyPoolOut, order[count++] = kValuePoolOut;
  if (writes && quantized) order[count++] = kKeyScalesOut, order[count++] = kValueScalesOut;
  if (mass) order[count++] = kPageMassOut;
  return count;
}

bool bind_call(const Attributes& attributes, const Tensor (&inputs)[kNumInputs], Call& call,
               Message& message) {
  const int64_t heads = attributes.num_heads, kv_heads = attributes.num_kv_heads;
  const int64_t dim = attributes.head_dim;
  if (!read_presence(inputs, call.presence, message) ||
      !has_shape(kQuery, inputs[kQuery], {-1, heads * dim}, message) ||
      !has_shape(kKeyPool, inputs[kKeyPool], {-1, kv_heads, -1, dim}, message) ||
      !has_shape(kPageTable, inputs[kPageTable], {-1, -1, -1}, message) ||
      !check_elements(inputs, call.presence, message))
    return false;
  const int64_t* pool = inputs[kKeyPool].dims;
  const int64_t* table = inputs[kPageTable].dims;
  if (pool[2] < 1) return message.set("key_pool has pages of 0 slots");
  if (table[2] < 2)
    return message.set("page_table has %lld numbers per entry, must be 2 or more",
                       static_cast<long long>(table[2]));
  int32_t slots = 0;
  if (!narrow(inputs[kQuery].dims[0], "the number of tokens", call.num_tokens, message) ||
      !narrow(table[0], "the number of rows", call.num_rows, message) ||
      !narrow(table[1], "the width of page_table", call.num_columns, message) ||
      !narrow(table[2] - 2, "the number of rope axes", call.num_axes, message) ||
      !narrow(pool[0], "the number of pages", call.num_pages, message) ||
      !narrow(pool[2], "the page size", call.page_size, message) ||
      !narrow(pool[0] * pool[2], "the number of slots", slots, message) ||
      !check_axes(attributes, call.num_axes, message) ||
      !check_shapes(attributes, inputs, call, message))
    return false;
  call.query_element = inputs[kQuery].element;
  call.pool_element = inputs[kKeyPool].element;
  for (int32_t i = 0; i < kNumInputs; ++i) call.inputs[i] = inputs[i].data;
  return true;
}

InPlace in_place(const Attributes& attributes, const Call& call, Output output) {
  const int64_t tokens = int64_t{call.num_pages} * attributes.num_kv_heads * call.page_size;
  const int64_t pool_bytes = tokens * attributes.head_dim * element_bytes(call.pool_element);
  switch (output) {
    case kKeyPoolOut: return {kKeyPool, pool_bytes};
    case kValuePoolOut: return {kValuePool, pool_bytes};
    case kKeyScalesOut: return {kKeyScales, tokens * int64_t(sizeof(float))};
    case kValueScalesOut: return {kValueScales, tokens * int64_t(sizeof(float))};
    case kPageMassOut: return {kPageMass, call.num_pages * int64_t(sizeof(float))};
    default: return {kQuery, 0};
  }
}

}  // namespace edgekv::cuda
