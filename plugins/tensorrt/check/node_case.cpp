// See node_case.h.

#include "node_case.h"

#include <cstring>

namespace edgekv::check {
namespace {

using cuda::Input;

int64_t bytes_of(const nvinfer1::PluginTensorDesc& desc) {
  int64_t count = 1;
  for (int32_t i = 0; i < desc.dims.nbDims; ++i) count *= desc.dims.d[i];
  switch (desc.type) {
    case DataType::kINT8: return count;
    case DataType::kHALF:
    case DataType::kBF16: return 2 * count;
    default: return 4 * count;
  }
}

const char* name_of(DataType type) {
  switch (type) {
    case DataType::kFLOAT: return "float32";
    case DataType::kHALF: return "float16";
    case DataType::kBF16: return "bfloat16";
    default: return "int8";
  }
}

}  // namespace

std::string NodeCase::name() const {
  return std::string(name_of(query)) + " on " + name_of(pool) + (writes ? "" : ", read-only") +
         (sinks ? ", sinks" : "") + (mass ? ", mass" : "") + (softcap > 0 ? ", soft cap" : "") +
         (positional ? "" : ", absent inputs left out") + ", T " + std::to_string(tokens) + " B " +
         std::to_string(rows) + " M " + std::to_string(columns);
}

std::vector<NodeCase> all_cases() {
  std::vector<NodeCase> cases;
  for (const DataType query : {DataType::kFLOAT, DataType::kHALF, DataType::kBF16})
    for (const DataType pool : {DataType::kFLOAT, DataType::kHALF, DataType::kBF16, DataType::kINT8})
      for (int bits = 0; bits < 16; ++bits) {
        NodeCase node;
        node.query = query, node.pool = pool;
        node.writes = bits & 1, node.sinks = bits & 2, node.mass = bits & 4;
        node.positional = bits & 8;
        node.softcap = bits & 2 ? 30.0f : 0.0f;
        node.pairs = bits & 4 ? 0 : 8;
        cases.push_back(node);
      }
  return cases;
}

Fields::Fields(const NodeCase& node)
    : num_outputs(node.num_outputs()), heads(node.heads), kv_heads(node.kv_heads), dim(node.dim),
      window(node.window), softcap(node.softcap), inv_freq(size_t(node.pairs), 0.5f),
      freq_axes(size_t(node.pairs), 0) {
  using nvinfer1::PluginFieldType;
  const auto number = [&](const char* name, const int32_t& value) {
    fields.emplace_back(name, &value, PluginFieldType::kINT32, 1);
  };
  number("schema_version", schema_version);
  number("num_outputs", num_outputs);
  number("num_heads", heads);
  number("num_kv_heads", kv_heads);
  number("head_dim", dim);
  fields.emplace_back("scale", &scale, PluginFieldType::kFLOAT32, 1);
  fields.emplace_back("softcap", &softcap, PluginFieldType::kFLOAT32, 1);
  number("window", window);
  number("rotary_interleaved", interleaved);
  if (node.pairs == 0) return;
  fields.emplace_back("inv_freq", inv_freq.data(), PluginFieldType::kFLOAT32, node.pairs);
  fields.emplace_back("freq_axes", freq_axes.data(), PluginFieldType::kINT32, node.pairs);
}

nvinfer1::PluginField& Fields::operator[](const char* name) {
  for (nvinfer1::PluginField& field : fields)
    if (std::strcmp(field.name, name) == 0) return field;
  std::fprintf(stderr, "no field %s\n", name);
  std::abort();
}

void Fields::remove(const char* name) {
  fields.erase(fields.begin() + (&(*this)[name] - fields.data()));
}

nvinfer1::Dims dims_of(std::initializer_list<int64_t> values) {
  nvinfer1::Dims dims{};
  for (const int64_t value : values) dims.d[dims.nbDims++] = value;
  return dims;
}

Described::Described(const NodeCase& n) {
  const int64_t width = int64_t{n.kv_heads} * n.dim;
  struct Row {
    Input input;
    bool there;
    nvinfer1::Dims dims;
    DataType type;
  };
  const auto pool = dims_of({n.pages, n.kv_heads, n.page_size, n.dim});
  const auto scales = dims_of({n.pages, n.kv_heads, n.page_size});
  const auto tokens = dims_of({n.tokens});
  const Row rows[] = {
      {cuda::kQuery, true, dims_of({n.tokens, int64_t{n.heads} * n.dim}), n.query},
      {cuda::kKey, n.writes, dims_of({n.tokens, width}), n.query},
      {cuda::kValue, n.writes, dims_of({n.tokens, width}), n.query},
      {cuda::kKeyPool, true, pool, n.pool},
      {cuda::kValuePool, true, pool, n.pool},
      {cuda::kPageTable, true, dims_of({n.rows, n.columns, 2 + n.axes}), DataType::kINT32},
      {cuda::kQueryStarts, true, dims_of({n.rows + 1}), DataType::kINT32},
      {cuda::kSlotMapping, true, tokens, DataType::kINT32},
      {cuda::kKvLimits, true, tokens, DataType::kINT32},
      {cuda::kQueryIndices, true, tokens, DataType::kINT32},
      {cuda::kSinks, n.sinks, dims_of({n.heads}), DataType::kFLOAT},
      {cuda::kKeyScales, n.quantized(), scales, DataType::kFLOAT},
      {cuda::kValueScales, n.quantized(), scales, DataType::kFLOAT},
      {cuda::kPageMass, n.mass, dims_of({n.pages}), DataType::kFLOAT},
      {cuda::kMassWeights, n.mass, dims_of({n.rows}), DataType::kFLOAT},
  };
  int32_t last = 0;
  for (int32_t i = 0; i < cuda::kNumInputs; ++i)
    if (rows[i].there) last = i;
  for (int32_t i = 0; i <= last; ++i) {
    if (!rows[i].there && !n.positional) continue;
    nvinfer1::PluginTensorDesc desc{{}, rows[i].type, nvinfer1::TensorFormat::kLINEAR, 1.0f};
    desc.dims.nbDims = -1;
    if (rows[i].there) desc.dims = rows[i].dims;
    places.push_back(rows[i].there ? i : -1);
    in.push_back(desc);
  }
  outputs.push_back(cuda::kOutput);
  if (n.writes) outputs.insert(outputs.end(), {cuda::kKeyPoolOut, cuda::kValuePoolOut});
  if (n.writes && n.quantized())
    outputs.insert(outputs.end(), {cuda::kKeyScalesOut, cuda::kValueScalesOut});
  if (n.mass) outputs.push_back(cuda::kPageMassOut);
  constexpr Input kModels[] = {cuda::kQuery,     cuda::kKeyPool,     cuda::kValuePool,
                               cuda::kKeyScales, cuda::kValueScales, cuda::kPageMass};
  for (const cuda::Output output : outputs) out.push_back(in[place(kModels[output])]);
}

int32_t Described::place(Input input) const {
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i] == input) return int32_t(i);
  return -1;
}

