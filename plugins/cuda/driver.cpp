// See driver.h.

#include "driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

namespace edgekv::cuda {
namespace {

struct Opened {
  Driver driver{};
  Message reason;
  bool usable = false;
};

template <class Pointer>
bool find(void* library, Pointer& function, const char* name, Message& reason) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  return function || reason.set("the CUDA driver has no %s, it is too old", name);
}

Opened open() {
  Opened opened;
  const char* named = std::getenv("EDGEKV_CUDA_DRIVER");
  const char* path = named && *named ? named : "libcuda.so.1";
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // stays open: contexts outlive every caller
  if (!library) {
    opened.reason.set("no CUDA driver: %s", dlerror());
    return opened;
  }
  Driver& d = opened.driver;
  Message& r = opened.reason;
  if (!find(library, d.init, "cuInit", r) ||
      !find(library, d.error_string, "cuGetErrorString", r) ||
      !find(library, d.current_context, "cuCtxGetCurrent", r) ||
      !find(library, d.current_device, "cuCtxGetDevice", r) ||
      !find(library, d.device_attribute, "cuDeviceGetAttribute", r) ||
      !find(library, d.load_module, "cuModuleLoadData", r) ||
      !find(library, d.unload_module, "cuModuleUnload", r) ||
      !find(library, d.get_function, "cuModuleGetFunction", r) ||
      !find(library, d.set_function_attribute, "cuFuncSetAttribute", r) ||
      !find(library, d.allocate, "cuMemAlloc_v2", r) ||
      !find(library, d.release, "cuMemFree_v2", r) ||
      !find(library, d.copy_to_device, "cuMemcpyHtoD_v2", r) ||
      !find(library, d.wait, "cuStreamSynchronize", r) ||
      !find(library, d.copy_on_device_async, "cuMemcpyDtoDAsync_v2", r) ||
      !find(library, d.launch, "cuLaunchKernel", r))
    return opened;
  opened.usable = succeeded(d, d.init(0), "cuInit", r);
  return opened;
}

}  // namespace

const Driver* open_driver(Message& message) {
  static const Opened opened = open();
  if (opened.usable) return &opened.driver;
  message = opened.reason;
  return nullptr;
}

bool succeeded(const Driver& driver, int error, const char* what, Message& message) {
  if (error == 0) return true;
  const char* text = nullptr;
  if (driver.error_string(error, &text) != 0 || !text) text = "unknown error";
  return message.set("%s failed: %s (%d)", what, text, error);
}

}  // namespace edgekv::cuda
