#include "io/shared_weights.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "manifest.hpp"
#include "slab_map.hpp"

namespace brume::io {
namespace {

using engine::Slab;

constexpr std::int64_t broadcast_elements = 1 << 20;

bool is_weight(const Slab& slab) { return slab.kind == "weight"; }

/// A slab to fill, and runs of a source that fill it.
struct Target {
  const Slab* slab;
  std::vector<Run> runs;
};

/// A slab that a rank owns, and the slabs of this rank that it fills.
struct OwnedSlab {
  Slab slab;
  std::vector<Target> targets;
};

/// Puts values of a source, from its element `first` on, where they belong.
void put(const Target& target, std::int64_t first, std::span<const float> values) {
  for (const Run& run : target.runs) {
    const std::int64_t begin = std::max(run.from, first),
                       end = std::min(run.from + run.count, first + std::ssize(values));
    if (begin < end)
      engine::set_values(*target.slab, run.to + begin - run.from,
                         values.subspan(std::size_t(begin - first), std::size_t(end - begin)));
  }
}

}  // namespace

void share_weights(comm::Communicator& world, const std::vector<Slab>& from, std::vector<Slab> to,
                   const std::function<void()>& on_piece) {
  std::vector<Slab> mine;
  std::ranges::copy_if(from, std::back_inserter(mine),
                       [](const Slab& slab) { return slab.owned && is_weight(slab); });
  const std::vector<std::string> texts = world.gather(slabs_text(mine));
  std::vector<std::vector<OwnedSlab>> owned;  // [rank]
  comm::together(world, [&] {
    std::map<std::string, std::vector<Target>> wanted;
    for (const Slab& slab : to)
      if (is_weight(slab)) wanted[slab.name].push_back({&slab, {}});
    for (const std::string& text : texts) {
      std::vector<OwnedSlab>& of_rank = owned.emplace_back();
      for (const Slab& slab : parse_slabs(text)) {
        OwnedSlab& source = of_rank.emplace_back(OwnedSlab{slab, {}});
        for (Target& one : wanted[source.slab.name]) {
          source.targets.push_back({one.slab, shared_runs(source.slab, *one.slab)});
          std::ranges::copy(source.targets.back().runs, std::back_inserter(one.runs));
        }
      }
    }
    for (const auto& [name, slabs] : wanted)
      for (const Target& one : slabs)
        require(covers_once(one.runs, one.slab->elements), Failure::bug,
                "ranks do not own each element of {} once", name);
  });
  std::vector<float> room;
  for (int rank = 0; rank < world.size(); ++rank)
    for (std::size_t n = 0; n < owned[rank].size(); ++n) {
      const OwnedSlab& source = owned[rank][n];
      const std::int64_t elements = source.slab.elements;
      for (std::int64_t first = 0; first < elements; first += broadcast_elements) {
        room.resize(std::size_t(std::min(broadcast_elements, elements - first)));
        if (rank == world.rank()) engine::get_values(mine[n], first, room);
        world.broadcast(std::as_writable_bytes(std::span(room)), rank);
        for (const Target& one : source.targets) put(one, first, room);
        if (on_piece) on_piece();
      }
    }
}

}  // namespace brume::io
