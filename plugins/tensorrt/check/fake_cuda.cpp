// A stand-in for libcuda.so.1: device memory is host memory, launches are written down.
//
// Owns: nothing that ships. Guarantees: it tells calls that may be captured into a CUDA graph (launches
// and copies on a stream) from those that may not. A cubin for it is a text, "symbol name:p name:i …": the
// parameters with their kinds (p pointer, i int32, f float). A real cubin is taken too, without its
// parameters.

#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "fake_cuda.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct FakeModule {
  bool real = false;
  std::string symbol;
  std::vector<std::string> parameters;  // "name:kind"
};

void read_image(const char* text, FakeModule& module) {
  std::istringstream words(text);
  words >> module.symbol;
  for (std::string word; words >> word;) module.parameters.push_back(word);
}

FakeState g_state;
int g_arch = 87, g_sms = 8;
std::string g_failing;
int g_context;  // its address is the context

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

EXPORT int cuInit(unsigned) { return 0; }
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
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  g_state.copies[g_state.num_copies++ % 16] = {to, from, bytes, stream};
  return 0;
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
  return 0;
}
