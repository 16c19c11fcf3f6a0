// The operator as an ONNX Runtime custom-operator library.
//
// Owns: attributes, tensors in and out, the runtime's thread pool. Guarantees: everything is checked
// before anything is written; every fault is a status with one line; no exception leaves this file.
// One operator per pair of query and pool dtype is registered under one name, and the runtime picks.
// Knows nothing of how attention is computed.

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "ort_api.h"
#include "paged_attention.h"
#include "plan.h"
#include "validate.h"

namespace edgekv {
namespace {

constexpr int64_t kSchemaVersion = 1;
constexpr const char* kDomain = "edgekv";
constexpr const char* kName = "PagedAttention";
constexpr double kTwoPi = 6.283185307179586476925;

enum Input {
  kQuery, kKey, kValue, kKeyPool, kValuePool, kPageTable, kQueryStarts, kSlotMapping, kKvLimits,
  kQueryIndices, kSinks, kKeyScales, kValueScales, kNumInputs
};
enum Output { kOutput, kKeyPoolOut, kValuePoolOut, kKeyScalesOut, kValueScalesOut, kNumOutputs };

constexpr const char* kInputNames[kNumInputs] = {
    "query", "key", "value", "key_pool", "value_pool", "page_table", "query_starts", "slot_mapping",
    "kv_limits", "query_indices", "sinks", "key_scales", "value_scales"};

// Inside this file a fault travels as this exception, at the edge it becomes a status.
struct Fault {
  int code;
  std::string message;
};

[[noreturn]] void refuse(const std::string& message) { throw Fault{ort::kInvalidArgument, message}; }

// A status that is not null becomes a Fault. The runtime's own text is not worth passing on: these
// calls fail only when the runtime is out of memory or the graph lies about a tensor.
void check(const ort::Api& api, OrtStatus* status, const char* what) {
  if (!status) return;
  api.release_status(status);
  throw Fault{ort::kFail, std::string("the runtime refused ") + what};
}

template <class Body>
OrtStatus* guarded(const ort::Api& api, Body body) {
  try {
    body();
    return nullptr;
  } catch (const Fault& fault) {
    return api.create_status(fault.code, ("PagedAttention: " + fault.message).c_str());
  } catch (const std::bad_alloc&) {
    return api.create_status(ort::kFail, "PagedAttention: out of memory");
  } catch (...) {
    return api.create_status(ort::kFail, "PagedAttention: unexpected fault");
  }
}

int element_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32: return ort::kFloat;
    case Dtype::kFloat16: return ort::kFloat16;
    case Dtype::kBfloat16: return ort::kBfloat16;
    default: return ort::kInt8;
  }
}

int64_t element_bytes(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? 4 : dtype == Dtype::kInt8 ? 1 : 2;
}

// --- attributes -------------------------------------------------------------------------------

