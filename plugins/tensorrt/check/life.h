// The parts of the check; each counts into g_tally.
#pragma once

#include "library.h"

namespace edgekv::check {

// The plugin that an engine of `built` would give back.
Held through_an_engine(Creator& creator, Held& built);

// `driver`: a driver can be opened; without one, what needs it must fail with a line that says so.
void check_life(Creator& creator, const NodeCase& node, bool driver);

// Fields, engine bytes and shapes that must be refused.
void check_refusals(Creator& creator, bool driver);

// enqueue() against the fake driver: launches, parameters, workspace, copies, faults.
void check_enqueue(Creator& creator, const FakeDriver& fake);

}  // namespace edgekv::check
