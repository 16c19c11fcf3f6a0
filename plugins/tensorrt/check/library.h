// The plugin library and, in tests, the fake driver, opened as TensorRT opens them.
#pragma once

#include <NvInferRuntime.h>

#include <memory>
#include <string>

#include "fake_cuda.h"
#include "node_case.h"

namespace edgekv::check {

using Creator = nvinfer1::IPluginCreatorV3One;

// Opens the library the way IPluginRegistry::loadLibrary does: both entry points must be there.
Creator* open_plugin_library(const char* path);

struct FakeDriver {
  FakeState* state = nullptr;
  FakeResetFunction reset = nullptr;
  FakeDeviceFunction device = nullptr;
  FakeFailFunction fail = nullptr;
  FakeEmulateFunction emulate = nullptr;
};

// The driver that EDGEKV_CUDA_DRIVER names.
FakeDriver open_fake_driver(const char* path);

// A plugin and its three capabilities. TensorRT deletes what it made through IPluginV3.
struct Held {
  explicit Held(nvinfer1::IPluginV3* made);

  std::unique_ptr<nvinfer1::IPluginV3> plugin;
  nvinfer1::IPluginV3OneCore* core = nullptr;
  nvinfer1::IPluginV3OneBuildV2* build = nullptr;
  nvinfer1::IPluginV3OneRuntime* runtime = nullptr;
};

Held create(Creator& creator, const Fields& fields);

int32_t configure(Held& held, const Described& described);
int32_t change_shape(Held& held, const Described& described);
size_t workspace_size(Held& held, const Described& described);

}  // namespace edgekv::check