class Attributes {
 public:
  Attributes(const ort::Api& api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  int64_t integer(const char* name) const {
    int64_t value = 0;
    if (!found(api_.attribute_int(info_, name, &value))) missing(name, "int");
    return value;
  }

  float real(const char* name) const {
    float value = 0.0f;
    if (!found(api_.attribute_float(info_, name, &value))) missing(name, "float");
    return value;
  }

  int64_t integer(const char* name, int64_t otherwise) const {
    int64_t value = otherwise;
    if (found(api_.attribute_int(info_, name, &value))) return value;
    absent(name, "int");
    return otherwise;
  }

  float real(const char* name, float otherwise) const {
    float value = otherwise;
    if (found(api_.attribute_float(info_, name, &value))) return value;
    absent(name, "float");
    return otherwise;
  }

  std::vector<float> reals(const char* name) const {
    return list<float>(name, api_.attribute_floats, "floats");
  }

  std::vector<int64_t> integers(const char* name) const {
    return list<int64_t>(name, api_.attribute_ints, "ints");
  }

 private:
  bool found(OrtStatus* status) const {
    if (status) api_.release_status(status);
    return status == nullptr;
  }

  template <class T, class Get>
  std::vector<T> list(const char* name, Get get, const char* type) const {
    size_t count = 0;
    if (!found(get(info_, name, nullptr, &count)) || count == 0) {
      absent(name, type);
      return {};
    }
    std::vector<T> values(count);
    check(api_, get(info_, name, values.data(), &count), name);
    return values;
  }

  [[noreturn]] static void missing(const char* name, const char* type) {
    refuse(std::string("attribute ") + name + " (" + type + ") is missing");
  }

  // The runtime answers "not there" for an attribute of another type: only when no getter finds it
  // does the default hold.
  void absent(const char* name, const char* type) const {
    int64_t one_int = 0;
    float one_float = 0.0f;
    size_t num_ints = 0, num_floats = 0;
    const bool any = found(api_.attribute_int(info_, name, &one_int)) ||
                     found(api_.attribute_float(info_, name, &one_float)) ||
                     (found(api_.attribute_ints(info_, name, nullptr, &num_ints)) && num_ints > 0) ||
                     (found(api_.attribute_floats(info_, name, nullptr, &num_floats)) && num_floats > 0);
    if (any) refuse(std::string("attribute ") + name + " must be of type " + type);
  }

  const ort::Api& api_;
  const OrtKernelInfo* info_;
};

int32_t narrow(int64_t value, const char* name) {
  if (value < INT32_MIN || value > INT32_MAX)
    refuse(std::string(name) + " = " + std::to_string(value) + " does not fit 32 bits");
  return int32_t(value);
}

// --- tensors ----------------------------------------------------------------------------------

struct Tensor {
  void* data = nullptr;  // null = absent
  int64_t dims[4] = {};
};

std::string shape_text(const int64_t* dims, size_t rank) {
  std::string text = "(";
  for (size_t i = 0; i < rank; ++i)
    text += (i ? ", " : "") + (dims[i] < 0 ? std::string("any") : std::to_string(dims[i]));
  return text + ")";
}

class Tensors {
 public:
  Tensors(const ort::Api& api, OrtKernelContext* context) : api_(api), context_(context) {
    check(api_, api_.input_count(context_, &num_inputs_), "the input count");
    check(api_, api_.output_count(context_, &num_outputs_), "the output count");
  }

  // The tensor with this element type and these dimensions (-1 = any), absent when optional and not
  // given.
  Tensor read(Input index, int type, std::initializer_list<int64_t> wanted, bool optional = false) {
    const OrtValue* value = nullptr;
    if (size_t(index) < num_inputs_)
      check(api_, api_.input(context_, index, &value), kInputNames[index]);
    if (!value) {
      if (!optional) refuse(std::string("input ") + kInputNames[index] + " is missing");
      return {};
    }
    OrtTensorTypeAndShapeInfo* raw = nullptr;
    check(api_, api_.tensor_info(value, &raw), kInputNames[index]);
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> info(
        raw, api_.release_tensor_info);
    int found_type = 0;
    size_t rank = 0;
    check(api_, api_.element_type(raw, &found_type), kInputNames[index]);
    check(api_, api_.rank(raw, &rank), kInputNames[index]);
    std::vector<int64_t> dims(rank);
    check(api_, api_.dims(raw, dims.data(), rank), kInputNames[index]);
    bool fits = rank == wanted.size();
    for (size_t i = 0; fits && i < rank; ++i)
      fits = wanted.begin()[i] < 0 || wanted.begin()[i] == dims[i];
    if (!fits)
      refuse(std::string(kInputNames[index]) + " has shape " + shape_text(dims.data(), rank) +
             ", must be " + shape_text(wanted.begin(), wanted.size()));
    if (found_type != type)
      refuse(std::string(kInputNames[index]) + " has element type " + std::to_string(found_type) +
             ", must be " + std::to_string(type));
    Tensor tensor;
    std::copy(dims.begin(), dims.end(), tensor.dims);
    check(api_, api_.tensor_data(const_cast<OrtValue*>(value), &tensor.data), kInputNames[index]);
    if (!tensor.data) tensor.data = empty_;  // an empty tensor is present all the same
    return tensor;
  }

