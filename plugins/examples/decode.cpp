// Runs an exported decoder through TensorRT in C++: docs/embedding.md explains it step by step.
//
//   decode PLUGIN.so ENGINE embed.npy NUM_PAGES TOKEN...
//
// Prints the ids of 32 tokens that follow the given ones, greedily.

#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "embed.h"
#include "page_table.h"

namespace {

using edgekv::example::Embeddings;
using edgekv::example::PageTable;
using edgekv::example::StepTables;

constexpr int32_t kNewTokens = 32;

class Logger final : public nvinfer1::ILogger {
  void log(Severity severity, const char* text) noexcept override {
    if (severity <= Severity::kWARNING) std::fprintf(stderr, "%s\n", text);
  }
};

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + " failed");
}

void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

// Device memory that goes with its owner.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&memory_, std::max<size_t>(bytes, 256)), "cudaMalloc");
  }
  ~Buffer() { cudaFree(memory_); }
  Buffer(Buffer&& other) noexcept : memory_(other.memory_), bytes_(other.bytes_) {
    other.memory_ = nullptr;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* get() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  size_t bytes_;
};

size_t element_bytes(nvinfer1::DataType type) {
  switch (type) {
    case nvinfer1::DataType::kINT8: return 1;
    case nvinfer1::DataType::kHALF:
    case nvinfer1::DataType::kBF16: return 2;
    case nvinfer1::DataType::kINT64: return 8;
    default: return 4;
  }
}

