// See fields.h.

#include "fields.h"

#include <cstring>
#include <limits>

namespace edgekv::tensorrt {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;

constexpr uint32_t kMagic = 0x56454b45;  // "EKEV"
constexpr uint32_t kLayout = 1;

// Attributes of the node and what they are; lists may be left out, and what has a default.
struct Known {
  const char* name;
  PluginFieldType type;
  bool list, required;
};
constexpr Known kKnown[] = {
    {"schema_version", PluginFieldType::kINT32, false, true},
    {"num_outputs", PluginFieldType::kINT32, false, true},
    {"num_heads", PluginFieldType::kINT32, false, true},
    {"num_kv_heads", PluginFieldType::kINT32, false, true},
    {"head_dim", PluginFieldType::kINT32, false, true},
    {"scale", PluginFieldType::kFLOAT32, false, true},
    {"softcap", PluginFieldType::kFLOAT32, false, false},
    {"window", PluginFieldType::kINT32, false, false},
    {"rotary_interleaved", PluginFieldType::kINT32, false, false},
    {"inv_freq", PluginFieldType::kFLOAT32, true, false},
    {"freq_axes", PluginFieldType::kINT32, true, false},
};

std::string check_field(const PluginField& field) {
  if (!field.name) return "a field has no name";
  for (const Known& known : kKnown) {
    if (std::strcmp(field.name, known.name) != 0) continue;
    const bool wide = known.type == PluginFieldType::kINT32 && field.type == PluginFieldType::kINT64;
    if (field.type != known.type && !wide)
      return std::string("attribute ") + known.name + " must be " +
             (known.type == PluginFieldType::kINT32 ? "int" : "float");
    if (field.length < 0 || (field.length > 0 && !field.data))
      return std::string("attribute ") + known.name + " has no data";
    if (!known.list && field.length != 1)
      return std::string("attribute ") + known.name + " has " + std::to_string(field.length) +
             " values, must have 1";
    return {};
  }
  return std::string("there is no attribute ") + field.name;
}

const PluginField* find(const PluginFieldCollection& fields, const char* name) {
  for (int32_t i = 0; i < fields.nbFields; ++i)
    if (std::strcmp(fields.fields[i].name, name) == 0) return &fields.fields[i];
  return nullptr;
}

// The numbers of a field that check_field() has accepted; none when it is absent.
template <class Number>
std::vector<Number> numbers(const PluginFieldCollection& fields, const char* name) {
  const PluginField* field = find(fields, name);
  std::vector<Number> values;
  for (int32_t i = 0; field && i < field->length; ++i)
    if (field->type == PluginFieldType::kINT64) {
      const int64_t wide = static_cast<const int64_t*>(field->data)[i];
      const bool fits = wide >= INT32_MIN && wide <= INT32_MAX;
      values.push_back(fits ? Number(wide) : std::numeric_limits<Number>::lowest());
    } else {
      values.push_back(static_cast<const Number*>(field->data)[i]);
    }
  return values;
}

template <class Number>
Number number(const PluginFieldCollection& fields, const char* name, Number otherwise) {
  const std::vector<Number> values = numbers<Number>(fields, name);
  return values.empty() ? otherwise : values[0];
}

std::string check_definition(Definition& definition) {
  if (definition.num_outputs < 1 || definition.num_outputs > cuda::kNumOutputs)
    return "num_outputs = " + std::to_string(definition.num_outputs) + ", must be 1 to " +
           std::to_string(cuda::kNumOutputs);
  if (definition.num_multiprocessors < 0) return "num_multiprocessors is negative";
  return cuda::complete_attributes(definition.attributes);
}

std::string check_version(int64_t version) {
  if (version == cuda::kOperatorVersion) return {};
  return "schema_version = " + std::to_string(version) + ", this library implements " +
         cuda::kOperatorVersionText;
}

class Writer {
 public:
  template <class Number>
  void put(Number value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(value));
  }
  template <class Number>
  void put(const std::vector<Number>& values) {
    put(uint32_t(values.size()));
    for (const Number value : values) put(value);
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

class Reader {
 public:
  Reader(const void* bytes, size_t size) : at_(static_cast<const uint8_t*>(bytes)), left_(size) {}

  template <class Number>
  Number take() {
    Number value{};
    if (left_ < sizeof(value)) {
      broken_ = true;
      return value;
    }
    std::memcpy(&value, at_, sizeof(value));
    at_ += sizeof(value), left_ -= sizeof(value);
    return value;
  }
  template <class Number>
  std::vector<Number> take_list() {
    const auto count = take<uint32_t>();
    std::vector<Number> values;
    for (uint32_t i = 0; i < count && !broken_; ++i) values.push_back(take<Number>());
    return values;
  }
  bool complete() const { return !broken_ && left_ == 0; }

 private:
  const uint8_t* at_;
  size_t left_;
  bool broken_ = false;
};

}  // namespace

const PluginFieldCollection& field_names() {
  static const std::vector<PluginField> fields = [] {
    std::vector<PluginField> list;
    for (const Known& known : kKnown)
      list.emplace_back(known.name, nullptr, known.type, known.list ? 0 : 1);
    return list;
  }();
  static const PluginFieldCollection collection{int32_t(fields.size()), fields.data()};
  return collection;
}

std::string read_fields(const PluginFieldCollection& fields, Definition& definition) {
  for (int32_t i = 0; i < fields.nbFields; ++i)
    if (std::string error = check_field(fields.fields[i]); !error.empty()) return error;
  for (const Known& known : kKnown)
    if (known.required && !find(fields, known.name))
      return std::string("attribute ") + known.name + " is missing";
  if (std::string error = check_version(number<int32_t>(fields, "schema_version", 0)); !error.empty())
    return error;
  const int32_t interleaved = number<int32_t>(fields, "rotary_interleaved", 0);
  if (interleaved != 0 && interleaved != 1)
    return "rotary_interleaved = " + std::to_string(interleaved) + ", must be 0 or 1";
  cuda::Attributes& a = definition.attributes;
  definition.num_outputs = number<int32_t>(fields, "num_outputs", 0);
  a.num_heads = number<int32_t>(fields, "num_heads", 0);
  a.num_kv_heads = number<int32_t>(fields, "num_kv_heads", 0);
  a.head_dim = number<int32_t>(fields, "head_dim", 0);
  a.scale = number<float>(fields, "scale", 0.0f);
  a.softcap = number<float>(fields, "softcap", 0.0f);
  a.window = number<int32_t>(fields, "window", 0);
  a.rotary_interleaved = interleaved == 1;
  a.inv_freq = numbers<float>(fields, "inv_freq");
  a.freq_axes = numbers<int32_t>(fields, "freq_axes");
  return check_definition(definition);
}

std::vector<uint8_t> write_bytes(const Definition& definition) {
  const cuda::Attributes& a = definition.attributes;
  Writer writer;
  writer.put(kMagic);
  writer.put(kLayout);
  writer.put(int32_t(cuda::kOperatorVersion));
  for (const int32_t value :
       {definition.num_outputs, definition.num_multiprocessors, a.num_heads, a.num_kv_heads, a.head_dim,
        a.window, int32_t(a.rotary_interleaved)})
    writer.put(value);
  writer.put(a.scale);
  writer.put(a.softcap);
  writer.put(a.inv_freq);
  writer.put(a.freq_axes);
  return writer.take();
}

std::string read_bytes(const void* bytes, size_t size, Definition& definition) {
  Reader reader(bytes, size);
  if (reader.take<uint32_t>() != kMagic) return "the engine's bytes are not this plugin's";
  if (const auto layout = reader.take<uint32_t>(); layout != kLayout)
    return "the engine's bytes have layout " + std::to_string(layout) + ", this library reads " +
           std::to_string(kLayout) + ": build the engine again";
  if (std::string error = check_version(reader.take<int32_t>()); !error.empty()) return error;
  cuda::Attributes& a = definition.attributes;
  definition.num_outputs = reader.take<int32_t>();
  definition.num_multiprocessors = reader.take<int32_t>();
  a.num_heads = reader.take<int32_t>();
  a.num_kv_heads = reader.take<int32_t>();
  a.head_dim = reader.take<int32_t>();
  a.window = reader.take<int32_t>();
  a.rotary_interleaved = reader.take<int32_t>() != 0;
  a.scale = reader.take<float>();
  a.softcap = reader.take<float>();
  a.inv_freq = reader.take_list<float>();
  a.freq_axes = reader.take_list<int32_t>();
  if (!reader.complete()) return "the engine's bytes are cut short or too long";
  return check_definition(definition);
}

std::string describe(const Definition& definition) {
  const cuda::Attributes& a = definition.attributes;
  return "num_heads=" + std::to_string(a.num_heads) + " num_kv_heads=" +
         std::to_string(a.num_kv_heads) + " head_dim=" + std::to_string(a.head_dim) +
         " scale=" + std::to_string(a.scale) + " softcap=" + std::to_string(a.softcap) +
         " window=" + std::to_string(a.window) + " rotary_pairs=" +
         std::to_string(a.inv_freq.size()) + " outputs=" + std::to_string(definition.num_outputs);
}

}  // namespace edgekv::tensorrt
