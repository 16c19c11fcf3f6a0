// Which input of the operator stands at which place of the plugin.
//
// Owns: the reading of a node's inputs by their ranks. TensorRT's parser hands an input that the node
// leaves out (an empty name) over as a null tensor, whose rank is none of the operator's; a network
// built by hand may leave it out altogether. Both are read the same way: what is left, in order, can
// only be one thing (see place_inputs). Knows nothing of shapes beyond ranks.
#pragma once

#include <cstdint>

#include "../cuda/node.h"

namespace edgekv::tensorrt {

struct Places {
  int32_t of[cuda::kNumInputs];  // place of each operator input among the plugin's inputs, -1 = absent
  int32_t num_inputs = 0;        // of the plugin

  cuda::Presence presence() const {
    return {of[cuda::kKey] >= 0, of[cuda::kSinks] >= 0, of[cuda::kKeyScales] >= 0,
            of[cuda::kPageMass] >= 0};
  }
};

// No input of the operator is a scalar or has more than four dimensions.
inline bool is_absent(int32_t rank) { return rank < 1 || rank > 4; }

// `ranks` (num_inputs): the rank of each input.
inline bool place_inputs(const int32_t* ranks, int32_t num_inputs, Places& places,
                         cuda::Message& message) {
  // After query_indices come sinks (rank 1), scales (3, 3) and masses (1, 1), each optional:
  // a single rank 1 is sinks, a pair at the very end is masses.
  int32_t present[cuda::kNumInputs], ranked[cuda::kNumInputs], count = 0;
  for (int32_t i = 0; i < num_inputs; ++i) {
    if (is_absent(ranks[i])) continue;
    if (count == cuda::kNumInputs)
      return message.set("the node has more than %d inputs", int(cuda::kNumInputs));
    present[count] = i, ranked[count++] = ranks[i];
  }
  for (int32_t& place : places.of) place = -1;
  places.num_inputs = num_inputs;
  int32_t next = 0;
  const auto take = [&](cuda::Input input) {
    if (next >= count) return message.set("input %s is missing", cuda::kInputNames[input]);
    if (ranked[next] != cuda::kInputRanks[input])
      return message.set("input %s has rank %d, must be %d", cuda::kInputNames[input],
                         int(ranked[next]), int(cuda::kInputRanks[input]));
    places.of[input] = present[next++];
    return true;
  };
  const auto follows = [&](int32_t ahead, int32_t rank) {
    return next + ahead < count && ranked[next + ahead] == rank;
  };
  if (!take(cuda::kQuery)) return false;
  if (follows(0, 2) && (!take(cuda::kKey) || !take(cuda::kValue))) return false;
  for (int32_t i = cuda::kKeyPool; i <= cuda::kQueryIndices; ++i)
    if (!take(cuda::Input(i))) return false;
  const int32_t rest = count - next;
  if (follows(0, 1) && (rest == 1 || rest == 3 || rest == 5) && !take(cuda::kSinks)) return false;
  if (follows(0, 3) && (!take(cuda::kKeyScales) || !take(cuda::kValueScales))) return false;
  if (next < count && (!take(cuda::kPageMass) || !take(cuda::kMassWeights))) return false;
  return next == count || message.set("the node has %d inputs too many", int(count - next));
}

}  // namespace edgekv::tensorrt
