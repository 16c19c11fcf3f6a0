// Says what is wrong with the integers of a call before anything is written.
//
// Owns: every rule on page tables, slots, row bounds and limits that the kernels rely on.
// Guarantees: one line that names the value and the rule; an empty string when all is well.
// Knows nothing of a runtime; shapes and dtypes have been checked by whoever binds it.
#pragma once

#include <string>

#include "paged_attention.h"
#include "plan.h"

namespace edgekv {

// For attributes: `num_floats` inv_freq values and the axes as given (already one per frequency).
std::string validate_geometry(const Geometry& geometry);

std::string validate_call(const Call& call, const Tables& tables);

}  // namespace edgekv
