#include "base/error.hpp"

#include <exception>
#include <new>
#include <system_error>

namespace brume {

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(Failure::resource, "memory ran out");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again)
      return Error(Failure::resource, "a thread could not be started: {}", error.what());
    return Error(Failure::bug, "unexpected: {}", error.what());
  } catch (const std::exception& error) {
    return Error(Failure::bug, "unexpected: {}", error.what());
  } catch (...) {
    return Error(Failure::bug, "unexpected: an exception of no known type");
  }
}

}  // namespace brume
