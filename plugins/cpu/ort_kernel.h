// One node of the graph: its attributes, and a call.
//
// Owns: the binding of inputs and outputs to a Call, the runtime's thread pool, and scratch per thread.
// Guarantees: everything is checked before anything is written; calls may come from several threads at
// once. Knows nothing of how attention is computed.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "ort_io.h"
#include "plan.h"
#include "validate.h"

namespace edgekv {

inline constexpr int64_t kSchemaVersion = 2;
inline constexpr double kTwoPi = 6.283185307179586476925;

// Scratch of one thread, kept between calls; grows only to the largest geometry seen.
inline float* thread_scratch(int64_t num_floats) {
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
    if (!plan.weighs()) return;
    run_parallel(context, plan.tasks().size(), call, plan, weigh_one);
    plan.add_masses(call);
  }

 private:
  // Inputs as bound, before the outputs take their place.
  struct Pools {
    Tensor key, value, key_scales, value_scales, mass;
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
    pools.mass = in.read(kPageMass, ort::kFloat, {pages}, true);
    call.mass_weights =
        static_cast<const float*>(in.read(kMassWeights, ort::kFloat, {table.dims[0]}, true).data);
    if (!pools.mass.data != !call.mass_weights)
      refuse("page_mass and mass_weights must be given together or not at all");
    call.page_mass = static_cast<float*>(pools.mass.data);
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
    const size_t pool_outputs = quantized ? 4 : 2;
    const size_t wanted = call.page_mass ? 2 + pool_outputs : call.key ? 1 + pool_outputs : 1;
    if (out.num_outputs() != wanted)
      refuse("the node has " + std::to_string(out.num_outputs()) + " outputs, must have " +
             std::to_string(wanted));
    call.output = out.write(kOutput, {call.num_tokens, int64_t{geometry_.num_heads} * dim}, "output");
    if (call.page_mass) {
      void* mass = out.write(quantized ? kPageMassOut : kKeyScalesOut, {call.num_pages}, "page_mass_out");
      call.page_mass = static_cast<float*>(
          take_over(mass, pools.mass, call.num_pages * int64_t(sizeof(float))));
    }
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

  static void weigh_one(const Job& job, size_t index) {
    const Task& task = job.plan->tasks()[index];
    if (task.mass < 0) return;
    float* scratch = thread_scratch(scratch_floats(job.call->geometry));
    job.kernel->kernels_->weigh(*job.call, task, scratch);
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

}  // namespace edgekv