  void* write(Output index, std::initializer_list<int64_t> dims, const char* name) {
    OrtValue* value = nullptr;
    if (size_t(index) < num_outputs_)
      check(api_, api_.output(context_, index, dims.begin(), dims.size(), &value), name);
    if (!value) refuse(std::string("output ") + name + " is missing");
    void* data = nullptr;
    check(api_, api_.tensor_data(value, &data), name);
    return data;
  }

  size_t num_outputs() const { return num_outputs_; }

 private:
  const ort::Api& api_;
  OrtKernelContext* context_;
  size_t num_inputs_ = 0, num_outputs_ = 0;
  int64_t empty_[1] = {};
};

// --- the kernel -------------------------------------------------------------------------------

// Scratch of one thread, kept between calls; grows only to the largest geometry seen.
float* thread_scratch(int64_t num_floats) {
  constexpr size_t kAlign = 64;
  thread_local std::vector<float> buffer;
  const size_t wanted = size_t(num_floats) + kAlign / sizeof(float);
  if (buffer.size() < wanted) buffer.resize(wanted);
  void* start = buffer.data();
  size_t space = buffer.size() * sizeof(float);
  return static_cast<float*>(
      std::align(kAlign, size_t(num_floats) * sizeof(float), start, space));
}

class Kernel {
 public:
  Kernel(const ort::Api& api, const OrtKernelInfo* info, Dtype query, Dtype pool)
      : api_(api), query_dtype_(query), pool_dtype_(pool) {
    const Attributes attributes(api, info);
    const int64_t version = attributes.integer("schema_version");
    if (version != kSchemaVersion)
      refuse("schema_version = " + std::to_string(version) + ", this library implements " +
             std::to_string(kSchemaVersion));
    geometry_.num_heads = narrow(attributes.integer("num_heads"), "num_heads");
    geometry_.num_kv_heads = narrow(attributes.integer("num_kv_heads"), "num_kv_heads");
    geometry_.head_dim = narrow(attributes.integer("head_dim"), "head_dim");
    geometry_.scale = attributes.real("scale");
    geometry_.softcap = attributes.real("softcap", 0.0f);
    geometry_.window = narrow(attributes.integer("window", 0), "window");
    const int64_t interleaved = attributes.integer("rotary_interleaved", 0);
    if (interleaved != 0 && interleaved != 1)
      refuse("rotary_interleaved = " + std::to_string(interleaved) + ", must be 0 or 1");
    geometry_.rotary_interleaved = interleaved == 1;
    read_frequencies(attributes);
    if (std::string error = validate_geometry(geometry_); !error.empty()) refuse(error);
    const char* reason = nullptr;
    kernels_ = select_kernels(&reason);
    if (!kernels_) refuse(reason);
  }

  void compute(OrtKernelContext* context) {
    // One plan per calling thread, so that one session may be run by several threads.
    thread_local Plan plan;
    Tensors tensors(api_, context);
    Call call{};
    call.geometry = geometry_;
    call.query_dtype = query_dtype_;
    call.pool_dtype = pool_dtype_;
    Pools pools;
    Tables tables{};
    bind_inputs(tensors, call, pools, tables);
    if (std::string error = validate_call(call, tables); !error.empty()) refuse(error);
    bind_outputs(tensors, call, pools);
    plan.prepare(tables, *kernels_, call);
    if (call.key) run_parallel(context, geometry_.num_kv_heads, call, plan, write_one);
    run_parallel(context, plan.tasks().size(), call, plan, attend_one);
    for (const Task& task : plan.tasks())
      if (task.num_parts > 1 && task.part == 0) kernels_->merge(call, task);
  }

