// To be preloaded: operator new ("new"), aligned_alloc ("aligned") or a start of a thread
// ("thread") fails as failing_calls.hpp says.
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "failing_calls.hpp"

namespace {

using brume::fault::Calls;

Calls& of_new() {
  static Calls calls("new", true);
  return calls;
}
Calls& of_aligned() {
  static Calls calls("aligned", true);
  return calls;
}
Calls& of_thread() {
  static Calls calls("thread", true);
  return calls;
}

void* taken(std::size_t bytes, std::size_t alignment) {
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes == 0 ? 1 : bytes);
  void* memory = nullptr;
  return ::posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

void* taken_or_thrown(std::size_t bytes, std::size_t alignment) {
  void* const memory = of_new().next_fails() ? nullptr : taken(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

void* operator new(std::size_t bytes) { return taken_or_thrown(bytes, 0); }
void* operator new[](std::size_t bytes) { return taken_or_thrown(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return taken_or_thrown(bytes, std::size_t(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return taken_or_thrown(bytes, std::size_t(alignment));
}
// Who asks in this way goes on without, as std::stable_sort does.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return taken(bytes, 0); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return taken(bytes, 0); }

extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  static auto* const real = next<void*(std::size_t, std::size_t)>("aligned_alloc");
  if (!of_aligned().next_fails()) return real(alignment, bytes);
  errno = ENOMEM;
  return nullptr;
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*function)(void*), void* argument) {
  static auto* const real =
      next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return of_thread().next_fails() ? EAGAIN : real(thread, attributes, function, argument);
}
