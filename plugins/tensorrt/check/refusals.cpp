// What must be refused, each with a line that names the fault.

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "check.h"
#include "life.h"

namespace edgekv::check {
namespace {

void refused_fields(Creator& creator, const char* part, const std::function<void(Fields&)>& spoil,
                    const NodeCase& node = {}) {
  Fields fields(node);
  spoil(fields);
  CHECK_REFUSED(std::string("fields: ") + part, create(creator, fields).plugin == nullptr, part);
}

void check_fields(Creator& creator) {
  static const int32_t kTwo[] = {2, 2};
  static const double kDouble = 1.0;
  using nvinfer1::PluginFieldType;
  for (const char* name :
       {"schema_version", "num_outputs", "num_heads", "num_kv_heads", "head_dim", "scale"})
    refused_fields(creator, name, [&](Fields& f) { f.remove(name); });
  refused_fields(creator, "schema_version = 1, this library implements 2",
                 [](Fields& f) { f.schema_version = 1; });
  refused_fields(creator, "num_outputs = 0", [](Fields& f) { f.num_outputs = 0; });
  refused_fields(creator, "num_outputs = 7", [](Fields& f) { f.num_outputs = 7; });
  refused_fields(creator, "num_heads = 0", [](Fields& f) { f.heads = 0; });
  refused_fields(creator, "num_kv_heads = 4 does not divide", [](Fields& f) { f.kv_heads = 4; });
  refused_fields(creator, "head_dim = -1", [](Fields& f) { f.dim = -1; });
  refused_fields(creator, "window = -5", [](Fields& f) { f.window = -5; });
  refused_fields(creator, "rotary_interleaved = 2", [](Fields& f) { f.interleaved = 2; });
  refused_fields(creator, "scale must be a finite number", [](Fields& f) { f.scale = NAN; });
  refused_fields(creator, "softcap must be 0 or a positive", [](Fields& f) { f.softcap = -1.0f; });
  refused_fields(creator, "inv_freq[3] must be a finite number",
                 [](Fields& f) { f.inv_freq[3] = std::numeric_limits<float>::infinity(); });
  refused_fields(creator, "freq_axes[1] = -1", [](Fields& f) { f.freq_axes[1] = -1; });
  refused_fields(creator, "freq_axes has 7 values", [](Fields& f) { f["freq_axes"].length = 7; });
  refused_fields(creator, "inv_freq has 33 values", [](Fields&) {}, [] {
    NodeCase node;
    node.pairs = 33;
    return node;
  }());
  refused_fields(creator, "num_heads has 2 values", [](Fields& f) {
    f["num_heads"] = {"num_heads", kTwo, PluginFieldType::kINT32, 2};
  });
  refused_fields(creator, "scale must be float", [](Fields& f) {
    f["scale"] = {"scale", &kDouble, PluginFieldType::kFLOAT64, 1};
  });
  refused_fields(creator, "window must be int", [](Fields& f) {
    f["window"].type = PluginFieldType::kFLOAT32;
  });
  refused_fields(creator, "inv_freq has no data", [](Fields& f) { f["inv_freq"].data = nullptr; });
  refused_fields(creator, "there is no attribute heads", [](Fields& f) {
    f.fields.emplace_back("heads", kTwo, PluginFieldType::kINT32, 1);
  });
  CHECK_REFUSED("fields: none",
                creator.createPlugin("node", nullptr, nvinfer1::TensorRTPhase::kBUILD) == nullptr,
                "no fields");
  static const int64_t kWide = int64_t{1} << 40;
  refused_fields(creator, "num_heads", [](Fields& f) {
    f["num_heads"] = {"num_heads", &kWide, PluginFieldType::kINT64, 1};
  });
}

void check_bytes(Creator& creator) {
  Held built = create(creator, Fields(NodeCase{}));
  const nvinfer1::PluginField kept = built.runtime->getFieldsToSerialize()->fields[0];
  const std::string good(static_cast<const char*>(kept.data), size_t(kept.length));
  const auto refused = [&](const std::string& bytes, const char* part, const char* name) {
    const nvinfer1::PluginField field(name, bytes.data(), kept.type, int32_t(bytes.size()));
    const nvinfer1::PluginFieldCollection fields{1, &field};
    CHECK_REFUSED(std::string("bytes: ") + part,
                  creator.createPlugin("node", &fields, nvinfer1::TensorRTPhase::kRUNTIME) == nullptr,
                  part);
  };
  for (size_t length = 4; length < good.size(); ++length) {
    const nvinfer1::PluginField field(kept.name, good.data(), kept.type, int32_t(length));
    const nvinfer1::PluginFieldCollection fields{1, &field};
    CHECK("bytes cut short",
          creator.createPlugin("node", &fields, nvinfer1::TensorRTPhase::kRUNTIME) == nullptr);
  }
  refused(good + "x", "cut short or too long", kept.name);
  refused("", "not this plugin's", kept.name);
  refused(good, "one field", "other");
  std::string other = good;
  other[4] = 9;
  refused(other, "layout 9", kept.name);
  other = good;
  other[8] = 3;
  refused(other, "schema_version = 3", kept.name);
  const nvinfer1::PluginFieldCollection none{0, nullptr};
  CHECK_REFUSED("bytes: none",
                creator.createPlugin("node", &none, nvinfer1::TensorRTPhase::kRUNTIME) == nullptr,
                "one field");
}

// Spoils the description of a node that is otherwise fine; both phases must refuse it.
void refused_shape(Creator& creator, const char* part, const std::function<void(Described&)>& spoil,
                   NodeCase node = {}) {
  node.mass = true, node.sinks = true;
  Held held = create(creator, Fields(node));
  Described d(node);
  spoil(d);
  CHECK_REFUSED(std::string("configure: ") + part, configure(held, d) != 0, part);
  CHECK_REFUSED(std::string("shapes: ") + part, change_shape(held, d) != 0, part);
}

void check_shapes(Creator& creator) {
  using cuda::Input;
  const auto at = [&](Input input, const char* part, std::initializer_list<int64_t> dims,
                      NodeCase node = {}) {
    const std::vector<int64_t> kept(dims);
    refused_shape(creator, part, [&](Described& d) {
      auto& to = d.in[d.place(input)].dims;
      to = {};
      for (const int64_t dim : kept) to.d[to.nbDims++] = dim;
    }, node);
  };
  at(cuda::kQuery, "query has shape (3, 383), must be (any, 384)", {3, 383});
  at(cuda::kQuery, "input query has rank 3, must be 2", {1, 3, 384});
  at(cuda::kKey, "key has shape (2, 128), must be (3, 128)", {2, 128});
  at(cuda::kKeyPool, "key_pool has shape (7, 3, 16, 64)", {7, 3, 16, 64});
  at(cuda::kKeyPool, "key_pool has pages of 0 slots", {7, 2, 0, 64});
  at(cuda::kValuePool, "value_pool has shape (6, 2, 16, 64)", {6, 2, 16, 64});
  at(cuda::kKeyPool, "does not fit 32 bits", {int64_t{1} << 31, 2, 16, 64});
  at(cuda::kKeyPool, "the number of slots", {int64_t{1} << 28, 2, 16, 64});
  at(cuda::kPageTable, "page_table has 1 numbers per entry", {2, 5, 1});
  at(cuda::kPageTable, "page_table has 0 rope axes", {2, 5, 2});
  at(cuda::kQueryStarts, "query_starts has shape (2), must be (3)", {2});
  at(cuda::kSlotMapping, "slot_mapping has shape (4), must be (3)", {4});
  at(cuda::kKvLimits, "kv_limits has shape (0), must be (3)", {0});
  at(cuda::kQueryIndices, "query_indices has shape (1), must be (3)", {1});
  at(cuda::kSinks, "sinks has shape (2), must be (6)", {2});
  at(cuda::kPageMass, "page_mass has shape (8), must be (7)", {8});
  at(cuda::kMassWeights, "mass_weights has shape (3), must be (2)", {3});
  NodeCase quantized;
  quantized.pool = DataType::kINT8;
  at(cuda::kKeyScales, "key_scales has shape (7, 2, 15)", {7, 2, 15}, quantized);
}

void check_presence(Creator& creator) {
  refused_shape(creator, "num_outputs", [](Described& d) { d.out.pop_back(); });
  refused_shape(creator, "input value has rank 4", [](Described& d) {
    d.in.erase(d.in.begin() + d.place(cuda::kValue));
  });
  // Two vectors at the end can only be masses, so the sinks are taken for the first of them.
  refused_shape(creator, "page_mass has shape (6), must be (7)", [](Described& d) { d.in.pop_back(); });
  refused_shape(creator, "inputs too many", [](Described& d) { d.in.push_back(d.in.back());
                                                               d.in.push_back(d.in.back()); });
  refused_shape(creator, "int8 pools, and with no others", [](Described& d) {
    d.in[d.place(cuda::kKeyPool)].type = DataType::kINT8;
    d.in[d.place(cuda::kValuePool)].type = DataType::kINT8;
  });
  refused_shape(creator, "value_pool is float32, must be float16", [](Described& d) {
    d.in[d.place(cuda::kValuePool)].type = DataType::kFLOAT;
  });
  refused_shape(creator, "page_table cannot be another dtype", [](Described& d) {
    d.in[d.place(cuda::kPageTable)].type = DataType::kINT64;
  });
  Held held = create(creator, Fields(NodeCase{}));
  NodeCase masses;
  masses.mass = true;
  CHECK_REFUSED("a node that says too few outputs", change_shape(held, Described(masses)) != 0,
                "with its inputs it must be 4");
}

}  // namespace

void check_refusals(Creator& creator, bool driver) {
  check_fields(creator);
  check_bytes(creator);
  check_shapes(creator);
  check_presence(creator);
  if (!driver) return;
  NodeCase node;
  node.dim = 80;
  Held held = create(creator, Fields(node));
  const Described d(node);
  CHECK_REFUSED("a head_dim without kernels", configure(held, d) != 0,
                "no kernel prepare for sm_87, head_dim 80, page size 16, float16 queries, float16 pools; "
                "this library has kernels for sm_87, sm_90");
}

}  // namespace edgekv::check
