// One line that says what went wrong, without allocating.
//
// Owns: a fixed buffer. Guarantees: never throws, never allocates, so it may be filled while a call is
// being enqueued; a line that is too long is cut. Functions that take a Message& return false after
// filling it.
#pragma once

#include <cstdarg>
#include <cstdio>

namespace edgekv::cuda {

class Message {
 public:
  // Always false, so that a check can end with `return message.set(...)`.
  __attribute__((format(printf, 2, 3))) bool set(const char* format, ...) noexcept {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text_, sizeof(text_), format, arguments);
    va_end(arguments);
    return false;
  }

  const char* text() const noexcept { return text_; }

 private:
  char text_[256] = "";
};

}  // namespace edgekv::cuda
