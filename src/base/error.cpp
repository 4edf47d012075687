#include "base/error.hpp"

#include <new>
#include <system_error>

namespace brume {

Error error_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) return *own;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return Error(Failure::resource, memory_ran_out);
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again)
    return Error(
        Failure::resource,
        "a thread could not be started: {}: raise the limit of processes (ulimit -u) or of "
        "memory (ulimit -v), or run fewer ranks on the node",
        error.what());
  return Error(Failure::bug, "{}", error.what());
}

}  // namespace brume
