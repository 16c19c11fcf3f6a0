// Counting what was checked, and hearing what the plugin says.
#pragma once

#include <NvInferRuntime.h>

#include <cstdio>
#include <string>
#include <vector>

namespace edgekv::check {

struct Tally {
  int count = 0, failed = 0;
};
inline Tally g_tally;

inline void that(bool ok, const std::string& where, const char* what, int line) {
  ++g_tally.count;
  if (ok) return;
  ++g_tally.failed;
  std::fprintf(stderr, "line %d: %s: not so: %s\n", line, where.c_str(), what);
}

// CHECK(where, condition): `where` names the case.
#define CHECK(where, condition) ::edgekv::check::that((condition), (where), #condition, __LINE__)

// The last line that reached TensorRT's logger.
class Log final : public nvinfer1::ILogger, public nvinfer1::ILoggerFinder {
 public:
  void log(Severity severity, const char* text) noexcept override {
    if (severity == Severity::kERROR) last_ = text;
  }
  nvinfer1::ILogger* findLogger() override { return this; }
  // What was said since the last time, which is then forgotten.
  std::string take() {
    std::string text = std::move(last_);
    last_.clear();
    return text;
  }

 private:
  std::string last_;
};
inline Log g_log;

// CHECK_REFUSED(where, expression, part): the expression is true and the line said contains `part`.
#define CHECK_REFUSED(where, condition, part)                                                    \
  do {                                                                                           \
    ::edgekv::check::g_log.take();                                                               \
    const bool refused = (condition);                                                            \
    const std::string said = ::edgekv::check::g_log.take();                                      \
    ::edgekv::check::that(refused, (where), #condition, __LINE__);                               \
    ::edgekv::check::that(said.find(part) != std::string::npos, (where),                         \
                          ("the line says \"" + std::string(part) + "\", it was \"" + said +     \
                           "\"").c_str(),                                                        \
                          __LINE__);                                                             \
  } while (false)

class Recorder final : public nvinfer1::IErrorRecorder {
 public:
  int32_t getNbErrors() const noexcept override { return int32_t(lines_.size()); }
  nvinfer1::ErrorCode getErrorCode(int32_t) const noexcept override {
    return nvinfer1::ErrorCode::kINVALID_ARGUMENT;
  }
  ErrorDesc getErrorDesc(int32_t index) const noexcept override { return lines_[index].c_str(); }
  bool hasOverflowed() const noexcept override { return false; }
  void clear() noexcept override { lines_.clear(); }
  bool reportError(nvinfer1::ErrorCode, ErrorDesc text) noexcept override {
    lines_.emplace_back(text);
    return true;
  }
  RefCount incRefCount() noexcept override { return ++references_; }
  RefCount decRefCount() noexcept override { return --references_; }

 private:
  std::vector<std::string> lines_;
  RefCount references_ = 0;
};

class ResourceContext final : public nvinfer1::IPluginResourceContext {
 public:
  nvinfer1::IGpuAllocator* getGpuAllocator() const noexcept override { return nullptr; }
  nvinfer1::IErrorRecorder* getErrorRecorder() const noexcept override { return &recorder_; }
  Recorder& recorder() { return recorder_; }

 private:
  mutable Recorder recorder_;
};

// Calls of operator new in this process; counted in host_check.cpp.
extern long g_allocations;

}  // namespace edgekv::check
