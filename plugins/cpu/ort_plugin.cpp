// The operator as an ONNX Runtime custom-operator library.
//
// Owns: registration. One operator per pair of query and pool dtype is registered under one name, and
// the runtime picks. Guarantees: every fault is a status with one line, no exception leaves this file.
// Knows nothing of how a call is made or computed.

#include <memory>
#include <string>
#include <vector>

#include "ort_kernel.h"

namespace edgekv {
namespace {

constexpr const char* kDomain = "edgekv";
constexpr const char* kName = "PagedAttention";

ort::Api g_api;  // filled once by RegisterCustomOps, before any kernel exists

struct Operator : OrtCustomOp {
  Dtype query, pool;

  Operator(Dtype query_dtype, Dtype pool_dtype) : OrtCustomOp{}, query(query_dtype), pool(pool_dtype) {
    version = ort::kApiVersion;
    GetName = [](const OrtCustomOp*) { return kName; };
    GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
    GetInputTypeCount = [](const OrtCustomOp*) { return size_t{kNumInputs}; };
    GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{kNumOutputs}; };
    GetInputType = input_type;
    GetOutputType = [](const OrtCustomOp* self, size_t index) {
      constexpr Input same[] = {kQuery, kKeyPool, kValuePool, kKeyScales, kValueScales, kPageMass};
      return input_type(self, same[index]);
    };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t index) -> int {
      const bool optional = index == kKey || index == kValue || index >= kSinks;
      return optional ? ort::kOptional : ort::kRequired;
    };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t index) -> int {
      return index == kOutput ? ort::kRequired : ort::kOptional;
    };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
    GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
    GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
    GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetStartVersion = [](const OrtCustomOp*) { return 1; };
    GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
    CreateKernelV2 = [](const OrtCustomOp* self, const OrtApi*, const OrtKernelInfo* info,
                        void** kernel) {
      return guarded(g_api, [&] {
        const Operator& op = *static_cast<const Operator*>(self);
        *kernel = new Kernel(g_api, info, op.query, op.pool);
      });
    };
    KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
      return guarded(g_api, [&] { static_cast<Kernel*>(kernel)->compute(context); });
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  }

  static int input_type(const OrtCustomOp* self, size_t index) {
    const Operator& op = *static_cast<const Operator*>(self);
    if (index <= kValue) return element_type(op.query);
    if (index <= kValuePool) return element_type(op.pool);
    return index >= kSinks ? ort::kFloat : ort::kInt32;
  }
};

// The domain and its operators live as long as the library: sessions keep pointers to them.
class Domain {
 public:
  Domain() {
    for (const Dtype query : {Dtype::kFloat32, Dtype::kFloat16})
      for (const Dtype pool : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kInt8})
        operators_.push_back(std::make_unique<Operator>(query, pool));
    check(g_api, g_api.create_domain(kDomain, &domain_), "the domain");
    for (const auto& op : operators_) check(g_api, g_api.domain_add(domain_, op.get()), "the operator");
  }
  ~Domain() { g_api.release_domain(domain_); }
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  OrtCustomOpDomain* get() const { return domain_; }

 private:
  std::vector<std::unique_ptr<Operator>> operators_;
  OrtCustomOpDomain* domain_ = nullptr;
};

}  // namespace
}  // namespace edgekv

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace edgekv;
  const OrtApi* table = base->GetApi(ort::kApiVersion);
  if (!table) {  // version 1 is always there, and enough to say what is wrong
    const std::string message = std::string("edgekv needs ONNX Runtime 1.") +
                                std::to_string(ort::kApiVersion) + " or newer, this is " +
                                base->GetVersionString();
    return ort::load_api(base->GetApi(1)).create_status(ort::kFail, message.c_str());
  }
  static const bool loaded = [table] {
    g_api = ort::load_api(table);
    return true;
  }();
  (void)loaded;
  return guarded(g_api, [options] {
    static const Domain domain;
    check(g_api, g_api.add_domain(options, domain.get()), "the domain");
  });
}
