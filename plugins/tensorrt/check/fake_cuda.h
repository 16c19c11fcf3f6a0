// What the fake driver remembers; see fake_cuda.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr int kFakeMaxParameters = 48;

struct FakeLaunch {
  char symbol[32];
  unsigned grid[3], block[3], shared_bytes;
  const void* stream;
  int num_parameters;  // -1 when the image does not say what they are
  char names[kFakeMaxParameters][24];
  uint64_t parameters[kFakeMaxParameters];
};

struct FakeCopy {
  uint64_t to, from;
  size_t bytes;
  const void* stream;
};

struct FakeState {
  int num_launches, num_copies;
  int num_waiting;      // calls that allocate, load or wait
  int live_modules, live_allocations;
  FakeLaunch launches[16];
  FakeCopy copies[16];
};

// Exported by the fake driver.
using FakeStateFunction = FakeState* (*)();
using FakeResetFunction = void (*)();                       // forgets launches, copies and num_waiting
using FakeDeviceFunction = void (*)(int arch, int sms);     // of every context; 0, 0 = no context
using FakeEmulateFunction = void (*)(int on);               // whether launches compute, see emulate.h
using FakeFailFunction = void (*)(const char* name);        // the next call of this function fails
