#include "comm/mpi_reduce.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "comm/mpi_call.hpp"

namespace brume::comm {

namespace {

constexpr int reduce_tag = 1;  // send and recv have 0

/// Messages of at most so many bytes go to all ranks in one round; two rounds move less of longer
/// ones.
constexpr std::size_t short_bytes = 8192;

/// What a rank takes from all others at once; bounds the scratch memory.
constexpr std::size_t scratch_bytes = std::size_t{1} << 22;

struct Place {
  std::size_t rank;
  std::size_t size;
};

Place place_in(MPI_Comm group) {
  int rank = 0;
  int size = 1;
  check_mpi(MPI_Comm_rank(group, &rank));
  check_mpi(MPI_Comm_size(group, &size));
  return {static_cast<std::size_t>(rank), static_cast<std::size_t>(size)};
}

/// Part `rank` of `size` parts as equal as can be.
template <typename T>
std::span<T> part_of(std::span<T> values, std::size_t rank, std::size_t size) {
  const std::size_t begin = values.size() * rank / size;
  return values.subspan(begin, values.size() * (rank + 1) / size - begin);
}

/// The values from `begin` on: `count` of them, or as many as there are.
template <typename T>
std::span<T> segment_of(std::span<T> values, std::size_t begin, std::size_t count) {
  begin = std::min(begin, values.size());
  return values.subspan(begin, std::min(count, values.size() - begin));
}

/// out[i] = sources[0][i] op sources[1][i] op ...; `out` may be one of the sources.
template <typename T, typename Operation>
void combine(std::span<const T* const> sources, std::span<T> out, Operation operation) {
  using Sum = std::conditional_t<Narrow<T>, float, T>;
  std::array<Sum, 512> total;  // stays in the first cache
  for (std::size_t begin = 0; begin < out.size(); begin += total.size()) {
    const std::size_t count = std::min(total.size(), out.size() - begin);
    std::copy_n(sources[0] + begin, count, total.begin());
    for (const T* source : sources.subspan(1)) {
      for (std::size_t i = 0; i < count; ++i)
        total[i] = operation(total[i], Sum(source[begin + i]));
    }
    std::copy_n(total.begin(), count, out.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

template <typename T>
void combine(std::span<const T* const> sources, std::span<T> out, Reduction reduction) {
  switch (reduction) {
    case Reduction::sum: return combine(sources, out, std::plus<>());
    case Reduction::min:
      return combine(sources, out, [](auto a, auto b) { return std::min(a, b); });
    case Reduction::max:
      return combine(sources, out, [](auto a, auto b) { return std::max(a, b); });
  }
}

/// Reduces in one round: everything goes to everybody.
template <typename T>
void reduce_short(MPI_Comm group, std::span<T> values, Reduction reduction, Place place) {
  std::vector<T> all(values.size() * place.size);
  const int count = mpi_count(values.size());
  MPI_Request request;
  check_mpi(MPI_Iallgather(values.data(), count, mpi_type<T>(), all.data(), count, mpi_type<T>(),
                           group, &request));
  wait(request);
  std::vector<const T*> sources;
  for (std::size_t r = 0; r < place.size; ++r) sources.push_back(all.data() + r * values.size());
  combine(std::span<const T* const>(sources), values, reduction);
}

template <typename T>
void gather_parts(MPI_Comm group, std::span<T> values, Place place, std::size_t longest) {
  if (values.size() > longest) return gather_in_pieces(group, values, longest);
  std::vector<int> counts;
  std::vector<int> offsets;
  for (std::size_t r = 0; r < place.size; ++r) {
    const std::span<T> part = part_of(values, r, place.size);
    counts.push_back(mpi_count(part.size()));
    offsets.push_back(mpi_count(static_cast<std::size_t>(part.data() - values.data())));
  }
  MPI_Request request;
  check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data(), counts.data(),
                            offsets.data(), mpi_type<T>(), group, &request));
  wait(request);
}

/// Takes incoming(r) from every other rank r, and gives it outgoing(r).
template <typename T>
void exchange(MPI_Comm group, Place place, const std::function<std::span<T>(std::size_t)>& incoming,
              const std::function<std::span<T>(std::size_t)>& outgoing) {
  std::vector<MPI_Request> requests;
  for (std::size_t away = 1; away < place.size; ++away) {
    const std::size_t from = (place.rank + place.size - away) % place.size;
    const std::span<T> in = incoming(from);
    check_mpi(MPI_Irecv(in.data(), mpi_count(in.size()), mpi_type<T>(), static_cast<int>(from),
                        reduce_tag, group, &requests.emplace_back()));
  }
  for (std::size_t away = 1; away < place.size; ++away) {
    const std::size_t to = (place.rank + away) % place.size;
    const std::span<T> out = outgoing(to);
    check_mpi(MPI_Isend(out.data(), mpi_count(out.size()), mpi_type<T>(), static_cast<int>(to),
                        reduce_tag, group, &requests.emplace_back()));
  }
  wait(requests);
}

}  // namespace

template <typename T>
void reduce_own_part(MPI_Comm group, std::span<T> values, Reduction reduction) {
  const Place place = place_in(group);
  const std::span<T> mine = part_of(values, place.rank, place.size);
  const std::size_t longest = (values.size() + place.size - 1) / place.size;
  const std::size_t segment =
      std::clamp(longest, std::size_t{1}, scratch_bytes / sizeof(T) / place.size + 1);
  const auto scratch = std::make_unique_for_overwrite<T[]>(segment * place.size);
  std::vector<T*> places;
  for (std::size_t r = 0; r < place.size; ++r) places.push_back(scratch.get() + r * segment);

  for (std::size_t begin = 0; begin < longest; begin += segment) {
    const std::span<T> out = segment_of(mine, begin, segment);
    exchange<T>(
        group, place, [&](std::size_t from) { return std::span(places[from], out.size()); },
        [&](std::size_t to) {
          return segment_of(part_of(values, to, place.size), begin, segment);
        });
    std::vector<const T*> sources(places.begin(), places.end());
    sources[place.rank] = out.data();
    combine(std::span<const T* const>(sources), out, reduction);
  }
}

template <typename T>
void gather_in_pieces(MPI_Comm group, std::span<T> values, std::size_t longest) {
  const Place place = place_in(group);
  const std::size_t longest_part = (values.size() + place.size - 1) / place.size;
  for (std::size_t begin = 0; begin < longest_part; begin += longest) {
    const auto piece = [&](std::size_t rank) {
      return segment_of(part_of(values, rank, place.size), begin, longest);
    };
    exchange<T>(group, place, piece, [&](std::size_t) { return piece(place.rank); });
  }
}

template <typename T>
void reduce_to_all(MPI_Comm group, std::span<T> values, Reduction reduction, std::size_t longest) {
  const Place place = place_in(group);
  if (values.size_bytes() <= short_bytes) return reduce_short(group, values, reduction, place);
  reduce_own_part(group, values, reduction);
  gather_parts(group, values, place, longest);
}

template void reduce_to_all(MPI_Comm, std::span<float>, Reduction, std::size_t);
template void reduce_to_all(MPI_Comm, std::span<double>, Reduction, std::size_t);
template void reduce_to_all(MPI_Comm, std::span<bfloat16>, Reduction, std::size_t);
template void reduce_to_all(MPI_Comm, std::span<float16>, Reduction, std::size_t);
template void reduce_own_part(MPI_Comm, std::span<float>, Reduction);
template void reduce_own_part(MPI_Comm, std::span<bfloat16>, Reduction);
template void reduce_own_part(MPI_Comm, std::span<float16>, Reduction);
template void gather_in_pieces(MPI_Comm, std::span<float>, std::size_t);
template void gather_in_pieces(MPI_Comm, std::span<bfloat16>, std::size_t);
template void gather_in_pieces(MPI_Comm, std::span<float16>, std::size_t);

}  // namespace brume::comm
