/// @file Initial values of parameters and moments.
#include <algorithm>
#include <array>
#include <future>
#include <map>
#include <thread>
#include <tuple>

#include "state.hpp"

namespace brume::engine {
namespace {

/// The initial values of elements [first, first + values.size()) of a slab: each thread makes a
/// part of them.
void initial_values(const model::Parameter& parameter, const Slab& slab, std::int64_t first,
                    std::span<float> values, std::uint64_t seed, int threads) {
  const auto make = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t row = slab.shape.back();  // its elements follow each other in the tensor too
    for (std::int64_t i = begin, global = 0; i < end; ++i, ++global) {
      const std::int64_t index = slab.first + first + i;
      if (i == begin || index % row == 0) global = global_index(slab, index);
      values[i] = model::initial_value(parameter, global, seed);
    }
  };
  const std::int64_t count = std::ssize(values);
  constexpr std::int64_t worth_a_thread = 1 << 14;
  const std::int64_t parts = std::clamp<std::int64_t>(count / worth_a_thread, 1, threads);
  std::vector<std::jthread> others;
  for (std::int64_t part = 1; part < parts; ++part)
    others.emplace_back(make, count * part / parts, count * (part + 1) / parts);
  make(0, count / parts);
}

/// each(first, count) for pieces of at most `most` that make up [0, elements).
template <typename Each>
void for_pieces(std::int64_t elements, std::int64_t most, Each&& each) {
  for (std::int64_t first = 0; first < elements; first += most)
    each(first, std::min(most, elements - first));
}

constexpr std::int64_t zeros_in_cache = 1 << 18;  ///< that are written from, again and again

}  // namespace

void initialise(std::vector<Slab>& slabs, const model::Config& model, std::uint64_t seed,
                int threads) {
  std::map<std::string, model::Parameter> parameters;
  for (const model::Block& block : model::blocks(model))
    for (const model::Parameter& parameter : block.parameters)
      parameters[parameter.name] = parameter;
  const std::int64_t room = largest_piece(slabs);
  // A master weight and the rounded one beside it have the same value, which is made once.
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, std::vector<const Slab*>> alike;
  const std::vector<float> zeros(std::size_t(std::min(room, zeros_in_cache)));
  for (const Slab& slab : slabs)
    if (slab.kind == "weight")
      alike[{slab.name, slab.first, slab.elements}].push_back(&slab);
    else
      for_pieces(slab.elements, std::ssize(zeros), [&](std::int64_t first, std::int64_t count) {
        set_values(slab, first, std::span(zeros).first(std::size_t(count)));
      });

  struct Piece {
    const std::vector<const Slab*>* slabs;
    std::int64_t first, count;
  };
  std::vector<Piece> pieces;
  for (const auto& entry : alike) {
    const std::vector<const Slab*>& same = entry.second;
    for_pieces(same.front()->elements, room, [&](std::int64_t first, std::int64_t count) {
      pieces.push_back({&same, first, count});
    });
  }
  // This thread takes values to their places while others make the next ones.
  std::array<std::vector<float>, 2> rooms;
  for (std::vector<float>& values : rooms) values.resize(std::size_t(room));
  const auto values_of = [&](std::size_t i) {
    return std::span(rooms[i % 2]).first(std::size_t(pieces[i].count));
  };
  const auto make = [&](std::size_t i) {
    const Slab& slab = *pieces[i].slabs->front();
    return std::async(std::launch::async, [&, i] {
      initial_values(parameters.at(slab.name), slab, pieces[i].first, values_of(i), seed, threads);
    });
  };
  std::future<void> made;
  if (!pieces.empty()) made = make(0);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    made.get();
    if (i + 1 < pieces.size()) made = make(i + 1);
    for (const Slab* slab : *pieces[i].slabs) set_values(*slab, pieces[i].first, values_of(i));
  }
}

}  // namespace brume::engine
