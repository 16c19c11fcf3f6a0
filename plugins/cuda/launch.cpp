// See launch.h.

#include "launch.h"

#include <cmath>

#include "kernels.h"

namespace edgekv::cuda {
namespace {

constexpr double kTwoPi = 6.283185307179586;
constexpr Address kPointerAlignment = 16;  // what the kernels are compiled for
constexpr Address kWorkspaceAlignment = 256;

// inv_freq / 2 pi modulo 1, as a 64-bit binary fraction.
uint64_t turns_of(float inv_freq) {
  double x = double{inv_freq} / kTwoPi;
  x -= std::floor(x);
  return x < 1.0 ? uint64_t(std::ldexp(x, 64)) : 0;  // 1 when a tiny negative number was rounded
}

Address address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

Wanted wanted_of(const Attributes& attributes, const Call& call, int32_t arch) {
  return {arch, attributes.head_dim, call.page_size, call.query_element, call.pool_element,
          attributes.softcap > 0.0f, call.presence.mass};
}

NodeSizes node_sizes(const Attributes& attributes, const Call& call) {
  return {attributes.num_heads, attributes.num_kv_heads, attributes.head_dim,
          call.page_size,       !call.presence.writes,   call.presence.mass};
}

CallSizes call_sizes(const Call& call) {
  return {call.num_tokens, call.num_rows, call.num_columns};
}

bool same(const Wanted& a, const Wanted& b) {
  return a.arch == b.arch && a.head_dim == b.head_dim && a.page_size == b.page_size &&
         a.query == b.query && a.pool == b.pool && a.softcap == b.softcap && a.mass == b.mass;
}

}  // namespace

// Fixed once made, so that launches may read it from any thread.
class Prepared {
 public:
  Prepared(const Driver& driver, const Device& device, const Wanted& wanted, int32_t sms)
      : driver_(driver), context_(device.context), wanted_(wanted), num_multiprocessors_(sms) {}
  ~Prepared() {
    if (constants_) driver_.release(constants_);
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  bool fits(const Device& device, const Wanted& wanted, int32_t sms) const {
    return context_ == device.context && same(wanted_, wanted) && num_multiprocessors_ == sms;
  }
  bool fits(const Attributes& attributes, const Call& call) const {
    return same(wanted_, wanted_of(attributes, call, wanted_.arch));
  }

  bool load(const Attributes& attributes, Message& message) {
    const Variant* chosen[kNumKernels];
    if (!choose_variants(kernel_table(), wanted_, chosen, message)) return false;
    blocks_ = blocks_of(chosen);
    for (int32_t i = 0; i < kNumKernels; ++i)
      if (chosen[i] && !(kernels_[i] = Kernel::load(driver_, context_, *chosen[i], message)))
        return false;
    return load_constants(attributes, message);
  }

  LaunchPlan plan(const Attributes& attributes, const Call& call) const {
    return plan_launches(node_sizes(attributes, call), call_sizes(call), blocks_,
                         num_multiprocessors_);
  }
  bool launch(const Attributes& attributes, const Call& call, void* workspace, Stream stream,
              Message& message) const;

 private:
  bool load_constants(const Attributes& attributes, Message& message) {
    const size_t pairs = attributes.inv_freq.size();
    if (pairs == 0) return true;
    std::vector<uint64_t> turns;
    for (const float frequency : attributes.inv_freq) turns.push_back(turns_of(frequency));
    const size_t turns_bytes = pairs * sizeof(uint64_t), axes_bytes = pairs * sizeof(int32_t);
    axes_ = (turns_bytes + kPointerAlignment - 1) / kPointerAlignment * kPointerAlignment;
    return succeeded(driver_, driver_.allocate(&constants_, axes_ + axes_bytes), "cuMemAlloc",
                     message) &&
           succeeded(driver_, driver_.copy_to_device(constants_, turns.data(), turns_bytes),
                     "cuMemcpyHtoD", message) &&
           succeeded(driver_,
                     driver_.copy_to_device(constants_ + axes_, attributes.freq_axes.data(),
                                            axes_bytes),
                     "cuMemcpyHtoD", message);
  }

  bool copy_pools(const Attributes& attributes, const Call& call, Stream stream,
                  Message& message) const;
  Values values_of(const Attributes& attributes, const Call& call, const LaunchPlan& plan,
                   Address workspace) const;

  const Driver& driver_;
  Context context_;
  Wanted wanted_;
  int32_t num_multiprocessors_;
  Blocks blocks_{};
  std::shared_ptr<const Kernel> kernels_[kNumKernels];
  Address constants_ = 0, axes_ = 0;  // turns, and freq_axes so many bytes behind it
};

bool Prepared::copy_pools(const Attributes& attributes, const Call& call, Stream stream,
                          Message& message) const {
  for (int32_t i = kKeyPoolOut; i < kNumOutputs; ++i) {
    const InPlace pool = in_place(attributes, call, Output(i));
    const void* from = call.inputs[pool.input];
    if (!call.outputs[i] || call.outputs[i] == from || pool.bytes == 0) continue;
    if (!succeeded(driver_,
                   driver_.copy_on_device_async(address(call.outputs[i]), address(from),
                                                size_t(pool.bytes), stream),
                   "cuMemcpyDtoDAsync", message))
      return false;
  }
  return true;
}

Values Prepared::values_of(const Attributes& attributes, const Call& call, const LaunchPlan& plan,
                           Address workspace) const {
  Values v{};
  for (int32_t i = 0; i < kNumInputs; ++i) v.inputs[i] = address(call.inputs[i]);
  for (int32_t i = kKeyPoolOut; i < kNumOutputs; ++i)
    if (call.outputs[i])
      v.inputs[in_place(attributes, call, Output(i)).input] = address(call.outputs[i]);
  v.output = address(call.outputs[kOutput]);
  const auto part = [&](const Part& part) { return part.bytes ? workspace + part.offset : 0; };
  v.starts = part(plan.starts);
  v.run_ends = part(plan.run_ends);
  v.stats = part(plan.stats);
  v.partial = part(plan.partial);
  v.lse = part(plan.lse);
  v.turns = constants_;
  v.freq_axes = constants_ ? constants_ + axes_ : 0;
  v.num_tokens = call.num_tokens;
  v.num_rows = call.num_rows;
  v.num_columns = call.num_columns;
  v.table_stride = 2 + call.num_axes;
  v.num_heads = attributes.num_heads;
  v.num_kv_heads = attributes.num_kv_heads;
  v.num_writers = int32_t(plan.num_writers);
  v.rotary_pairs = int32_t(attributes.inv_freq.size());
  v.interleaved = attributes.rotary_interleaved;
  v.window = attributes.window;
  v.has_sinks = call.presence.sinks;
  v.has_lse = call.presence.mass;
  v.num_splits = int32_t(plan.num_splits);
  v.scale = attributes.scale;
  v.softcap = attributes.softcap;
  return v;
}

bool Prepared::launch(const Attributes& attributes, const Call& call, void* workspace, Stream stream,
                      Message& message) const {
  for (int32_t i = 0; i < kNumInputs; ++i)
    if (address(call.inputs[i]) % kPointerAlignment != 0)
      return message.set("%s is not aligned to 16 bytes", kInputNames[i]);
  for (int32_t i = 0; i < kNumOutputs; ++i)
    if (address(call.outputs[i]) % kPointerAlignment != 0)
      return message.set("output %d is not aligned to 16 bytes", int(i));
  const LaunchPlan plan = this->plan(attributes, call);
  if (plan.workspace_bytes > 0 && (!workspace || address(workspace) % kWorkspaceAlignment != 0))
    return message.set("the workspace of %lld bytes is missing or not aligned to 256 bytes",
                       static_cast<long long>(plan.workspace_bytes));
  if (!copy_pools(attributes, call, stream, message)) return false;
  if (plan.prepare.x == 0) return true;
  const Values values = values_of(attributes, call, plan, address(workspace));
  const Kernel& attend = *kernels_[plan.prefill ? kAttendPrefill : kAttendDecode];
  return kernels_[kPrepare]->launch(plan.prepare, values, stream, message) &&
         attend.launch(plan.attend, values, stream, message) &&
         (plan.combine.x == 0 ||
          kernels_[kCombine]->launch(plan.combine, values, stream, message)) &&
         (plan.mass.x == 0 || kernels_[kMass]->launch(plan.mass, values, stream, message));
}

bool Launcher::prepare(const Attributes& attributes, const Call& call, int32_t num_multiprocessors,
                       Message& message) {
  const Driver* driver = open_driver(message);
  Device device;
  if (!driver || !current_device(*driver, device, message)) return false;
  const int32_t sms = num_multiprocessors > 0 ? num_multiprocessors : device.num_multiprocessors;
  const Wanted wanted = wanted_of(attributes, call, device.arch);
  if (prepared_ && prepared_->fits(device, wanted, sms)) return true;
  auto prepared = std::make_shared<Prepared>(*driver, device, wanted, sms);
  if (!prepared->load(attributes, message)) return false;
  prepared_ = std::move(prepared);
  return true;
}

size_t Launcher::call_bytes(const Attributes& attributes, const Call& call) const {
  if (!prepared_ || !prepared_->fits(attributes, call)) return 0;
  return size_t(prepared_->plan(attributes, call).workspace_bytes);
}

bool Launcher::launch(const Attributes& attributes, const Call& call, void* workspace, Stream stream,
                      Message& message) const {
  if (!prepared_ || !prepared_->fits(attributes, call))
    return message.set("the call differs from the one the node was prepared for");
  return prepared_->launch(attributes, call, workspace, stream, message);
}

bool workspace_bytes(const Attributes& attributes, const Call& largest, int32_t& num_multiprocessors,
                     size_t& bytes, Message& message) {
  const Driver* driver = open_driver(message);
  Device device;
  const Variant* chosen[kNumKernels];
  if (!driver || !current_device(*driver, device, message) ||
      !choose_variants(kernel_table(), wanted_of(attributes, largest, device.arch), chosen, message))
    return false;
  if (num_multiprocessors <= 0) num_multiprocessors = device.num_multiprocessors;
  bytes = size_t(workspace_bound(node_sizes(attributes, largest), call_sizes(largest),
                                 blocks_of(chosen), num_multiprocessors));
  return true;
}

}  // namespace edgekv::cuda
