// See kernels.h.

#include "kernels.h"

#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace edgekv::cuda {
namespace {

constexpr int32_t kMaxParameters = 48;
constexpr int64_t kMaxGridYZ = 65535;
constexpr int32_t kSharedWithoutAsking = 48 << 10;  // bytes; more must be allowed per function
constexpr int32_t kWarp = 32;

enum class Kind { kPointer, kInt, kFloat };

struct Parameter {
  const char* name;
  Kind kind;
  size_t offset;
};

#define EDGEKV_VALUE(kind, name) {#name, Kind::kind, offsetof(Values, name)}
constexpr Parameter kParameters[] = {
    EDGEKV_VALUE(kPointer, output),      EDGEKV_VALUE(kPointer, starts),
    EDGEKV_VALUE(kPointer, run_ends),    EDGEKV_VALUE(kPointer, stats),
    EDGEKV_VALUE(kPointer, partial),     EDGEKV_VALUE(kPointer, lse),
    EDGEKV_VALUE(kPointer, turns),       EDGEKV_VALUE(kPointer, freq_axes),
    EDGEKV_VALUE(kPointer, null),        EDGEKV_VALUE(kInt, num_tokens),
    EDGEKV_VALUE(kInt, num_rows),        EDGEKV_VALUE(kInt, num_columns),
    EDGEKV_VALUE(kInt, table_stride),    EDGEKV_VALUE(kInt, num_heads),
    EDGEKV_VALUE(kInt, num_kv_heads),    EDGEKV_VALUE(kInt, num_writers),
    EDGEKV_VALUE(kInt, rotary_pairs),    EDGEKV_VALUE(kInt, interleaved),
    EDGEKV_VALUE(kInt, window),          EDGEKV_VALUE(kInt, has_sinks),
    EDGEKV_VALUE(kInt, has_lse),         EDGEKV_VALUE(kInt, num_splits),
    EDGEKV_VALUE(kFloat, scale),         EDGEKV_VALUE(kFloat, softcap),
};
#undef EDGEKV_VALUE

bool find_parameter(const char* name, Parameter& found) {
  for (int32_t i = 0; i < kNumInputs; ++i)
    if (std::strcmp(name, kInputNames[i]) == 0) {
      found = {kInputNames[i], Kind::kPointer, offsetof(Values, inputs) + i * sizeof(Address)};
      return true;
    }
  for (const Parameter& parameter : kParameters)
    if (std::strcmp(name, parameter.name) == 0) {
      found = parameter;
      return true;
    }
  return false;
}

bool kind_of(const char* type, Kind& kind) {
  if (type[0] == '*') kind = Kind::kPointer;
  else if (std::strcmp(type, "i32") == 0) kind = Kind::kInt;
  else if (std::strcmp(type, "fp32") == 0) kind = Kind::kFloat;
  else return false;
  return true;
}

bool fits_node(const Variant& v, const char* kernel, const char* config, const Wanted& w) {
  const bool combine = std::strcmp(kernel, "combine") == 0;
  const bool capped = std::strcmp(kernel, "attend") == 0 || std::strcmp(kernel, "mass") == 0;
  return std::strcmp(v.kernel, kernel) == 0 && std::strcmp(v.config, config) == 0 &&
         v.head_dim == w.head_dim && std::strcmp(v.query_dtype, element_name(w.query)) == 0 &&
         (combine || (v.page_size == w.page_size &&
                      std::strcmp(v.pool_dtype, element_name(w.pool)) == 0)) &&
         (!capped || v.softcap == w.softcap);
}

// Machine code runs on its own architecture and on later ones of the same major number.
const Variant* choose(const KernelTable& table, const char* kernel, const char* config,
                      const Wanted& wanted) {
  const Variant* best = nullptr;
  for (int32_t i = 0; i < table.size; ++i) {
    const Variant& v = table.variants[i];
    if (v.arch / 10 == wanted.arch / 10 && v.arch <= wanted.arch &&
        fits_node(v, kernel, config, wanted) && (!best || v.arch > best->arch))
      best = &v;
  }
  return best;
}

std::string architectures(const KernelTable& table) {
  std::string text;
  for (int32_t i = 0; i < table.size; ++i) {
    const std::string name = "sm_" + std::to_string(table.variants[i].arch);
    if (text.find(name) == std::string::npos) text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "no kernels at all" : "kernels for " + text;
}

}  // namespace

bool current_device(const Driver& driver, Device& device, Message& message) {
  int ordinal = 0, major = 0, minor = 0, count = 0;
  if (!succeeded(driver, driver.current_context(&device.context), "cuCtxGetCurrent", message))
    return false;
  if (!device.context) return message.set("no CUDA context is current in this thread");
  if (!succeeded(driver, driver.current_device(&ordinal), "cuCtxGetDevice", message) ||
      !succeeded(driver, driver.device_attribute(&major, kComputeMajor, ordinal),
                 "cuDeviceGetAttribute", message) ||
      !succeeded(driver, driver.device_attribute(&minor, kComputeMinor, ordinal),
                 "cuDeviceGetAttribute", message) ||
      !succeeded(driver, driver.device_attribute(&count, kNumMultiprocessors, ordinal),
                 "cuDeviceGetAttribute", message))
    return false;
  device.arch = major * 10 + minor;
  device.num_multiprocessors = count;
  return true;
}

bool choose_variants(const KernelTable& table, const Wanted& wanted,
                     const Variant* (&chosen)[kNumKernels], Message& message) {
  constexpr const char* kNames[kNumKernels][2] = {
      {"prepare", ""}, {"attend", "decode"}, {"attend", "prefill"}, {"combine", ""}, {"mass", ""}};
  for (int32_t i = 0; i < kNumKernels; ++i) {
    chosen[i] = nullptr;
    if (i == kMass && !wanted.mass) continue;
    chosen[i] = choose(table, kNames[i][0], kNames[i][1], wanted);
    if (!chosen[i])
      return message.set(
          "no kernel %s%s%s for sm_%d, head_dim %d, page size %d, %s queries, %s pools%s; this library "
          "has %s",
          kNames[i][0], *kNames[i][1] ? " " : "", kNames[i][1], wanted.arch, wanted.head_dim,
          wanted.page_size, element_name(wanted.query), element_name(wanted.pool),
          wanted.softcap ? ", soft cap" : "", architectures(table).c_str());
  }
  return true;
}

Blocks blocks_of(const Variant* const (&chosen)[kNumKernels]) {
  const Variant *decode = chosen[kAttendDecode], *prefill = chosen[kAttendPrefill];
  return {decode->block_m, decode->block_n, prefill->block_m, prefill->block_n,
          chosen[kPrepare]->block_m, chosen[kMass] ? chosen[kMass]->block_n : decode->block_n};
}

std::shared_ptr<const Kernel> Kernel::load(const Driver& driver, Context context,
                                           const Variant& variant, Message& message) {
  static std::mutex mutex;
  static std::map<std::pair<Context, const Variant*>, std::weak_ptr<const Kernel>> loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const Kernel>& slot = loaded[{context, &variant}];
  if (std::shared_ptr<const Kernel> kernel = slot.lock()) return kernel;
  std::shared_ptr<Kernel> kernel(new Kernel(driver, variant));
  if (!kernel->open(message)) return nullptr;
  slot = kernel;
  return kernel;
}

Kernel::~Kernel() {
  if (module_) driver_.unload_module(module_);  // refused when the context is gone, and then needless
}

bool Kernel::open(Message& message) {
  if (variant_.num_args > kMaxParameters)
    return message.set("kernel %s has %d parameters, at most %d", variant_.kernel, variant_.num_args,
                       int(kMaxParameters));
  for (int32_t i = 0; i < variant_.num_args; ++i) {
    const ArgumentEntry& entry = variant_.args[i];
    Parameter parameter{};
    Kind kind{};
    if (!find_parameter(entry.name, parameter) || !kind_of(entry.type, kind) || kind != parameter.kind)
      return message.set("kernel %s wants a parameter %s of type %s, which this library does not know",
                         variant_.kernel, entry.name, entry.type);
    offsets_.push_back(parameter.offset);
  }
  return succeeded(driver_, driver_.load_module(&module_, variant_.image), "cuModuleLoadData",
                   message) &&
         succeeded(driver_, driver_.get_function(&function_, module_, variant_.symbol),
                   "cuModuleGetFunction", message) &&
         (variant_.shared_bytes <= kSharedWithoutAsking ||
          succeeded(driver_,
                    driver_.set_function_attribute(function_, kMaxDynamicSharedBytes,
                                                   variant_.shared_bytes),
                    "cuFuncSetAttribute", message));
}

bool Kernel::launch(const Grid& grid, const Values& values, Stream stream, Message& message) const {
  if (grid.x > INT32_MAX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ)
    return message.set("the call is too large for kernel %s: %lld x %lld x %lld blocks",
                       variant_.kernel, static_cast<long long>(grid.x),
                       static_cast<long long>(grid.y), static_cast<long long>(grid.z));
  const char* base = reinterpret_cast<const char*>(&values);
  void* parameters[kMaxParameters];
  for (size_t i = 0; i < offsets_.size(); ++i)
    parameters[i] = const_cast<char*>(base + offsets_[i]);  // the driver reads them
  return succeeded(driver_,
                   driver_.launch(function_, unsigned(grid.x), unsigned(grid.y), unsigned(grid.z),
                                  unsigned(kWarp * variant_.num_warps), 1, 1,
                                  unsigned(variant_.shared_bytes), stream, parameters, nullptr),
                   "cuLaunchKernel", message);
}

}  // namespace edgekv::cuda
