// The operator as ONNX Runtime sees it, whatever computes it.
//
// Owns: its name, which inputs and outputs have which dtype and may be left out, registration. One
// operator per pair of query and pool dtype is registered under one name, and the runtime picks.
// Guarantees: every fault is a status with one line, no exception leaves it. Knows nothing of how a call
// is made or computed: that is `Kernel`, made as Kernel(api, info, query dtype, pool dtype), with
// compute(context).
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "ort_io.h"

namespace edgekv {

inline constexpr const char* kDomain = "edgekv";
inline constexpr const char* kName = "PagedAttention";

inline ort::Api g_api;  // filled once by register_operator, before any kernel exists

template <class Kernel>
struct Operator : OrtCustomOp {
  Dtype query, pool;
  const char* provider;

  Operator(const char* provider_name, Dtype query_dtype, Dtype pool_dtype)
      : OrtCustomOp{}, query(query_dtype), pool(pool_dtype), provider(provider_name) {
    version = ort::kApiVersion;
    GetName = [](const OrtCustomOp*) { return kName; };
    GetExecutionProviderType = [](const OrtCustomOp* self) {
      return static_cast<const Operator*>(self)->provider;
    };
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
template <class Kernel>
class Domain {
 public:
  Domain(const char* provider, std::initializer_list<Dtype> queries,
         std::initializer_list<Dtype> pools) {
    for (const Dtype query : queries)
      for (const Dtype pool : pools)
        operators_.push_back(std::make_unique<Operator<Kernel>>(provider, query, pool));
    check(g_api, g_api.create_domain(kDomain, &domain_), "the domain");
    for (const auto& op : operators_) check(g_api, g_api.domain_add(domain_, op.get()), "the operator");
  }
  ~Domain() { g_api.release_domain(domain_); }
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  OrtCustomOpDomain* get() const { return domain_; }

 private:
  std::vector<std::unique_ptr<Operator<Kernel>>> operators_;
  OrtCustomOpDomain* domain_ = nullptr;
};

// What a library's RegisterCustomOps does.
template <class Kernel>
OrtStatus* register_operator(OrtSessionOptions* options, const OrtApiBase* base, const char* provider,
                             std::initializer_list<Dtype> queries,
                             std::initializer_list<Dtype> pools) {
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
  return guarded(g_api, [&] {
    static const Domain<Kernel> domain(provider, queries, pools);
    check(g_api, g_api.add_domain(options, domain.get()), "the domain");
  });
}

}  // namespace edgekv