namespace {

std::vector<nvinfer1::DynamicPluginTensorDesc> dynamic(
    const std::vector<nvinfer1::PluginTensorDesc>& descs) {
  std::vector<nvinfer1::DynamicPluginTensorDesc> result;
  for (const nvinfer1::PluginTensorDesc& desc : descs)
    result.push_back({desc, desc.dims, desc.dims, desc.dims});
  return result;
}

}  // namespace

std::vector<nvinfer1::DynamicPluginTensorDesc> Described::dynamic_in() const { return dynamic(in); }
std::vector<nvinfer1::DynamicPluginTensorDesc> Described::dynamic_out() const { return dynamic(out); }

Memory::Memory(const Described& described, bool in_place) {
  for (size_t i = 0; i < described.in.size(); ++i)
    inputs.push_back(described.places[i] < 0 ? nullptr : allocate(described.in[i]));
  constexpr Input kModels[] = {cuda::kNumInputs, cuda::kKeyPool,     cuda::kValuePool,
                               cuda::kKeyScales, cuda::kValueScales, cuda::kPageMass};
  for (size_t i = 0; i < described.out.size(); ++i) {
    const Input model = kModels[described.outputs[i]];
    outputs.push_back(in_place && model != cuda::kNumInputs
                          ? const_cast<void*>(inputs[described.place(model)])
                          : allocate(described.out[i]));
  }
}

void* Memory::allocate(const nvinfer1::PluginTensorDesc& desc) {
  const int64_t bytes = (bytes_of(desc) + 256) / 256 * 256;
  blocks_.emplace_back(std::aligned_alloc(256, size_t(bytes)));
  std::memset(blocks_.back().get(), int(blocks_.size()), size_t(bytes));
  return blocks_.back().get();
}

}  // namespace edgekv::check
