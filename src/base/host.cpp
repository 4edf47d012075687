#include "base/host.hpp"

#include <unistd.h>

#include <array>

namespace brume {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace brume
