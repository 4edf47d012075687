#include "io/checkpoint.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "manifest.hpp"
#include "rank_file.hpp"
#include "slab_map.hpp"

namespace brume::io {

/// A slab of the checkpoint: slab `index` of file `rank`.
struct StoredSlab {
  int rank;
  std::size_t index;
};

namespace {

using engine::Slab;

/// The slab, and the runs in it, that take the elements of one source.
struct Copy {
  Slab* destination;
  std::vector<Run> runs;
};

using Tensor = std::pair<std::string, std::string>;                      // name, kind
using Copies = std::map<int, std::map<std::size_t, std::vector<Copy>>>;  // rank, index

std::map<Tensor, std::vector<StoredSlab>> sources_by_tensor(const Manifest& manifest) {
  std::map<Tensor, std::vector<StoredSlab>> sources;
  for (int rank = 0; rank < manifest.info.ranks; ++rank) {
    const std::vector<Slab>& slabs = manifest.files[std::size_t(rank)].slabs;
    for (std::size_t n = 0; n < slabs.size(); ++n)
      sources[{slabs[n].name, slabs[n].kind}].push_back({rank, n});
  }
  return sources;
}

/// Finds the sources of one slab. @throws Error(storage) unless each element has one
void add_copies(Copies& copies, Slab& slab, const std::vector<StoredSlab>& sources,
                const Manifest& manifest) {
  std::vector<Run> all;
  for (const StoredSlab& source : sources) {
    const Slab& stored = manifest.files[std::size_t(source.rank)].slabs[source.index];
    require(stored.global_shape == slab.global_shape, Failure::storage,
            "{}: {} has shape [{}], expected [{}]", manifest.info.directory.string(), slab.name,
            fmt::join(stored.global_shape, ", "), fmt::join(slab.global_shape, ", "));
    std::vector<Run> runs = shared_runs(stored, slab);
    if (runs.empty()) continue;
    all.insert(all.end(), runs.begin(), runs.end());
    copies[source.rank][source.index].push_back({&slab, std::move(runs)});
  }
  require(covers_once(std::move(all), slab.elements), Failure::storage,
          "{}: the files do not hold each element of {} of {} once",
          manifest.info.directory.string(), slab.kind, slab.name);
}

void fill_with_zeros(const Slab& slab) {
  const std::vector<float> zeros(std::size_t(std::min(slab.elements, piece_elements)));
  for (std::int64_t first = 0; first < slab.elements; first += piece_elements)
    engine::set_values(
        slab, first,
        std::span(zeros).first(std::size_t(std::min(piece_elements, slab.elements - first))));
}

/// Puts values of slab n where they belong.
void run_copy(RankFile& file, std::size_t n, const Copy& copy, Progress* progress) {
  std::vector<Run> runs = copy.runs;
  std::ranges::sort(runs, {}, &Run::from);  // so that each piece is read once
  const std::int64_t end = runs.back().from + runs.back().count;
  std::span<const float> piece;
  std::int64_t piece_first = 0;
  for (const Run& run : runs)
    for (std::int64_t done = 0; done < run.count;) {
      const std::int64_t from = run.from + done;
      if (from >= piece_first + std::int64_t(piece.size())) {
        piece_first = from;
        piece = file.piece(n, piece_first, end);
      }
      const auto rest = piece.subspan(std::size_t(from - piece_first));
      const auto part = rest.first(std::min(rest.size(), std::size_t(run.count - done)));
      engine::set_values(*copy.destination, run.to + done, part);
      if (progress) progress->add(double(part.size()));
      done += std::int64_t(part.size());
    }
}

}  // namespace

CheckpointInfo open_checkpoint(comm::Communicator& world, const std::filesystem::path& checkpoint) {
  CheckpointInfo info;
  comm::together(world, [&] {
    const Manifest manifest = read_manifest(checkpoint);
    verify_files(manifest, world.rank(), world.size());
    info = manifest.info;
  });
  return info;
}

std::optional<CheckpointInfo> find_checkpoint(comm::Communicator& world,
                                              const std::filesystem::path& run_directory,
                                              std::set<std::int64_t> except) {
  const std::filesystem::path checkpoints = run_directory / "checkpoints";
  const auto newest = [&] {
    for (const std::int64_t step : steps_in(checkpoints))
      if (!except.contains(step)) return step;
    return std::int64_t{-1};
  };
  for (int damaged = 0;;) {
    // Rank 0 decides: another node may not see a new name yet.
    const std::int64_t step = std::stoll(
        comm::broadcast(world, world.rank() == 0 ? std::to_string(newest()) : std::string(), 0));
    // A start from nothing would hide damage, or a disk that cannot be read for a moment.
    if (step < 0 && damaged > 0)
      throw comm::AgreedError(
          Failure::storage,
          "{}: no checkpoint can be used, for the reasons above: mend the cause, "
          "or start anew with --resume none, which sets them aside",
          checkpoints.string());
    if (step < 0) return std::nullopt;
    try {
      CheckpointInfo info = open_checkpoint(world, step_directory(checkpoints, step));
      if (info.step == step) return info;
      if (world.rank() == 0) log::warn("checkpoint of step {} holds step {}", step, info.step);
    } catch (const comm::AgreedError& error) {
      if (world.rank() == 0)
        log::warn("checkpoint of step {} is passed over: {}", step, error.what());
    }
    ++damaged;
    except.insert(step);
  }
}

struct CheckpointReader::Impl {
  Manifest manifest;
  std::map<Tensor, std::vector<StoredSlab>> sources;
  std::set<int> verified{};  ///< files, by rank

