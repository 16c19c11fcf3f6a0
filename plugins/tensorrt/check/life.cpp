// A node's life in TensorRT, from fields to an execution context, for every kind of node.

#include "life.h"

#include <cstring>
#include <string>

#include "check.h"
#include "exprs.h"

namespace edgekv::check {
namespace {

constexpr DataType kTypes[] = {DataType::kFLOAT, DataType::kHALF, DataType::kINT8, DataType::kINT32,
                               DataType::kBOOL,  DataType::kUINT8, DataType::kBF16, DataType::kINT64};

void check_names(const std::string& where, Creator& creator, const Held& held) {
  for (const char* name : {creator.getPluginName(), held.core->getPluginName()})
    CHECK(where, std::strcmp(name, "PagedAttention") == 0);
  for (const char* version : {creator.getPluginVersion(), held.core->getPluginVersion()})
    CHECK(where, std::strcmp(version, "2") == 0);
  for (const char* space : {creator.getPluginNamespace(), held.core->getPluginNamespace()})
    CHECK(where, std::strcmp(space, "edgekv") == 0);
  const nvinfer1::InterfaceInfo build = held.build->getInterfaceInfo();
  CHECK(where, std::string(build.kind) == "PLUGIN_V3ONE_BUILD" && build.major == 2);
  CHECK(where, std::string(held.build->getMetadataString()).find("head_dim=64") != std::string::npos);
}

void check_types(const std::string& where, Held& held, const Described& d) {
  std::vector<DataType> in, out(d.out.size(), DataType::kBOOL);
  for (const auto& desc : d.in) in.push_back(desc.type);
  CHECK(where, held.build->getNbOutputs() == d.num_outputs());
  CHECK(where, held.build->getOutputDataTypes(out.data(), d.num_outputs(), in.data(),
                                              d.num_inputs()) == 0);
  for (size_t i = 0; i < out.size(); ++i) CHECK(where, out[i] == d.out[i].type);
  for (int32_t i = 0; i < d.num_outputs(); ++i) CHECK(where, held.build->getAliasedInput(i) == -1);
}

void check_shapes(const std::string& where, Held& held, const Described& d) {
  ExprBuilder builder;
  const auto exprs_of = [&](const nvinfer1::PluginTensorDesc& desc) {
    nvinfer1::DimsExprs exprs{desc.dims.nbDims, {}};
    for (int32_t i = 0; i < desc.dims.nbDims; ++i) exprs.d[i] = builder.make(desc.dims.d[i]);
    return exprs;
  };
  std::vector<nvinfer1::DimsExprs> in, out(d.out.size());
  for (const auto& desc : d.in) in.push_back(exprs_of(desc));
  CHECK(where, held.build->getOutputShapes(in.data(), d.num_inputs(), nullptr, 0, out.data(),
                                           d.num_outputs(), builder) == 0);
  for (size_t i = 0; i < out.size(); ++i) {
    CHECK(where, out[i].nbDims == d.out[i].dims.nbDims);
    for (int32_t k = 0; k < out[i].nbDims; ++k)
      CHECK(where, out[i].d[k]->getConstantValue() == d.out[i].dims.d[k]);
  }
}

// At every place, the node's own dtype is the only one taken once the places before it are fixed, but
// for those that are free: queries, and key pools until the network has said what they are.
void check_formats(const std::string& where, Held& held, const Described& d, bool pools_free) {
  std::vector<nvinfer1::DynamicPluginTensorDesc> all = d.dynamic_in();
  for (const auto& desc : d.dynamic_out()) all.push_back(desc);
  for (int32_t position = 0; position < int32_t(all.size()); ++position) {
    const auto taken = [&](DataType type, nvinfer1::TensorFormat format) {
      std::vector<nvinfer1::DynamicPluginTensorDesc> asked = all;
      asked[position].desc.type = type, asked[position].desc.format = format;
      for (size_t later = position + 1; later < asked.size(); ++later)  // said to be invalid
        asked[later].desc.type = DataType::kFP8;
      return held.build->supportsFormatCombination(position, asked.data(), d.num_inputs(),
                                                   d.num_outputs());
    };
    const bool is_input = position < d.num_inputs();
    const int32_t input = is_input ? d.places[position] : -1;
    const DataType own = all[position].desc.type;
    CHECK(where, taken(own, nvinfer1::TensorFormat::kLINEAR));
    if (is_input && input < 0) continue;
    CHECK(where, !taken(own, nvinfer1::TensorFormat::kCHW32));
    for (const DataType type : kTypes) {
      const bool real = type == DataType::kFLOAT || type == DataType::kHALF || type == DataType::kBF16;
      bool wanted = type == own;
      if (input == cuda::kQuery) wanted = real;
      if (input == cuda::kKeyPool && pools_free) wanted = real || type == DataType::kINT8;
      CHECK(where + ", place " + std::to_string(position),
            taken(type, nvinfer1::TensorFormat::kLINEAR) == wanted);
    }
  }
  const int32_t count = int32_t(all.size());
  for (const int32_t position : {-1, count})
    CHECK(where, !held.build->supportsFormatCombination(position, all.data(), d.num_inputs(),
                                                        d.num_outputs()));
}

std::string bytes_of(const nvinfer1::PluginFieldCollection* fields) {
  if (!fields || fields->nbFields != 1) return {};
  return {static_cast<const char*>(fields->fields[0].data), size_t(fields->fields[0].length)};
}

}  // namespace

Held through_an_engine(Creator& creator, Held& built) {
  const nvinfer1::PluginFieldCollection* kept = built.runtime->getFieldsToSerialize();
  // The engine keeps bytes, not the plugin's memory.
  const std::string bytes = bytes_of(kept);
  const std::string name = kept->fields[0].name;
  const nvinfer1::PluginField field(name.c_str(), bytes.data(), kept->fields[0].type,
                                    int32_t(bytes.size()));
  const nvinfer1::PluginFieldCollection fields{1, &field};
  Held read(creator.createPlugin("node", &fields, nvinfer1::TensorRTPhase::kRUNTIME));
  CHECK("engine", read.plugin != nullptr);
  if (read.plugin) CHECK("engine", bytes_of(read.runtime->getFieldsToSerialize()) == bytes);
  return read;
}

void check_life(Creator& creator, const NodeCase& node, bool driver) {
  const std::string where = node.name();
  const Fields fields(node);
  const Described d(node);
  const long before = g_allocations;
  Held held = create(creator, fields);
  CHECK(where, held.plugin && held.core && held.build && held.runtime);
  CHECK(where, g_allocations > before);  // or counting them would prove nothing later
  if (!held.plugin) return;
  check_names(where, creator, held);
  check_formats(where, held, d, true);
  check_types(where, held, d);
  check_shapes(where, held, d);
  check_formats(where, held, d, false);
  Held clone(held.plugin->clone());
  check_formats(where, clone, d, false);
  check_types(where, clone, d);
  if (driver) {
    CHECK(where, configure(clone, d) == 0);
    CHECK(where, workspace_size(clone, d) > 0);
  } else {
    CHECK_REFUSED(where, configure(clone, d) != 0, "no CUDA driver");
    CHECK_REFUSED(where, workspace_size(clone, d) == 0, "no CUDA driver");
  }
  Held read = through_an_engine(creator, clone);
  ResourceContext context;
  Held attached(read.runtime->attachToContext(&context));
  CHECK(where, attached.plugin && attached.plugin != read.plugin);
  check_types(where, attached, d);
  if (driver) {
    CHECK(where, change_shape(attached, d) == 0);
    CHECK(where, context.recorder().getNbErrors() == 0);
  } else {
    CHECK_REFUSED(where, change_shape(attached, d) != 0, "no CUDA driver");
    CHECK(where, context.recorder().getNbErrors() == 1);
  }
}

}  // namespace edgekv::check
