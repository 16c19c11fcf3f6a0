// What edgekv's Python and this library agree on. To be raised with every change of an exported call.
#pragma once

#include <cstdint>

extern "C" {

__attribute__((visibility("default"))) int64_t edgekv_native_version();
}