std::vector<char> read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  require(bool(file), std::string("cannot read ") + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// An engine with its pools, and one context per optimisation profile.
class Decoder {
 public:
  Decoder(nvinfer1::IRuntime& runtime, const std::vector<char>& engine, int32_t num_pages)
      : engine_(runtime.deserializeCudaEngine(engine.data(), engine.size())), num_pages_(num_pages) {
    require(engine_ != nullptr, "the engine cannot be read: see the lines above");
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    for (int32_t profile = 0; profile < engine_->getNbOptimizationProfiles(); ++profile) {
      contexts_.emplace_back(engine_->createExecutionContext());
      require(contexts_.back() && contexts_.back()->setOptimizationProfileAsync(profile, stream_),
              "no execution context");
    }
    make_pools();
  }
  ~Decoder() { cudaStreamDestroy(stream_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  int32_t page_size() const { return int32_t(most("key_pool.0").d[2]); }
  int32_t max_columns() const { return int32_t(most("page_table").d[1]); }

  // One step; returns the logits of its last token.
  const std::vector<float>& run(const std::vector<float>& embeds, int32_t hidden,
                                const StepTables& step) {
    const auto tokens = int64_t(step.slot_mapping.size());
    nvinfer1::IExecutionContext& context = context_for(tokens);
    const std::vector<int64_t> last{tokens - 1};
    uploads_.clear();
    give(context, "inputs_embeds", embeds, {tokens, hidden});
    give(context, "position_ids", step.position_ids, {tokens});
    give(context, "logit_indices", last, {1});
    give(context, "page_table", step.page_table, {1, int64_t(step.page_table.size()) / 3, 3});
    give(context, "query_starts", step.query_starts, {2});
    give(context, "slot_mapping", step.slot_mapping, {tokens});
    give(context, "kv_limits", step.kv_limits, {tokens});
    give(context, "query_indices", step.query_indices, {tokens});
    bind_pools(context);
    if (has("mass_weights")) give(context, "mass_weights", std::vector<float>{0.0f}, {1});
    logits_.resize(size_t(engine_->getTensorShape("logits").d[1]));
    const Buffer logits(logits_.size() * sizeof(float));
    require(context.setTensorAddress("logits", logits.get()), "logits cannot be bound");
    if (has("queries")) {  // what recall asks for; an output needs memory, read or not
      uploads_.emplace_back(size_t(tokens * engine_->getTensorShape("queries").d[1]) * sizeof(float));
      require(context.setTensorAddress("queries", uploads_.back().get()), "queries cannot be bound");
    }
    require(context.enqueueV3(stream_), "the step failed: see the lines above");
    check(cudaMemcpyAsync(logits_.data(), logits.get(), logits_.size() * sizeof(float),
                          cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return logits_;
  }

 private:
  struct Pool {
    std::string input, output;
    nvinfer1::Dims shape;
    Buffer memory;
  };

  bool has(const std::string& name) const {
    for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i)
      if (name == engine_->getIOTensorName(i)) return true;
    return false;
  }

  nvinfer1::Dims most(const char* name) const {
    return engine_->getProfileShape(name, 0, nvinfer1::OptProfileSelector::kMAX);
  }

  // Every tensor NAME.N that has an output NAME_out.N is a pool: allocated once, bound on both sides.
  void make_pools() {
    for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      const std::string name = engine_->getIOTensorName(i);
      const size_t dot = std::min(name.find('.'), name.size());
      const std::string output = name.substr(0, dot) + "_out" + name.substr(dot);
      if (!has(output)) continue;
      nvinfer1::Dims shape = most(name.c_str());
      shape.d[0] = num_pages_;
      size_t bytes = element_bytes(engine_->getTensorDataType(name.c_str()));
      for (int32_t k = 0; k < shape.nbDims; ++k) bytes *= size_t(shape.d[k]);
      pools_.push_back({name, output, shape, Buffer(bytes)});
    }
    require(!pools_.empty(), "the engine has no pools, it is not a decoder of edgekv's");
  }

  void bind_pools(nvinfer1::IExecutionContext& context) const {
    for (const Pool& pool : pools_)
      require(context.setInputShape(pool.input.c_str(), pool.shape) &&
                  context.setTensorAddress(pool.input.c_str(), pool.memory.get()) &&
                  context.setTensorAddress(pool.output.c_str(), pool.memory.get()),
              pool.input + " cannot be bound");
  }

  nvinfer1::IExecutionContext& context_for(int64_t tokens) {
    for (int32_t i = 0; i < int32_t(contexts_.size()); ++i) {
      const auto bound = [&](nvinfer1::OptProfileSelector which) {
        return engine_->getProfileShape("slot_mapping", i, which).d[0];
      };
      if (bound(nvinfer1::OptProfileSelector::kMIN) <= tokens &&
          tokens <= bound(nvinfer1::OptProfileSelector::kMAX))
        return *contexts_[size_t(i)];
    }
    throw std::runtime_error("no profile takes " + std::to_string(tokens) + " tokens");
  }

  // Uploads an input and binds it. The host array must live until the step has run; it does.
  template <class Number>
  void give(nvinfer1::IExecutionContext& context, const char* name, const std::vector<Number>& values,
            std::initializer_list<int64_t> shape) {
    nvinfer1::Dims dims{};
    for (const int64_t size : shape) dims.d[dims.nbDims++] = size;
    uploads_.emplace_back(values.size() * sizeof(Number));
    check(cudaMemcpyAsync(uploads_.back().get(), values.data(), uploads_.back().bytes(),
                          cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    require(context.setInputShape(name, dims) &&
                context.setTensorAddress(name, uploads_.back().get()),
            std::string(name) + " cannot be bound");
  }

  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  int32_t num_pages_;
  cudaStream_t stream_ = nullptr;
  std::vector<std::unique_ptr<nvinfer1::IExecutionContext>> contexts_;
  std::vector<Pool> pools_;
  std::vector<Buffer> uploads_;
  std::vector<float> logits_;
};

int run(char** argv, int argc) {
  Logger logger;
  require(getPluginRegistry()->loadLibrary(argv[1]) != nullptr, "the plugin cannot be loaded");
  const std::unique_ptr<nvinfer1::IRuntime> runtime(nvinfer1::createInferRuntime(logger));
  require(runtime != nullptr, "TensorRT gives no runtime: see the lines above");
  Decoder decoder(*runtime, read_file(argv[2]), std::atoi(argv[4]));
  const Embeddings embeddings(argv[3]);
  PageTable table(std::atoi(argv[4]), decoder.page_size(), decoder.max_columns());
  std::vector<int32_t> tokens;
  for (int i = 5; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
  StepTables step;
  bool prompt = true;
  for (int32_t i = 0; i < kNewTokens; ++i) {
    while (!table.append(int32_t(tokens.size()), prompt, step))
      require(table.drop_oldest(1), "the prompt does not fit the pool");
    prompt = false;
    const std::vector<float>& logits = decoder.run(embeddings.rows(tokens), embeddings.width(), step);
    tokens = {int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin())};
    std::printf("%d%c", tokens[0], i + 1 == kNewTokens ? '\n' : ' ');
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: decode PLUGIN.so ENGINE embed.npy NUM_PAGES TOKEN...\n");
    return 2;
  }
  try {
    return run(argv, argc);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 1;
  }
}