 private:
  // Inputs as bound, before the outputs take their place.
  struct Pools {
    Tensor key, value, key_scales, value_scales;
  };

  struct Job {
    const Kernel* kernel;
    const Call* call;
    const Plan* plan;
    void (*one)(const Job&, size_t);
    std::atomic<bool> failed{false};
  };

  void read_frequencies(const Attributes& attributes) {
    for (const float frequency : attributes.reals("inv_freq"))
      turns_per_position_.push_back(double{frequency} / kTwoPi);
    for (const int64_t axis : attributes.integers("freq_axes"))
      freq_axes_.push_back(narrow(axis, "freq_axes"));
    if (freq_axes_.empty()) freq_axes_.assign(turns_per_position_.size(), 0);
    if (freq_axes_.size() != turns_per_position_.size())
      refuse("freq_axes has " + std::to_string(freq_axes_.size()) + " values, inv_freq has " +
             std::to_string(turns_per_position_.size()));
    geometry_.rotary_pairs = narrow(int64_t(turns_per_position_.size()), "the length of inv_freq");
    geometry_.turns_per_position = turns_per_position_.data();
    geometry_.freq_axes = freq_axes_.data();
  }

  void bind_inputs(Tensors& in, Call& call, Pools& pools, Tables& tables) const {
    const int64_t heads = geometry_.num_heads, kv_heads = geometry_.num_kv_heads;
    const int64_t dim = geometry_.head_dim;
    const int query_type = element_type(query_dtype_), pool_type = element_type(pool_dtype_);
    const Tensor query = in.read(kQuery, query_type, {-1, heads * dim});
    const int64_t tokens = query.dims[0];
    const Tensor key = in.read(kKey, query_type, {tokens, kv_heads * dim}, true);
    const Tensor value = in.read(kValue, query_type, {tokens, kv_heads * dim}, true);
    if (!key.data != !value.data) refuse("key and value must be given together or not at all");
    pools.key = in.read(kKeyPool, pool_type, {-1, kv_heads, -1, dim});
    const int64_t pages = pools.key.dims[0], page_size = pools.key.dims[2];
    if (page_size < 1) refuse("key_pool has pages of 0 slots");
    pools.value = in.read(kValuePool, pool_type, {pages, kv_heads, page_size, dim});
    const bool quantized = pool_dtype_ == Dtype::kInt8;
    pools.key_scales = in.read(kKeyScales, ort::kFloat, {pages, kv_heads, page_size}, !quantized);
    pools.value_scales = in.read(kValueScales, ort::kFloat, {pages, kv_heads, page_size}, !quantized);
    if (!quantized && (pools.key_scales.data || pools.value_scales.data))
      refuse("key_scales and value_scales are for int8 pools only");

    const Tensor table = in.read(kPageTable, ort::kInt32, {-1, -1, -1});
    if (table.dims[2] < 2)
      refuse("page_table has " + std::to_string(table.dims[2]) + " numbers per entry, must be 2 or more");
    const Tensor starts = in.read(kQueryStarts, ort::kInt32, {table.dims[0] + 1});
    tables = {static_cast<const int32_t*>(table.data), narrow(table.dims[0], "the number of rows"),
              narrow(table.dims[1], "the width of page_table"),
              narrow(table.dims[2] - 2, "the number of rope axes"),
              static_cast<const int32_t*>(starts.data)};
    call.num_tokens = narrow(tokens, "the number of tokens");
    call.num_pages = narrow(pages, "the number of pages");
    call.page_size = narrow(page_size, "the page size");
    narrow(pages * page_size, "the number of slots");
    call.query = query.data;
    call.key = key.data;
    call.value = value.data;
    call.slot_mapping = ints(in.read(kSlotMapping, ort::kInt32, {tokens}));
    call.kv_limits = ints(in.read(kKvLimits, ort::kInt32, {tokens}));
    call.query_indices = ints(in.read(kQueryIndices, ort::kInt32, {tokens}));
    call.sinks = static_cast<const float*>(in.read(kSinks, ort::kFloat, {heads}, true).data);
  }

