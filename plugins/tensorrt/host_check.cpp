// Plays TensorRT's part: opens the plugin library, walks nodes through their whole life, and refuses to
// be satisfied with anything but the right answer.
//
//   edgekv_plugin_check LIBRARY none      no CUDA driver can be opened: what needs one must say so
//   edgekv_plugin_check LIBRARY fake      EDGEKV_CUDA_DRIVER names the fake driver: enqueue() as well
//   edgekv_plugin_check LIBRARY emulated  the same, and whole calls in numbers, kernels being emulated
//   edgekv_plugin_check LIBRARY device    whole calls in numbers on this machine's GPU
//
// Needs no TensorRT library and no GPU. The last line is one JSON object; exit code 1 if anything was
// not as it must be. See check/ for the parts.

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "check/check.h"
#include "check/life.h"
#include "check/parity.h"

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

namespace {

using namespace edgekv::check;

// The end of the line that starts with what was checked.
int verdict() {
  std::printf("\"checks\": %d, \"failed\": %d, \"ok\": %s}\n", g_tally.count, g_tally.failed,
              g_tally.failed ? "false" : "true");
  return g_tally.failed ? 1 : 0;
}

int run_parity(Creator& creator, const std::string& mode) {
  constexpr int kRounds = 6;
  if (mode == "emulated") open_fake_driver(std::getenv("EDGEKV_CUDA_DRIVER")).emulate(1);
  Gpu gpu;
  const std::vector<Supported> kinds = find_supported(creator);
  double worst = 0.0;
  int compared = 0;
  for (const Supported& kind : kinds) {
    if (mode == "emulated" && kind.query == DataType::kBF16) continue;  // the CPU kernels have none
    const double difference = check_parity(creator, gpu, kind, kRounds);
    worst = difference <= worst ? worst : difference;
    ++compared;
  }
  CHECK("the library has kernels for this device", compared > 0);
  std::printf("{\"check\": \"plugin\", \"driver\": \"%s\", \"device\": \"%s\", \"kinds\": %d, "
              "\"largest_difference\": %.3g, ",
              mode.c_str(), gpu.name().c_str(), compared, worst);
  return verdict();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[2] : "";
  if (mode != "none" && mode != "fake" && mode != "emulated" && mode != "device") {
    std::fprintf(stderr, "usage: edgekv_plugin_check LIBRARY none|fake|emulated|device\n");
    return 2;
  }
  Creator& creator = *open_plugin_library(argv[1]);
  if (mode == "emulated" || mode == "device") return run_parity(creator, mode);
  const bool driver = mode == "fake";
  for (const NodeCase& node : all_cases()) check_life(creator, node, driver);
  check_refusals(creator, driver);
  if (driver) check_enqueue(creator, open_fake_driver(std::getenv("EDGEKV_CUDA_DRIVER")));
  std::printf("{\"check\": \"plugin\", \"driver\": \"%s\", ", mode.c_str());
  return verdict();
}
