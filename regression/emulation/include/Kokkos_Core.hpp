/// @file The part of Kokkos that the kernels use, for NVIDIA devices: the same blocks, threads and
/// order as Kokkos 4's, so that kernels can be compiled by nvcc where no Kokkos with CUDA is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#define KOKKOS_ENABLE_CUDA
#define KOKKOS_VERSION 40600
#define KOKKOS_LAMBDA [=] __host__ __device__
#define KOKKOS_INLINE_FUNCTION inline __host__ __device__

/// Under another name, which no library has.
namespace emulated_kokkos {

class Cuda {
 public:
  Cuda() = default;
  explicit Cuda(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t cuda_stream() const { return stream_; }
  static const char* name() { return "emulated Cuda"; }

 private:
  cudaStream_t stream_ = nullptr;
};
using DefaultExecutionSpace = Cuda;

template <class Element, int count>
struct Array {
  Element elements[count];
  KOKKOS_INLINE_FUNCTION Element& operator[](int i) { return elements[i]; }
  KOKKOS_INLINE_FUNCTION const Element& operator[](int i) const { return elements[i]; }
};

template <class Index>
struct IndexType {};

/// first <= i < last, a thread each.
template <class Space, class Index>
struct RangePolicy;
template <class Space, class Index>
struct RangePolicy<Space, IndexType<Index>> {
  RangePolicy(const Space& of_space, Index of_first, Index of_last)
      : space(of_space), first(of_first), last(of_last) {}
  Space space;
  Index first, last;
};

/// Teams of threads, which are `vector` lanes each: the lanes are threadIdx.x, the threads .y.
template <class Space>
struct TeamPolicy {
  struct member_type {
    int league, rank, size;
    bool first_lane;
    KOKKOS_INLINE_FUNCTION int league_rank() const { return league; }
    KOKKOS_INLINE_FUNCTION int team_rank() const { return rank; }
  };
  TeamPolicy(const Space& of_space, int of_teams, int of_size, int of_vector = 1)
      : space(of_space), teams(of_teams), size(of_size), vector(of_vector) {}
  Space space;
  int teams, size, vector;
};

namespace detail {

template <class Index, class Body>
__global__ void over_range(Index first, Index last, Body body) {
  const Index stride = Index(gridDim.x) * blockDim.y;
  for (Index i = first + Index(blockIdx.x) * blockDim.y + threadIdx.y; i < last; i += stride)
    body(i);
}

template <class Team, class Body>
__global__ void over_teams(Body body) {
  body(Team{int(blockIdx.x), int(threadIdx.y), int(blockDim.y), threadIdx.x == 0});
}

}  // namespace detail

template <class Space, class Index, class Body>
void parallel_for(const char*, const RangePolicy<Space, IndexType<Index>>& policy,
                  const Body& body) {
  constexpr Index threads = 256, most_blocks = 65535;
  const Index blocks = (policy.last - policy.first + threads - 1) / threads;
  detail::over_range<<<unsigned(blocks < most_blocks ? blocks : most_blocks),
                       dim3(1, unsigned(threads)), 0, policy.space.cuda_stream()>>>(
      policy.first, policy.last, body);
}

template <class Space, class Body>
void parallel_for(const char*, const TeamPolicy<Space>& policy, const Body& body) {
  detail::over_teams<typename TeamPolicy<Space>::member_type>
      <<<unsigned(policy.teams), dim3(unsigned(policy.vector), unsigned(policy.size)), 0,
         policy.space.cuda_stream()>>>(body);
}

/// 0 <= i < count, dealt out over the threads of a team.
template <class Team>
struct ThreadRange {
  const Team& team;
  int count;
};
template <class Team>
KOKKOS_INLINE_FUNCTION ThreadRange<Team> TeamThreadRange(const Team& team, int count) {
  return {team, count};
}
template <class Team, class Body>
KOKKOS_INLINE_FUNCTION void parallel_for(const ThreadRange<Team>& range, const Body& body) {
  for (int i = range.team.rank; i < range.count; i += range.team.size) body(i);
}

struct OncePerTeam {
  bool here;
};
template <class Team>
KOKKOS_INLINE_FUNCTION OncePerTeam PerTeam(const Team& team) {
  OncePerTeam once;
  once.here = team.rank == 0 && team.first_lane;
  return once;
}
template <class Body>
KOKKOS_INLINE_FUNCTION void single(OncePerTeam once, const Body& body) {
  if (once.here) body();
}

// Nothing has to be started.
struct InitializationSettings {
  InitializationSettings& set_device_id(int) { return *this; }
};
inline bool is_initialized() { return true; }
inline void initialize(const InitializationSettings&) {}
inline void finalize() {}
namespace Profiling {
inline bool profileLibraryLoaded() { return false; }
inline void pushRegion(const char*) {}
inline void popRegion() {}
}  // namespace Profiling
namespace Tools::Experimental {
inline void set_push_region_callback(void (*)(const char*)) {}
inline void set_pop_region_callback(void (*)()) {}
}  // namespace Tools::Experimental

}  // namespace emulated_kokkos

namespace Kokkos = emulated_kokkos;