  static const int32_t* ints(const Tensor& tensor) { return static_cast<const int32_t*>(tensor.data); }

  // Where a pool is written: the output's memory, which starts as a copy unless it is the input's.
  static void* take_over(void* output, const Tensor& input, int64_t bytes) {
    if (output != input.data && bytes > 0) std::memcpy(output, input.data, size_t(bytes));
    return output;
  }

  void bind_outputs(Tensors& out, Call& call, const Pools& pools) const {
    const int64_t dim = geometry_.head_dim;
    call.key_pool = pools.key.data;
    call.value_pool = pools.value.data;
    call.key_scales = static_cast<float*>(pools.key_scales.data);
    call.value_scales = static_cast<float*>(pools.value_scales.data);
    const bool quantized = pool_dtype_ == Dtype::kInt8;
    const size_t wanted = !call.key ? 1 : quantized ? 5 : 3;
    if (out.num_outputs() != wanted)
      refuse("the node has " + std::to_string(out.num_outputs()) + " outputs, must have " +
             std::to_string(wanted));
    call.output = out.write(kOutput, {call.num_tokens, int64_t{geometry_.num_heads} * dim}, "output");
    if (!call.key) return;
    const int64_t p = call.num_pages, h = geometry_.num_kv_heads, s = call.page_size;
    const int64_t bytes = p * h * s * dim * element_bytes(pool_dtype_);
    void* key = out.write(kKeyPoolOut, {p, h, s, dim}, "key_pool_out");
    void* value = out.write(kValuePoolOut, {p, h, s, dim}, "value_pool_out");
    call.key_pool = take_over(key, pools.key, bytes);
    call.value_pool = take_over(value, pools.value, bytes);
    if (!quantized) return;
    void* key_scales = out.write(kKeyScalesOut, {p, h, s}, "key_scales_out");
    void* value_scales = out.write(kValueScalesOut, {p, h, s}, "value_scales_out");
    const int64_t scale_bytes = p * h * s * int64_t(sizeof(float));
    call.key_scales = static_cast<float*>(take_over(key_scales, pools.key_scales, scale_bytes));
    call.value_scales = static_cast<float*>(take_over(value_scales, pools.value_scales, scale_bytes));
  }

  static void write_one(const Job& job, size_t index) {
    job.kernel->kernels_->write_head(*job.call, int32_t(index));
  }

  static void attend_one(const Job& job, size_t index) {
    float* scratch = thread_scratch(scratch_floats(job.call->geometry));
    job.kernel->kernels_->run_task(*job.call, job.plan->tasks()[index], scratch);
  }

  static void run_one(void* data, size_t index) noexcept {
    Job& job = *static_cast<Job*>(data);
    try {
      job.one(job, index);
    } catch (...) {
      job.failed = true;
    }
  }

  void run_parallel(OrtKernelContext* context, size_t total, const Call& call, const Plan& plan,
                    void (*one)(const Job&, size_t)) const {
    if (total == 0) return;
    Job job{this, &call, &plan, one};
    check(api_, api_.parallel_for(context, run_one, total, 0, &job), "to run in parallel");
    if (job.failed) throw std::bad_alloc();
  }

  const ort::Api& api_;
  Dtype query_dtype_, pool_dtype_;
  Geometry geometry_{};
  std::vector<double> turns_per_position_;
  std::vector<int32_t> freq_axes_;
  const Kernels* kernels_ = nullptr;
};

// --- registration -----------------------------------------------------------------------------

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
      constexpr Input same[] = {kQuery, kKeyPool, kValuePool, kKeyScales, kValueScales};
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
