// enqueue() against the fake driver: what is launched, with which parameters, in which memory.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "../../cuda/launch_plan.h"
#include "check.h"
#include "life.h"

namespace edgekv::check {
namespace {

using cuda::Input;

struct Workspace {
  explicit Workspace(size_t size) : bytes(size), memory((size + 511) / 256 * 256) {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    start = memory.data() + (256 - address % 256) % 256;
  }
  bool holds(uint64_t from, int64_t length) const {
    const auto first = reinterpret_cast<uintptr_t>(start);
    return from >= first && from + uint64_t(length) <= first + bytes;
  }
  size_t bytes;
  std::vector<char> memory;
  char* start;
};

// A plugin attached to a context, as an engine built for `largest` would give it, with its workspace.
struct Running {
  Running(Creator& creator, const NodeCase& largest)
      : built(create(creator, Fields(largest))), workspace(workspace_of(built, largest)),
        read(through_an_engine(creator, built)), attached(read.runtime->attachToContext(&context)) {}

  static size_t workspace_of(Held& built, const NodeCase& largest) {
    const Described d(largest);
    CHECK(largest.name(), configure(built, d) == 0);
    return workspace_size(built, d);
  }

  int32_t enqueue(const Described& d, const Memory& memory) {
    return attached.runtime->enqueue(d.in.data(), d.out.data(), memory.inputs.data(),
                                     memory.outputs.data(), workspace.start, kStream);
  }

