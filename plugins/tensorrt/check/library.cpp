// See library.h.

#include "library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "check.h"

namespace edgekv::check {
namespace {

void* open(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library) return library;
  std::fprintf(stderr, "%s\n", dlerror());
  std::exit(1);
}

template <class Function>
Function find(void* library, const char* name) {
  void* address = dlsym(library, name);
  if (address) return reinterpret_cast<Function>(address);
  std::fprintf(stderr, "%s\n", dlerror());
  std::exit(1);
}

template <class Capability>
Capability* capability(nvinfer1::IPluginV3& plugin, nvinfer1::PluginCapabilityType type) {
  return static_cast<Capability*>(plugin.getCapabilityInterface(type));
}

}  // namespace

Creator* open_plugin_library(const char* path) {
  void* library = open(path);
  find<void (*)(nvinfer1::ILoggerFinder*)>(library, "setLoggerFinder")(&g_log);
  using GetCreators = nvinfer1::IPluginCreatorInterface* const* (*)(int32_t&);
  int32_t count = 0;
  nvinfer1::IPluginCreatorInterface* const* creators =
      find<GetCreators>(library, "getCreators")(count);
  CHECK("library", count == 1 && creators && creators[0]);
  CHECK("library", std::string(creators[0]->getInterfaceInfo().kind) == "PLUGIN CREATOR_V3ONE");
  return static_cast<Creator*>(creators[0]);
}

FakeDriver open_fake_driver(const char* path) {
  void* library = open(path);
  return {find<FakeStateFunction>(library, "fake_cuda_state")(),
          find<FakeResetFunction>(library, "fake_cuda_reset"),
          find<FakeDeviceFunction>(library, "fake_cuda_device"),
          find<FakeFailFunction>(library, "fake_cuda_fail"),
          find<FakeEmulateFunction>(library, "fake_cuda_emulate")};
}

Held::Held(nvinfer1::IPluginV3* made) : plugin(made) {
  if (!made) return;
  core = capability<nvinfer1::IPluginV3OneCore>(*made, nvinfer1::PluginCapabilityType::kCORE);
  build = capability<nvinfer1::IPluginV3OneBuildV2>(*made, nvinfer1::PluginCapabilityType::kBUILD);
  runtime = capability<nvinfer1::IPluginV3OneRuntime>(*made, nvinfer1::PluginCapabilityType::kRUNTIME);
}

Held create(Creator& creator, const Fields& fields) {
  const nvinfer1::PluginFieldCollection collection = fields.collection();
  return Held(creator.createPlugin("node", &collection, nvinfer1::TensorRTPhase::kBUILD));
}

int32_t configure(Held& held, const Described& d) {
  const auto in = d.dynamic_in();
  const auto out = d.dynamic_out();
  return held.build->configurePlugin(in.data(), d.num_inputs(), out.data(), d.num_outputs());
}

int32_t change_shape(Held& held, const Described& d) {
  return held.runtime->onShapeChange(d.in.data(), d.num_inputs(), d.out.data(), d.num_outputs());
}

size_t workspace_size(Held& held, const Described& d) {
  const auto in = d.dynamic_in();
  const auto out = d.dynamic_out();
  return held.build->getWorkspaceSize(in.data(), d.num_inputs(), out.data(), d.num_outputs());
}

}  // namespace edgekv::check
