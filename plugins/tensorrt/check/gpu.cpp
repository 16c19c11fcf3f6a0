// See gpu.h.

#include "gpu.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace edgekv::check {
namespace {

constexpr int kThreadLocalCapture = 1;

[[noreturn]] void give_up(const char* text) {
  std::fprintf(stderr, "%s\n", text);
  std::exit(1);
}

}  // namespace

void Gpu::must(int error, const char* what) const {
  if (error == 0) return;
  std::fprintf(stderr, "%s failed: error %d\n", what, error);
  std::exit(1);
}

template <class Function>
Function Gpu::find(const char* name) const {
  void* address = dlsym(library_, name);
  if (!address) give_up(dlerror());
  return reinterpret_cast<Function>(address);
}

Gpu::Gpu() {
  const char* named = std::getenv("EDGEKV_CUDA_DRIVER");
  library_ = dlopen(named && *named ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library_) give_up(dlerror());
  int device = 0;
  void* context = nullptr;
  char name[128] = "";
  must(find<int (*)(unsigned)>("cuInit")(0), "cuInit");
  must(find<int (*)(int*, int)>("cuDeviceGet")(&device, 0), "cuDeviceGet");
  must(find<int (*)(char*, int, int)>("cuDeviceGetName")(name, sizeof(name), device), "cuDeviceGetName");
  must(find<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device),
       "cuDevicePrimaryCtxRetain");
  must(find<int (*)(void*)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
  must(find<int (*)(void**, unsigned)>("cuStreamCreate")(&stream_, 1), "cuStreamCreate");
  name_ = name;
}

void* Gpu::allocate(size_t bytes) {
  uint64_t address = 0;
  must(find<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2")(&address, bytes ? bytes : 256), "cuMemAlloc");
  blocks_.push_back(address);
  return reinterpret_cast<void*>(uintptr_t(address));
}

void Gpu::free_all() {
  for (const uint64_t address : blocks_)
    must(find<int (*)(uint64_t)>("cuMemFree_v2")(address), "cuMemFree");
  blocks_.clear();
}

void Gpu::upload(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  must(find<int (*)(uint64_t, const void*, size_t)>("cuMemcpyHtoD_v2")(uintptr_t(to), from, bytes),
       "cuMemcpyHtoD");
}

void Gpu::download(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  must(find<int (*)(void*, uint64_t, size_t)>("cuMemcpyDtoH_v2")(to, uintptr_t(from), bytes),
       "cuMemcpyDtoH");
}

void Gpu::wait() { must(find<int (*)(void*)>("cuStreamSynchronize")(stream_), "cuStreamSynchronize"); }

void Gpu::begin_capture() {
  must(find<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream_, kThreadLocalCapture),
       "cuStreamBeginCapture");
}

void Gpu::launch_capture() {
  void *graph = nullptr, *ready = nullptr;
  must(find<int (*)(void*, void**)>("cuStreamEndCapture")(stream_, &graph), "cuStreamEndCapture");
  must(find<int (*)(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(&ready, graph, 0),
       "cuGraphInstantiate");
  must(find<int (*)(void*, void*)>("cuGraphLaunch")(ready, stream_), "cuGraphLaunch");
  wait();
  must(find<int (*)(void*)>("cuGraphExecDestroy")(ready), "cuGraphExecDestroy");
  must(find<int (*)(void*)>("cuGraphDestroy")(graph), "cuGraphDestroy");
}

}  // namespace edgekv::check
