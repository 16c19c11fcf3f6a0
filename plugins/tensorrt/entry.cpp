// What TensorRT finds in the library: the creator, and the two functions that
// IPluginRegistry::loadLibrary (trtexec --staticPlugins, --dynamicPlugins) looks up by name.
//
// Owns: the creator. Guarantees: no exception leaves it; a definition that is refused gives null and
// one reported line. Nothing is registered by loading: the library needs no symbol of TensorRT's, so it
// can be opened where TensorRT is not.

#include <exception>

#include "plugin.h"
#include "report.h"

namespace edgekv::tensorrt {
namespace {

class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  nvinfer1::IPluginV3* createPlugin(const char*, const nvinfer1::PluginFieldCollection* fields,
                                    nvinfer1::TensorRTPhase phase) noexcept override {
    try {
      Definition definition;
      const std::string error = !fields ? "no fields" : read(*fields, phase, definition);
      if (error.empty()) return new Plugin(std::move(definition), phase);
      report(error.c_str(), nullptr);
    } catch (const std::exception& fault) {
      report(fault.what(), nullptr);
    }
    return nullptr;
  }

  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return &field_names(); }
  const char* getPluginName() const noexcept override { return cuda::kOperatorName; }
  const char* getPluginVersion() const noexcept override { return cuda::kOperatorVersionText; }
  const char* getPluginNamespace() const noexcept override { return cuda::kOperatorDomain; }

 private:
  static std::string read(const nvinfer1::PluginFieldCollection& fields,
                          nvinfer1::TensorRTPhase phase, Definition& definition) {
    if (phase == nvinfer1::TensorRTPhase::kBUILD) return read_fields(fields, definition);
    if (fields.nbFields != 1 || std::string(fields.fields[0].name) != kBytesField)
      return std::string("an engine gives one field, ") + kBytesField;
    return read_bytes(fields.fields[0].data, size_t(fields.fields[0].length), definition);
  }
};

}  // namespace
}  // namespace edgekv::tensorrt

extern "C" __attribute__((visibility("default"))) void setLoggerFinder(
    nvinfer1::ILoggerFinder* finder) {
  edgekv::tensorrt::g_logger_finder = finder;
}

extern "C" __attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const* getCreators(
    int32_t& count) {
  static edgekv::tensorrt::Creator creator;
  static nvinfer1::IPluginCreatorInterface* const creators[] = {&creator};
  count = 1;
  return creators;
}