  static inline const cudaStream_t kStream = reinterpret_cast<cudaStream_t>(0x1230);
  ResourceContext context;
  Held built;
  Workspace workspace;
  Held read, attached;
};

uint64_t parameter(const std::string& where, const FakeLaunch& launch, const std::string& name) {
  for (int i = 0; i < launch.num_parameters; ++i)
    if (name == launch.names[i]) return launch.parameters[i];
  CHECK(where + ", " + launch.symbol + " has no parameter " + name, false);
  return 0;
}

float real(uint64_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Every parameter of a launch is what the call says, whatever order the kernel takes them in.
void check_parameters(const std::string& where, const FakeLaunch& launch, const NodeCase& n,
                      const Described& d, const Memory& memory, const Workspace& workspace) {
  const auto input = [&](Input i) {
    const int32_t place = d.place(i);
    if (place < 0) return uint64_t{0};
    for (size_t o = 1; o < d.outputs.size(); ++o)  // pools are where they are written
      if (constexpr Input kModels[] = {cuda::kQuery, cuda::kKeyPool, cuda::kValuePool, cuda::kKeyScales,
                                       cuda::kValueScales, cuda::kPageMass};
          kModels[d.outputs[o]] == i)
        return uint64_t(reinterpret_cast<uintptr_t>(memory.outputs[o]));
    return uint64_t(reinterpret_cast<uintptr_t>(memory.inputs[place]));
  };
  const std::vector<std::pair<std::string, int64_t>> numbers = {
      {"num_tokens", n.tokens}, {"num_rows", n.rows},         {"num_columns", n.columns},
      {"table_stride", 2 + n.axes}, {"num_heads", n.heads},   {"num_kv_heads", n.kv_heads},
      {"rotary_pairs", n.pairs},    {"interleaved", 0},       {"window", n.window},
      {"has_sinks", n.sinks},       {"has_lse", n.mass},      {"null", 0}};
  for (int i = 0; i < launch.num_parameters; ++i) {
    const std::string name = launch.names[i], here = where + ", " + launch.symbol + ", " + name;
    const uint64_t value = launch.parameters[i];
    for (const auto& [known, number] : numbers)
      if (name == known) CHECK(here, int64_t(value) == number);
    for (int32_t k = 0; k < cuda::kNumInputs; ++k)
      if (name == cuda::kInputNames[k]) CHECK(here, value == input(Input(k)));
    if (name == "output")
      CHECK(here, value == uint64_t(reinterpret_cast<uintptr_t>(memory.outputs[0])));
    if (name == "scale") CHECK(here, real(value) == 0.125f);
    if (name == "softcap") CHECK(here, real(value) == n.softcap);
    if (name == "turns" || name == "freq_axes") CHECK(here, (value != 0) == (n.pairs > 0));
    if (name == "starts") CHECK(here, workspace.holds(value, 4 * n.rows * (n.columns + 1)));
    if (name == "run_ends" && n.columns > 0)
      CHECK(here, workspace.holds(value, 4 * n.rows * n.columns));
    if (name == "lse" && n.mass) CHECK(here, workspace.holds(value, 4 * n.tokens * n.heads));
  }
}

// The parts of the split, which must lie inside the workspace the engine was promised.
void check_splits(const std::string& where, const FakeLaunch& attend, const NodeCase& n,
                  const Workspace& workspace) {
  const auto splits = int64_t(parameter(where, attend, "num_splits"));
  CHECK(where, splits == attend.grid[2]);
  const uint64_t stats = parameter(where, attend, "stats"), partial = parameter(where, attend, "partial");
  if (splits == 1) {
    CHECK(where, stats == 0 && partial == 0);
    return;
  }
  const int64_t rows = splits * n.tokens * n.heads;
  CHECK(where, workspace.holds(stats, 8 * rows) && workspace.holds(partial, 4 * rows * n.dim));
  CHECK(where, stats + uint64_t(8 * rows) <= partial);
}

void check_launches(const std::string& where, const FakeState& state, const NodeCase& n,
                    const Described& d, const Memory& memory, const Workspace& workspace) {
  if (n.tokens == 0 || n.rows == 0) {
    CHECK(where, state.num_launches == 0);
    return;
  }
  CHECK(where, state.num_launches >= 2);
  if (state.num_launches < 2) return;
  const FakeLaunch& attend = state.launches[1];
  const bool splits = attend.grid[2] > 1, mass = n.mass && n.columns > 0;
  std::vector<std::string> wanted = {"prepare", "attend"};
  if (splits) wanted.push_back("combine");
  if (mass) wanted.push_back("mass");
  CHECK(where, state.num_launches == int(wanted.size()));
  const int count = std::min(state.num_launches, int(wanted.size()));
  for (int i = 0; i < count; ++i) {
    const FakeLaunch& launch = state.launches[i];
    CHECK(where, wanted[i] == launch.symbol);
    CHECK(where, launch.stream == Running::kStream);
    CHECK(where, launch.block[0] == 128 && launch.block[1] == 1 && launch.block[2] == 1);
    check_parameters(where, launch, n, d, memory, workspace);
  }
  const auto writers = parameter(where, state.launches[0], "num_writers");
  CHECK(where, state.launches[0].grid[0] == writers + unsigned(n.rows));
  CHECK(where, (writers > 0) == n.writes);
  CHECK(where, attend.grid[1] == unsigned(n.kv_heads));
  check_splits(where, attend, n, workspace);
}

void check_call(const FakeDriver& fake, Running& running, const NodeCase& node, bool in_place) {
  const std::string where = node.name() + (in_place ? ", in place" : ", apart");
  const Described d(node);
  const Memory memory(d, in_place);
  CHECK(where, change_shape(running.attached, d) == 0);
  for (int again = 0; again < 2; ++again) {
    fake.reset();
    const long before = g_allocations;
    CHECK(where, running.enqueue(d, memory) == 0);
    // A fake launch allocates nothing either, so this counts the plugin alone.
    CHECK(where, g_allocations == before);
    CHECK(where, fake.state->num_waiting == 0);
    check_launches(where, *fake.state, node, d, memory, running.workspace);
  }
  const int copies = in_place ? 0 : int(d.outputs.size()) - 1;
  CHECK(where, fake.state->num_copies == copies);
  for (int i = 0; i < std::min(copies, fake.state->num_copies); ++i) {
    const FakeCopy& copy = fake.state->copies[i];
    CHECK(where, copy.stream == Running::kStream && copy.to == uintptr_t(memory.outputs[i + 1]));
    CHECK(where, copy.bytes > 0 && std::memcmp(reinterpret_cast<void*>(copy.to),
                                               reinterpret_cast<void*>(copy.from), copy.bytes) == 0);
  }
}

void check_kinds(Creator& creator, const FakeDriver& fake) {
  for (const NodeCase& node : all_cases()) {
    Running running(creator, node);
    for (const bool in_place : {true, false}) check_call(fake, running, node, in_place);
    CHECK(node.name(), running.context.recorder().getNbErrors() == 0);
  }
}

// One engine, calls of many sizes within its profile; then the same engine on a larger device of the
// same architecture, whose own plan would need a larger workspace.
void check_sizes(Creator& creator, const FakeDriver& fake) {
  for (const bool mass : {false, true}) {
    NodeCase largest;
    largest.mass = mass, largest.tokens = 600, largest.rows = 8, largest.columns = 900;
    Running running(creator, largest);
    for (const int sms : {8, 132}) {
      fake.device(87, sms);
      for (const int32_t tokens : {0, 1, 2, 8, 33, 600})
        for (const int32_t rows : {1, 2, 8})
          for (const int32_t columns : {0, 1, 40, 900}) {
            NodeCase node = largest;
            node.tokens = tokens, node.rows = rows, node.columns = columns;
            check_call(fake, running, node, true);
          }
    }
    fake.device(87, 8);
  }
}

// A builder that times the plugin gives it memory without meaning; an engine that is used as it was built
// attaches it to a context first.
void check_building(Creator& creator, const FakeDriver& fake) {
  NodeCase node;
  const Described d(node);
  Running running(creator, node);
  const Memory memory(d, true);
  const auto launches_of = [&](Held& held) {
    CHECK("building", change_shape(held, d) == 0);
    fake.reset();
    CHECK("building", held.runtime->enqueue(d.in.data(), d.out.data(), memory.inputs.data(),
                                            memory.outputs.data(), running.workspace.start,
                                            Running::kStream) == 0);
    return fake.state->num_launches;
  };
  CHECK("building", launches_of(running.built) == 0);
  Held attached(running.built.runtime->attachToContext(&running.context));
  CHECK("built", launches_of(attached) >= 2);
}

void check_faults(Creator& creator, const FakeDriver& fake) {
  NodeCase node;
  const Described d(node);
  Running running(creator, node);
  const Memory memory(d, true), apart(d, false);
  const auto refused = [&](const char* part, const Described& described, const Memory& used) {
    const int before = running.context.recorder().getNbErrors();
    CHECK_REFUSED(part, running.enqueue(described, used) != 0, part);
    CHECK(part, running.context.recorder().getNbErrors() == before + 1);
  };
  refused("enqueue before onShapeChange", d, memory);
  for (const char* name : {"cuModuleLoadData", "cuModuleGetFunction", "cuMemAlloc", "cuCtxGetCurrent"}) {
    Running fresh(creator, node);
    fake.fail(name);
    CHECK_REFUSED(name, change_shape(fresh.attached, d) != 0, "a fault asked for");
    CHECK(name, change_shape(fresh.attached, d) == 0);  // and a later try succeeds
  }
  CHECK("faults", change_shape(running.attached, d) == 0);
  fake.fail("cuLaunchKernel");
  refused("cuLaunchKernel failed: a fault asked for (700)", d, memory);
  fake.fail("cuMemcpyDtoDAsync");
  refused("cuMemcpyDtoDAsync failed", d, apart);
  Described spoiled = d;
  spoiled.in[0].dims.d[1] = 5;
  refused("query has shape (3, 5)", spoiled, memory);
  spoiled = d;
  spoiled.in[d.place(cuda::kKeyPool)].dims.d[2] = spoiled.in[d.place(cuda::kValuePool)].dims.d[2] = 8;
  refused("differs from the one the node was prepared for", spoiled, memory);
  Memory crooked(d, true);
  crooked.inputs[0] = static_cast<const char*>(crooked.inputs[0]) + 4;
  refused("query is not aligned to 16 bytes", d, crooked);
  char* kept = std::exchange(running.workspace.start, nullptr);
  refused("the workspace of", d, memory);
  running.workspace.start = kept;
  CHECK("faults", running.enqueue(d, memory) == 0);
  fake.device(0, 0);
  CHECK_REFUSED("no context", change_shape(running.attached, d) != 0, "no CUDA context is current");
  fake.device(75, 8);
  CHECK_REFUSED("old device", change_shape(running.attached, d) != 0, "no kernel prepare for sm_75");
  fake.device(89, 8);
  CHECK("sm_89 takes kernels for sm_87", change_shape(running.attached, d) == 0);
  fake.device(87, 8);
}

}  // namespace

void check_enqueue(Creator& creator, const FakeDriver& fake) {
  check_kinds(creator, fake);
  check_sizes(creator, fake);
  check_building(creator, fake);
  check_faults(creator, fake);
  CHECK("everything is given back", fake.state->live_modules == 0 && fake.state->live_allocations == 0);
}

}  // namespace edgekv::check
