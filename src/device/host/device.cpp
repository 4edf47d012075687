/// @file No device: a channel's thread does its work itself, in order.
#include "device/device.hpp"

#include <cstring>

namespace brume::device {

void set_environment(bool) {}
void use_device(int, int) {}
Description describe_device() { return {}; }
std::unique_ptr<Stream> make_stream() { return nullptr; }

void copy(void* to, const void* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void fill(void* to, std::byte value, std::int64_t bytes) {
  std::memset(to, std::to_integer<int>(value), static_cast<std::size_t>(bytes));
}

void finish() {}
void copy_now(void* to, const void* from, std::int64_t bytes) { copy(to, from, bytes); }

bool is_profiled() { return false; }
void Range::begin(const std::string&) {}
void Range::end() {}

}  // namespace brume::device
