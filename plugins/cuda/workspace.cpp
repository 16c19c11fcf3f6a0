// See workspace.h.

#include "workspace.h"

#include <map>

namespace edgekv::cuda {

std::shared_ptr<StreamWorkspace> StreamWorkspace::of(const Driver& driver, Context context,
                                                     Stream stream) {
  static std::mutex mutex;
  static std::map<std::pair<Context, Stream>, std::weak_ptr<StreamWorkspace>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<StreamWorkspace>& slot = known[{context, stream}];
  if (std::shared_ptr<StreamWorkspace> workspace = slot.lock()) return workspace;
  std::shared_ptr<StreamWorkspace> made(new StreamWorkspace(driver, context, stream));
  slot = made;
  return made;
}

StreamWorkspace::~StreamWorkspace() {
  if (memory_) driver_.release(memory_);
}

bool StreamWorkspace::reserve(size_t bytes, void*& memory, Message& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > bytes_) {
    // Half as much again, so that a context that grows page by page does not make it grow every time.
    const size_t wanted = bytes + bytes / 2;
    Address grown = 0;
    if (!succeeded(driver_, driver_.wait(stream_), "cuStreamSynchronize", message) ||
        !succeeded(driver_, driver_.allocate(&grown, wanted), "cuMemAlloc", message))
      return false;
    if (memory_) driver_.release(memory_);
    memory_ = grown, bytes_ = wanted;
  }
  memory = reinterpret_cast<void*>(memory_);
  return true;
}

}  // namespace edgekv::cuda
