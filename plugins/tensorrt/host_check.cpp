// Plays TensorRT's part: opens the plugin library, walks nodes through their whole life, and refuses to
// be satisfied with anything but the right answer.
//
//   edgekv_plugin_check LIBRARY none     no CUDA driver can be opened: what needs one must say so
//   edgekv_plugin_check LIBRARY fake     EDGEKV_CUDA_DRIVER names the fake driver: enqueue() as well
//
// Needs no TensorRT library and no GPU. The last line is one JSON object; exit code 1 if anything was
// not as it must be. See check/ for the parts.

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "check/check.h"
#include "check/life.h"

namespace edgekv::check {
long g_allocations = 0;
}

// Counted, so that a call that allocates is seen. Libraries opened later use these too.
void* operator new(size_t bytes) {
  ++edgekv::check::g_allocations;
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

int main(int argc, char** argv) {
  using namespace edgekv::check;
  const std::string mode = argc == 3 ? argv[2] : "";
  if (mode != "none" && mode != "fake") {
    std::fprintf(stderr, "usage: edgekv_plugin_check LIBRARY none|fake\n");
    return 2;
  }
  const bool driver = mode == "fake";
  Creator& creator = *open_plugin_library(argv[1]);
  for (const NodeCase& node : all_cases()) check_life(creator, node, driver);
  check_refusals(creator, driver);
  if (driver) check_enqueue(creator, open_fake_driver(std::getenv("EDGEKV_CUDA_DRIVER")));
  std::printf("{\"check\": \"plugin\", \"driver\": \"%s\", \"checks\": %d, \"failed\": %d, \"ok\": %s}\n",
              mode.c_str(), g_tally.count, g_tally.failed, g_tally.failed ? "false" : "true");
  return g_tally.failed ? 1 : 0;
}
