// Where a fault's line goes: TensorRT's logger when it gave us one, else standard error; and the error
// recorder of the execution context, so that an application reads it beside the return code.
#pragma once

#include <NvInferRuntime.h>

#include <atomic>
#include <cstdio>

namespace edgekv::tensorrt {

inline std::atomic<nvinfer1::ILoggerFinder*> g_logger_finder{nullptr};  // set once, by setLoggerFinder

inline void report(const char* text, nvinfer1::IErrorRecorder* recorder) noexcept {
  char line[320];
  std::snprintf(line, sizeof(line), "edgekv::PagedAttention: %s", text);
  nvinfer1::ILoggerFinder* finder = g_logger_finder.load();
  nvinfer1::ILogger* logger = finder ? finder->findLogger() : nullptr;
  if (logger)
    logger->log(nvinfer1::ILogger::Severity::kERROR, line);
  else
    std::fprintf(stderr, "%s\n", line);
  if (recorder) recorder->reportError(nvinfer1::ErrorCode::kINVALID_ARGUMENT, line);
}

}  // namespace edgekv::tensorrt