  Copies plan_copies(std::vector<Slab>& slabs) const;
};

/// Finds where the values of slabs are. A parameter that was frozen has no moments: they become
/// zero. @throws Error(storage) where it has one of them only
Copies CheckpointReader::Impl::plan_copies(std::vector<Slab>& slabs) const {
  Copies copies;
  for (Slab& slab : slabs) {
    require(is_sound(slab), Failure::bug, "a slab of {} lies outside its tensor", slab.name);
    const auto found = sources.find({slab.name, slab.kind});
    if (slab.kind != "weight" && found == sources.end()) {
      const char* const other = slab.kind == "m" ? "v" : "m";
      require(!sources.contains({slab.name, other}), Failure::storage,
              "{}: holds {} of {}, but not {}", manifest.info.directory.string(), other, slab.name,
              slab.kind);
      fill_with_zeros(slab);
      continue;
    }
    require(found != sources.end(), Failure::storage, "{}: holds no {} of {}",
            manifest.info.directory.string(), slab.kind, slab.name);
    add_copies(copies, slab, found->second, manifest);
  }
  return copies;
}

CheckpointReader::CheckpointReader(const CheckpointInfo& info, bool checked)
    : impl_(
          std::make_unique<Impl>(Impl{.manifest = read_manifest(info.directory), .sources = {}})) {
  Impl& my = *impl_;
  require(my.manifest.info.step == info.step, Failure::storage, "{}: holds step {}, expected {}",
          info.directory.string(), my.manifest.info.step, info.step);
  my.sources = sources_by_tensor(my.manifest);
  for (int rank = 0; checked && rank < info.ranks; ++rank) my.verified.insert(rank);
}

CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::fill(std::vector<Slab>& slabs, Progress* progress) {
  Impl& my = *impl_;
  for (const auto& [rank, by_index] : my.plan_copies(slabs)) {
    if (!my.verified.contains(rank)) verify_file(my.manifest, rank);
    my.verified.insert(rank);
    RankFile file(my.manifest.info.directory / rank_file_name(rank),
                  my.manifest.files[std::size_t(rank)].slabs);
    for (const auto& [n, copies] : by_index)
      for (const Copy& copy : copies) run_copy(file, n, copy, progress);
  }
}

void load_slabs(const CheckpointInfo& info, std::vector<Slab>& slabs, Progress* progress) {
  CheckpointReader(info).fill(slabs, progress);
}

}  // namespace brume::io
