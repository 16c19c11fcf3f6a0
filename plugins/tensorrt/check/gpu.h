// A GPU as the parity check sees it: memory, one stream, and graphs, through the CUDA driver. The fake
// driver will do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace edgekv::check {

class Gpu {
 public:
  // Opens EDGEKV_CUDA_DRIVER or libcuda.so.1, and makes the first device's context current. Exits with
  // one line when that fails.
  Gpu();

  void* allocate(size_t bytes);  // goes with free_all()
  void free_all();
  void upload(void* to, const void* from, size_t bytes);
  void download(void* to, const void* from, size_t bytes);
  void wait();

  // Records what `body` enqueues on stream() instead of running it, then runs it once.
  template <class Body>
  void run_as_graph(Body body) {
    begin_capture();
    body();
    launch_capture();
  }

  void* stream() const { return stream_; }
  const std::string& name() const { return name_; }

 private:
  void begin_capture();
  void launch_capture();
  void must(int error, const char* what) const;
  template <class Function>
  Function find(const char* name) const;

  void* library_ = nullptr;
  void* stream_ = nullptr;
  std::string name_;
  std::vector<uint64_t> blocks_;
};

}  // namespace edgekv::check
