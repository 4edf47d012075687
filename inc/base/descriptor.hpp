/// @file The owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace brume {

/// Closes a descriptor at the end; a negative one, of an open that failed, is left alone.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return number_; }

  /// Closes early, because a network file system may say only here that writing failed.
  /// @return whether that went well
  bool close() {
    const int number = std::exchange(number_, -1);
    return number < 0 || ::close(number) == 0;
  }

 private:
  int number_;
};

}  // namespace brume
