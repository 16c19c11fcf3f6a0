// See emulate.h.

#include "emulate.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "../../cpu/plan.h"

namespace edgekv {
extern const Kernels EDGEKV_EMULATING_KERNELS;
}

namespace edgekv::check {
namespace {

const Kernels& kKernels = EDGEKV_EMULATING_KERNELS;

bool read_dtype(const std::string& name, Dtype& dtype) {
  if (name == "float32") dtype = Dtype::kFloat32;
  else if (name == "float16") dtype = Dtype::kFloat16;
  else if (name == "bfloat16") dtype = Dtype::kBfloat16;
  else if (name == "int8") dtype = Dtype::kInt8;
  else return false;
  return true;
}

// A launch's parameters by name, in the types they have.
class Parameters {
 public:
  explicit Parameters(const std::function<uint64_t(const char*)>& get) : get_(get) {}

  int32_t number(const char* name) const { return int32_t(get_(name)); }
  float real(const char* name) const {
    const auto bits = uint32_t(get_(name));
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  template <class T>
  T* pointer(const char* name) const {
    return reinterpret_cast<T*>(uintptr_t(get_(name)));
  }

 private:
  const std::function<uint64_t(const char*)>& get_;
};

void write_tokens(const Parameters& p, Call& call) {
  if (p.number("num_writers") == 0) return;
  call.key = p.pointer<void>("key");
  call.value = p.pointer<void>("value");
  call.key_pool = p.pointer<void>("key_pool");
  call.value_pool = p.pointer<void>("value_pool");
  call.key_scales = p.pointer<float>("key_scales");
  call.value_scales = p.pointer<float>("value_scales");
  call.slot_mapping = p.pointer<const int32_t>("slot_mapping");
  call.num_tokens = p.number("num_tokens");
  call.geometry.num_kv_heads = p.number("num_kv_heads");
  for (int32_t head = 0; head < call.geometry.num_kv_heads; ++head) kKernels.write_head(call, head);
}

std::vector<double> turns_of(const Parameters& p, int32_t pairs) {
  const int64_t* fractions = p.pointer<const int64_t>("turns");
  std::vector<double> turns;
  for (int32_t i = 0; i < pairs; ++i) turns.push_back(double(fractions[i]) / 18446744073709551616.0);
  return turns;
}

// Attention of a whole call; with `mass`, for the sake of what it adds to page_mass alone.
void attend(const Parameters& p, Call& call, int32_t num_tokens, bool mass) {
  Geometry& g = call.geometry;
  g.num_heads = p.number("num_heads");
  g.num_kv_heads = p.number("num_kv_heads");
  g.rotary_pairs = p.number("rotary_pairs");
  g.rotary_interleaved = p.number("interleaved") != 0;
  g.window = p.number("window");
  g.scale = p.real("scale");
  g.softcap = p.real("softcap");
  const std::vector<double> turns = turns_of(p, g.rotary_pairs);
  g.turns_per_position = turns.data();
  g.freq_axes = p.pointer<const int32_t>("freq_axes");
  std::vector<char> dropped(size_t(num_tokens) * g.num_heads * g.head_dim * sizeof(float));
  call.num_tokens = num_tokens;
  call.query = p.pointer<const void>("query");
  call.key_pool = p.pointer<void>("key_pool");
  call.value_pool = p.pointer<void>(mass ? "key_pool" : "value_pool");
  call.key_scales = p.pointer<float>("key_scales");
  call.value_scales = p.pointer<float>(mass ? "key_scales" : "value_scales");
  call.kv_limits = p.pointer<const int32_t>("kv_limits");
  call.query_indices = p.pointer<const int32_t>("query_indices");
  call.output = mass ? dropped.data() : p.pointer<void>("output");
  if (mass) {
    call.page_mass = p.pointer<float>("page_mass");
    call.mass_weights = p.pointer<const float>("mass_weights");
  }
  const Tables tables{p.pointer<const int32_t>("page_table"), p.number("num_rows"),
                      p.number("num_columns"), p.number("table_stride") - 2,
                      p.pointer<const int32_t>("query_starts")};
  Plan plan;
  plan.prepare(tables, kKernels, call);
  const size_t bytes = (size_t(scratch_floats(g)) * sizeof(float) + 63) / 64 * 64;
  const std::unique_ptr<float, void (*)(void*)> scratch(
      static_cast<float*>(std::aligned_alloc(64, bytes)), std::free);
  for (const Task& task : plan.tasks()) kKernels.run_task(call, task, scratch.get());
  for (const Task& task : plan.tasks())
    if (task.num_parts > 1 && task.part == 0) kKernels.merge(call, task);
  if (!mass || !plan.weighs()) return;
  for (const Task& task : plan.tasks())
    if (task.mass >= 0) kKernels.weigh(call, task, scratch.get());
  plan.add_masses(call);
}

}  // namespace

bool emulate(const Constants& constants, const std::function<uint64_t(const char*)>& parameter) {
  if (constants.kernel == "combine") return true;
  Call call{};
  call.geometry.head_dim = constants.head_dim;
  call.page_size = constants.page_size;
  if (!read_dtype(constants.query_dtype, call.query_dtype) ||
      !read_dtype(constants.pool_dtype, call.pool_dtype) || call.query_dtype == Dtype::kBfloat16)
    return false;
  // The sinks' share of a softmax reaches `mass` through lse, which here nobody fills, so `attend`
  // leaves them, and the number of tokens, for it.
  static const float* sinks = nullptr;
  static int32_t num_tokens = 0;
  const Parameters p(parameter);
  if (constants.kernel == "prepare") {
    num_tokens = p.number("num_tokens");
    write_tokens(p, call);
  } else if (constants.kernel == "attend") {
    sinks = p.number("has_sinks") ? p.pointer<const float>("sinks") : nullptr;
    call.sinks = sinks;
    attend(p, call, num_tokens, false);
  } else {
    call.sinks = sinks;
    attend(p, call, num_tokens, true);
  }
  return true;
}

}  // namespace edgekv::check
