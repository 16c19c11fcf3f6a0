// A stand-in for libcuda.so.1: device memory is host memory, launches are written down.
//
// Owns: nothing that ships. Guarantees: it tells calls that may be captured into a CUDA graph (launches
// and copies on a stream) from those that may not. A cubin for it is a text, "symbol d=64 s=16 q=float16
// p=int8 name:p name:i …": what it was compiled for, and its parameters with their kinds (p pointer,
// i int32, f float). A real cubin is taken too, without its parameters.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "emulate.h"
#include "fake_cuda.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct FakeModule {
  bool real = false;
  std::string symbol;
  edgekv::check::Constants constants;
  std::vector<std::string> parameters;  // "name:kind"
};

void read_image(const char* text, FakeModule& module) {
  std::istringstream words(text);
  words >> module.symbol;
  edgekv::check::Constants& c = module.constants;
  c.kernel = module.symbol;
  for (std::string word; words >> word;) {
    if (word.compare(0, 2, "d=") == 0) c.head_dim = std::atoi(word.c_str() + 2);
    else if (word.compare(0, 2, "s=") == 0) c.page_size = std::atoi(word.c_str() + 2);
    else if (word.compare(0, 2, "q=") == 0) c.query_dtype = word.substr(2);
    else if (word.compare(0, 2, "p=") == 0) c.pool_dtype = word.substr(2);
    else module.parameters.push_back(word);
  }
}

FakeState g_state;
int g_arch = 87, g_sms = 8;
std::string g_failing;
int g_context, g_stream;  // their addresses are the context and a stream
bool g_emulate = false, g_capturing = false;
std::vector<std::function<int()>> g_captured;  // the one graph

// Does the work now, or when the graph that is being captured is launched. Now it allocates nothing, so
// that whoever counts allocations counts none of ours.
template <class Work>
int enqueue(const Work& work) {
  if (!g_capturing) return work();
  g_captured.push_back(work);
  return 0;
}

int compute(const FakeModule& module, const FakeLaunch& launch) {
  const bool done = edgekv::check::emulate(module.constants, [&](const char* name) -> uint64_t {
    for (int i = 0; i < launch.num_parameters; ++i)
      if (std::strcmp(launch.names[i], name) == 0) return launch.parameters[i];
    std::fprintf(stderr, "kernel %s has no parameter %s\n", launch.symbol, name);
    std::abort();
  });
  return done ? 0 : 801;  // not supported
}

// 700 when the test wants this function to fail, once.
int answer(const char* name) {
  if (g_failing != name) return 0;
  g_failing.clear();
  return 700;
}

int waiting(const char* name) {
  ++g_state.num_waiting;
  return answer(name);
}

}  // namespace

EXPORT FakeState* fake_cuda_state() { return &g_state; }
EXPORT void fake_cuda_reset() { g_state.num_launches = g_state.num_copies = g_state.num_waiting = 0; }
EXPORT void fake_cuda_device(int arch, int sms) { g_arch = arch, g_sms = sms; }
EXPORT void fake_cuda_fail(const char* name) { g_failing = name; }

EXPORT void fake_cuda_emulate(int on) { g_emulate = on != 0; }

EXPORT int cuInit(unsigned) { return 0; }
EXPORT int cuDeviceGet(int* device, int) {
  *device = 0;
  return 0;
}
EXPORT int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, size_t(size), "a stand-in");
  return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &g_context;
  return 0;
}
EXPORT int cuCtxSetCurrent(void*) { return 0; }
EXPORT int cuStreamCreate(void** stream, unsigned) {
  *stream = &g_stream;
  return 0;
}
EXPORT int cuStreamBeginCapture_v2(void*, int) {
  g_capturing = true;
  g_captured.clear();
  return 0;
}
EXPORT int cuStreamEndCapture(void*, void** graph) {
  g_capturing = false;
  *graph = &g_captured;
  return 0;
}
EXPORT int cuGraphInstantiateWithFlags(void** ready, void* graph, unsigned long long) {
  *ready = graph;
  return 0;
}
EXPORT int cuGraphLaunch(void*, void*) {
  for (const std::function<int()>& work : g_captured)
    if (const int error = work()) return error;
  return 0;
}
EXPORT int cuGraphExecDestroy(void*) { return 0; }
EXPORT int cuGraphDestroy(void*) { return 0; }
EXPORT int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
EXPORT int cuGetErrorString(int error, const char** text) {
  *text = error == 700 ? "a fault asked for" : "no such fault";
  return 0;
}
EXPORT int cuCtxGetCurrent(void** context) {
  *context = g_arch ? &g_context : nullptr;
  return answer("cuCtxGetCurrent");
}
EXPORT int cuCtxGetDevice(int* device) {
  *device = 0;
  return 0;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? g_arch / 10 : attribute == 76 ? g_arch % 10 : g_sms;
  return 0;
}
EXPORT int cuModuleLoadData(void** module, const void* image) {
  if (const int error = waiting("cuModuleLoadData")) return error;
  auto* made = new FakeModule;
  made->real = std::memcmp(image, "\177ELF", 4) == 0;
  if (!made->real) read_image(static_cast<const char*>(image), *made);
  ++g_state.live_modules;
  *module = made;
  return 0;
}
EXPORT int cuModuleUnload(void* module) {
  delete static_cast<FakeModule*>(module);
  --g_state.live_modules;
  return waiting("cuModuleUnload");
}
EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  auto* made = static_cast<FakeModule*>(module);
  if (made->real) made->symbol = name;
  if (made->symbol != name) return 500;
  *function = made;
  return answer("cuModuleGetFunction");
}
EXPORT int cuFuncSetAttribute(void*, int, int) { return waiting("cuFuncSetAttribute"); }
EXPORT int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  if (const int error = waiting("cuMemAlloc")) return error;
  *address = reinterpret_cast<uintptr_t>(::operator new(bytes, std::align_val_t{256}));
  ++g_state.live_allocations;
  return 0;
}
EXPORT int cuMemFree_v2(uint64_t address) {
  ::operator delete(reinterpret_cast<void*>(address), std::align_val_t{256});
  --g_state.live_allocations;
  return waiting("cuMemFree");
}
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return waiting("cuMemcpyHtoD");
}
EXPORT int cuStreamSynchronize(void*) { return waiting("cuStreamSynchronize"); }
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  if (const int error = answer("cuMemcpyDtoDAsync")) return error;
  g_state.copies[g_state.num_copies++ % 16] = {to, from, bytes, stream};
  return enqueue([to, from, bytes] {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return 0;
  });
}
EXPORT int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void* stream, void** parameters, void**) {
  if (const int error = answer("cuLaunchKernel")) return error;
  const auto* made = static_cast<FakeModule*>(function);
  FakeLaunch& launch = g_state.launches[g_state.num_launches++ % 16];
  launch = {};
  std::strncpy(launch.symbol, made->symbol.c_str(), sizeof(launch.symbol) - 1);
  const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  std::memcpy(launch.grid, grid, sizeof(grid));
  std::memcpy(launch.block, block, sizeof(block));
  launch.shared_bytes = shared;
  launch.stream = stream;
  launch.num_parameters = made->real ? -1 : 0;
  for (const std::string& parameter : made->parameters) {
    const int i = launch.num_parameters++;
    std::strncpy(launch.names[i], parameter.substr(0, parameter.find(':')).c_str(),
                 sizeof(launch.names[i]) - 1);
    std::memcpy(&launch.parameters[i], parameters[i], parameter.back() == 'p' ? 8 : 4);
  }
  if (!g_emulate || made->real) return 0;
  return enqueue([made, launch] { return compute(*made, launch); });
}
