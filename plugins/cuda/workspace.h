// Workspace for runtimes that give a node none.
//
// Owns: device memory for the calls of one stream. Calls on a stream run one after another, so all nodes
// that use the stream share it; it goes when the last of them goes. Guarantees: it grows to the
// largest call seen and only then waits for the stream, so a CUDA graph can be captured once calls of its
// size have run.
#pragma once

#include <memory>
#include <mutex>

#include "driver.h"

namespace edgekv::cuda {

class StreamWorkspace {
 public:
  // The one workspace of this context's stream.
  static std::shared_ptr<StreamWorkspace> of(const Driver& driver, Context context, Stream stream);

  ~StreamWorkspace();
  StreamWorkspace(const StreamWorkspace&) = delete;
  StreamWorkspace& operator=(const StreamWorkspace&) = delete;

  bool is_of(Context context, Stream stream) const {
    return context == context_ && stream == stream_;
  }

  // At least so many bytes; null and true for none.
  bool reserve(size_t bytes, void*& memory, Message& message);

 private:
  StreamWorkspace(const Driver& driver, Context context, Stream stream)
      : driver_(driver), context_(context), stream_(stream) {}

  const Driver& driver_;
  Context context_;
  Stream stream_;
  std::mutex mutex_;
  Address memory_ = 0;
  size_t bytes_ = 0;
};

}  // namespace edgekv::cuda
