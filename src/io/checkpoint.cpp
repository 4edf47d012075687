#include "io/checkpoint.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "files.hpp"
#include "manifest.hpp"
#include "rank_file.hpp"
#include "slab_map.hpp"

namespace brume::io {
namespace {

using engine::Slab;

/// A slab of the checkpoint: slab `index` of file `rank`.
struct Source {
  int rank;
  std::size_t index;
};

/// Where a source's elements go.
struct Copy {
  Slab* destination;
  std::vector<Run> runs;
};

using Tensor = std::pair<std::string, std::string>;                      // name, kind
using Copies = std::map<int, std::map<std::size_t, std::vector<Copy>>>;  // rank, index

std::map<Tensor, std::vector<Source>> sources_by_tensor(const Manifest& manifest) {
  std::map<Tensor, std::vector<Source>> sources;
  for (int rank = 0; rank < manifest.info.ranks; ++rank) {
    const std::vector<Slab>& slabs = manifest.files[std::size_t(rank)].slabs;
    for (std::size_t n = 0; n < slabs.size(); ++n)
      sources[{slabs[n].name, slabs[n].kind}].push_back({rank, n});
  }
  return sources;
}

/// Finds the sources of one slab. @throws Error(storage) unless each element has one
void add_copies(Copies& copies, Slab& slab, const std::vector<Source>& sources,
                const Manifest& manifest) {
  std::vector<Run> all;
  for (const Source& source : sources) {
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

Copies plan_copies(const Manifest& manifest, std::vector<Slab>& slabs) {
  const std::map<Tensor, std::vector<Source>> sources = sources_by_tensor(manifest);
  Copies copies;
  for (Slab& slab : slabs) {
    require(is_sound(slab), Failure::bug, "a slab of {} lies outside its tensor", slab.name);
    const auto found = sources.find({slab.name, slab.kind});
    require(found != sources.end(), Failure::storage, "{}: holds no {} of {}",
            manifest.info.directory.string(), slab.kind, slab.name);
    add_copies(copies, slab, found->second, manifest);
  }
  return copies;
}

/// Reads a rank's file whole, so that what was hashed is what is used.
Bytes read_verified(const Manifest& manifest, int rank) {
  const std::filesystem::path path = manifest.info.directory / rank_file_name(rank);
  const Digest& expected = manifest.files[std::size_t(rank)].digest;
  Bytes bytes = read_file(path, Failure::storage, expected.bytes);
  const Digest found = digest(bytes);
  require(found == expected, Failure::storage, "{}: is damaged: its hash is {}, expected {}",
          path.string(), found.hash, expected.hash);
  return bytes;
}

void run_copies(const std::vector<float>& values, const std::vector<Copy>& copies) {
  for (const Copy& copy : copies)
    for (const Run& run : copy.runs)
      engine::set_values(*copy.destination, run.to,
                         std::span(values).subspan(std::size_t(run.from), std::size_t(run.count)));
}

}  // namespace

std::optional<CheckpointInfo> find_checkpoint(const std::filesystem::path& run_directory,
                                              const std::set<std::int64_t>& except) {
  const std::filesystem::path checkpoints = run_directory / "checkpoints";
  for (const std::int64_t step : steps_in(checkpoints)) {
    if (except.contains(step)) continue;
    try {
      return open_step(checkpoints, step).info;
    } catch (const Error& error) {
      log::warn("checkpoint of step {} is passed over: {}", step, error.what());
    }
  }
  return std::nullopt;
}

CheckpointInfo open_checkpoint(const std::filesystem::path& checkpoint) {
  const Manifest manifest = read_manifest(checkpoint);
  verify_files(manifest);
  return manifest.info;
}

void load_slabs(const CheckpointInfo& info, std::vector<Slab>& slabs) {
  const Manifest manifest = read_manifest(info.directory);
  require(manifest.info.step == info.step, Failure::storage, "{}: holds step {}, expected {}",
          info.directory.string(), manifest.info.step, info.step);
  for (const auto& [rank, by_index] : plan_copies(manifest, slabs)) {
    std::vector<std::size_t> wanted;
    for (const auto& entry : by_index) wanted.push_back(entry.first);
    read_rank_image(read_verified(manifest, rank), (info.directory / rank_file_name(rank)).string(),
                    manifest.files[std::size_t(rank)].slabs, wanted,
                    [&](std::size_t n, const std::vector<float>& values) {
                      run_copies(values, by_index.at(n));
                    });
  }
}

}  // namespace brume::io
