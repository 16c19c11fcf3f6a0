// The part of the CUDA driver's interface that the bindings use, found at run time.
//
// Owns: the declarations (so that building needs no CUDA headers) and the opened driver library.
// Guarantees: opening happens once; without a driver the answer is null and a reason, and nothing else
// in this folder fails for it, so a library that holds kernels can be loaded on any machine.
// Knows nothing of kernels. The environment variable EDGEKV_CUDA_DRIVER names another library, for
// tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "message.h"

namespace edgekv::cuda {

using Address = uint64_t;  // of device memory
struct StreamObject;
struct ModuleObject;
struct FunctionObject;
struct ContextObject;
using Stream = StreamObject*;
using Module = ModuleObject*;
using Function = FunctionObject*;
using Context = ContextObject*;

enum DeviceAttribute { kComputeMajor = 75, kComputeMinor = 76, kNumMultiprocessors = 16 };
enum FunctionAttribute { kMaxDynamicSharedBytes = 8 };

struct Driver {
  int (*init)(unsigned flags);
  int (*error_string)(int error, const char** text);
  int (*current_context)(Context*);
  int (*current_device)(int*);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*load_module)(Module*, const void* image);
  int (*unload_module)(Module);
  int (*get_function)(Function*, Module, const char* name);
  int (*set_function_attribute)(Function, int attribute, int value);
  int (*allocate)(Address*, size_t bytes);
  int (*release)(Address);
  int (*copy_to_device)(Address, const void*, size_t bytes);
  int (*wait)(Stream);
  int (*copy_on_device_async)(Address to, Address from, size_t bytes, Stream);
  int (*launch)(Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream, void** parameters,
                void** extra);
};

// The driver, or null with the reason in `message`.
const Driver* open_driver(Message& message);

// False, with `what` and the driver's own words in `message`, unless `error` is 0.
bool succeeded(const Driver& driver, int error, const char* what, Message& message);

}  // namespace edgekv::cuda
