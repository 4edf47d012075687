// To be preloaded: one allocation, or one start of a thread, fails as where there is no memory.
//
//   BRUME_FAILING_RANK  of the job, in which it fails
//   BRUME_FAILING_CALL  new:N (the N-th operator new), aligned:N (aligned_alloc), thread:N
//                       (pthread_create); with N = 0 none fails, and the process says at its end
//                       how many there were
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

class Calls {
 public:
  explicit Calls(const char* name) : name_(name) {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    const char* failing_rank = std::getenv("BRUME_FAILING_RANK");
    const char* call = std::getenv("BRUME_FAILING_CALL");
    if (call == nullptr || failing_rank == nullptr ||
        std::strcmp(rank != nullptr ? rank : "0", failing_rank) != 0)
      return;
    const char* number = std::strchr(call, ':');
    const std::size_t length = number == nullptr ? 0 : std::size_t(number - call);
    if (length == std::strlen(name) && std::strncmp(call, name, length) == 0)
      failing_ = std::atoll(number + 1);
  }
  ~Calls() {
    if (failing_ == 0) std::fprintf(stderr, "calls of %s: %lld\n", name_, count_.load());
  }
  bool next_fails() {
    if (++count_ != failing_) return false;
    std::fprintf(stderr, "here a call of %s fails\n", name_);
    return true;
  }

 private:
  const char* name_;
  std::atomic<long long> count_ = 0;
  long long failing_ = -1;
};

Calls& of_new() {
  static Calls calls("new");
  return calls;
}
Calls& of_aligned() {
  static Calls calls("aligned");
  return calls;
}
Calls& of_thread() {
  static Calls calls("thread");
  return calls;
}

void* allocated(std::size_t bytes, std::size_t alignment) {
  if (of_new().next_fails()) return nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes == 0 ? 1 : bytes);
  void* memory = nullptr;
  return ::posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

void* allocated_or_thrown(std::size_t bytes, std::size_t alignment) {
  if (void* memory = allocated(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

void* operator new(std::size_t bytes) { return allocated_or_thrown(bytes, 0); }
void* operator new[](std::size_t bytes) { return allocated_or_thrown(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocated_or_thrown(bytes, std::size_t(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocated_or_thrown(bytes, std::size_t(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocated(bytes, 0);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocated(bytes, 0);
}

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
