/// @file One call of a kind fails in a process, as where there is no memory.
///
///   BRUME_FAILING_RANK  of the job, in which it fails, or "all"
///   BRUME_FAILING_CALL  KIND:N: the N-th call of that kind
///                       KIND@PLACE: the first one that is made there
///                       count: none; the process says at its end how many calls of each kind there
///                       were, and at which places of the program, if it knows
#pragma once

#include <link.h>
#include <unwind.h>

#include <array>
#include <atomic>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace brume::fault {

class Calls {
 public:
  /// @param by_place  whether places are told apart: not where the calls lie in the program itself
  explicit Calls(const char* name, bool by_place) : name_(name), by_place_(by_place) {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    const char* failing_rank = std::getenv("BRUME_FAILING_RANK");
    const char* call = std::getenv("BRUME_FAILING_CALL");
    if (call == nullptr || failing_rank == nullptr ||
        (std::strcmp(failing_rank, "all") != 0 &&
         std::strcmp(rank != nullptr ? rank : "0", failing_rank) != 0))
      return;
    counts_ = std::strcmp(call, "count") == 0;
    const std::size_t length = std::strlen(name);
    if (std::strncmp(call, name, length) == 0) {
      if (call[length] == ':') failing_ = std::atoll(call + length + 1);
      if (call[length] == '@') failing_place_ = std::strtoull(call + length + 1, nullptr, 16);
    }
    if (!by_place || (!counts_ && failing_place_ == 0)) return;
    // The program is the first object that is listed.
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* own) {
          Calls& calls = *static_cast<Calls*>(own);
          calls.program_ = info->dlpi_addr;
          for (int i = 0; i < info->dlpi_phnum; ++i)
            if (info->dlpi_phdr[i].p_type == PT_LOAD)
              calls.program_bytes_ = info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
          return 1;
        },
        this);
  }
  ~Calls() {
    if (!counts_) return;
    std::fprintf(stderr, "calls of %s: %lld\n", name_, count_.load());
    for (const std::atomic<std::uint64_t>& place : places_)
      if (place != 0) std::fprintf(stderr, "place of %s: %" PRIx64 "\n", name_, place.load());
  }

  bool next_fails() {
    const long long number = ++count_;
    bool fails = number == failing_;
    if (counts_ && by_place_) note(place());
    if (failing_place_ != 0 && !done_ && place() == failing_place_) fails = !done_.exchange(true);
    if (fails) std::fprintf(stderr, "here a call of %s fails\n", name_);
    return fails;
  }

 private:
  /// The instruction of the program that leads here, by its number in the program's file; through
  /// libraries' functions, but not those of libraries alone. Never 0.
  std::uint64_t place() const {
    struct Search {
      std::uintptr_t program, program_bytes, found;
    } search{program_, program_bytes_, 1};
    const auto look = [](_Unwind_Context* frame, void* state) {
      Search& in = *static_cast<Search*>(state);
      const std::uintptr_t offset = _Unwind_GetIP(frame) - in.program;
      if (offset >= in.program_bytes) return _URC_NO_REASON;
      in.found = offset;
      return _URC_END_OF_STACK;
    };
    _Unwind_Backtrace(look, &search);
    return search.found;
  }

  void note(std::uint64_t place) {
    for (std::size_t i = place;; ++i) {
      std::uint64_t there = 0;
      std::atomic<std::uint64_t>& slot = places_[i % places_.size()];
      if (slot.load() == place || slot.compare_exchange_strong(there, place) || there == place)
        return;
    }
  }

  const char* name_;
  const bool by_place_;
  std::atomic<long long> count_ = 0;
  long long failing_ = -1;
  std::uint64_t failing_place_ = 0;
  std::atomic<bool> done_ = false;
  bool counts_ = false;
  std::uintptr_t program_ = 0, program_bytes_ = 0;
  std::array<std::atomic<std::uint64_t>, 1 << 16> places_ = {};
};

}  // namespace brume::fault
