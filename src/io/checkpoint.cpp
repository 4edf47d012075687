#include "io/checkpoint.hpp"

#include <sys/resource.h>

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
#include "step_directories.hpp"

namespace brume::io {

namespace {

using engine::Slab;

/// The slab, and the runs in it, that take the elements of one source.
struct Copy {
  Slab* destination;
  std::vector<Run> runs;
};

/// A slab of a file, and what is taken of it.
struct Source {
  Slab stored;
  std::vector<Copy> copies;
};

using Tensor = std::pair<std::string, std::string>;            // name, kind
using Sources = std::map<int, std::map<std::size_t, Source>>;  // file, index in it

/// A slab to fill, and the runs that fill it.
struct Wanted {
  Slab* slab;
  std::vector<Run> runs;
};

void fill_with_zeros(const Slab& slab) {
  const std::vector<float> zeros(std::size_t(std::min(slab.elements, piece_elements)));
  for (std::int64_t first = 0; first < slab.elements; first += piece_elements)
    engine::set_values(
        slab, first,
        std::span(zeros).first(std::size_t(std::min(piece_elements, slab.elements - first))));
}

/// A kind of optimizer state that is held of a parameter; "" for none.
std::string state_in(const std::set<Tensor>& held, const std::string& parameter) {
  for (auto at = held.lower_bound({parameter, ""}); at != held.end() && at->first == parameter;
       ++at)
    if (at->second != "weight") return at->second;
  return "";
}

/// Puts values of slab n of a file, which is stored so, where they belong.
void run_copy(RankFile& file, std::size_t n, const Slab& stored, const Copy& copy,
              Progress* progress) {
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
        piece = file.piece(n, stored, piece_first, end);
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
  // Of all slabs only those are of use to a rank that it comes to read.
  std::string text;
  comm::together(world, [&] {
    if (world.rank() == 0) text = brief_text(read_manifest(checkpoint));
  });
  text = comm::broadcast(world, std::move(text), 0);
  CheckpointInfo info;
  comm::together(world, [&] {
    const Manifest manifest = parse_manifest(text, checkpoint);
    for (auto file = std::size_t(world.rank()); file < manifest.files.size();
         file += std::size_t(world.size()))
      verify_file(checkpoint / manifest.info.files[file], manifest.files[file]);
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

bool has_checkpoint(const std::filesystem::path& run_directory) {
  return !steps_in(run_directory / "checkpoints").empty();
}

bool has_checkpoint_of(const std::filesystem::path& run_directory, const std::string& job) {
  const std::filesystem::path checkpoints = run_directory / "checkpoints";
  return !job.empty() && std::ranges::any_of(steps_in(checkpoints), [&](std::int64_t step) {
    try {
      return read_manifest(step_directory(checkpoints, step)).info.job == job;
    } catch (const Error&) {
      return false;
    }
  });
}

bool is_in(const std::filesystem::path& run_directory, const CheckpointInfo& checkpoint) {
  std::error_code none;
  return std::filesystem::equivalent(step_directory(run_directory / "checkpoints", checkpoint.step),
                                     checkpoint.directory, none);
}

struct CheckpointReader::Impl {
  CheckpointInfo info;
  Bytes manifest;
  std::map<int, Descriptor> held{};  ///< files, by index

  std::string path(int file) const { return (info.directory / info.files[file]).string(); }
  Sources find_sources(std::vector<Slab>& slabs) const;
};

/// Finds where the values of slabs are. A parameter that was frozen has no optimizer state, which
/// becomes zero. @throws Error(storage) if it has a part of the state, or not each element once
Sources CheckpointReader::Impl::find_sources(std::vector<Slab>& slabs) const {
  std::map<Tensor, std::vector<Wanted>> wanted;
  for (Slab& slab : slabs) {
    require(is_sound(slab), Failure::bug, "a slab of {} lies outside its tensor", slab.name);
    wanted[{slab.name, slab.kind}].push_back({&slab, {}});
  }
  Sources sources;
  std::set<Tensor> held;
  const auto add = [&](int file, std::size_t n, const Slab& stored) {
    const Tensor tensor(stored.name, stored.kind);
    held.insert(tensor);
    const auto found = wanted.find(tensor);
    if (found == wanted.end()) return;
    for (auto& [slab, all_runs] : found->second) {
      require(stored.global_shape == slab->global_shape, Failure::storage,
              "{} has shape [{}], expected [{}]", slab->name, fmt::join(stored.global_shape, ", "),
              fmt::join(slab->global_shape, ", "));
      std::vector<Run> runs = shared_runs(stored, *slab);
      if (runs.empty()) continue;
      all_runs.insert(all_runs.end(), runs.begin(), runs.end());
      Source& source = sources[file][n];
      source.stored = stored;
      source.copies.push_back({slab, std::move(runs)});
    }
  };
  const Manifest whole = parse_manifest(as_text(manifest), info.directory, add);
  const std::string name = info.directory.string();
  require(whole.info.step == info.step && whole.info.files == info.files, Failure::storage,
          "{}: is no longer the checkpoint of step {} that was opened", name, info.step);

  for (auto& [tensor, parts] : wanted) {
    const auto& [parameter, kind] = tensor;
    const bool frozen = kind != "weight" && !held.contains(tensor);
    const std::string other = frozen ? state_in(held, parameter) : "";
    require(other.empty(), Failure::storage, "{}: holds {} of {}, but not {}", name, other,
            parameter, kind);
    require(frozen || held.contains(tensor), Failure::storage, "{}: holds no {} of {}", name, kind,
            parameter);
    for (const Wanted& part : parts) {
      if (frozen) fill_with_zeros(*part.slab);
      require(frozen || covers_once(part.runs, part.slab->elements), Failure::storage,
              "{}: the files do not hold each element of {} of {} once", name, kind, parameter);
    }
  }
  return sources;
}

CheckpointReader::CheckpointReader(const CheckpointInfo& info)
    : impl_(
          std::make_unique<Impl>(Impl{.info = info, .manifest = manifest_bytes(info.directory)})) {}

CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::hold() {
  Impl& my = *impl_;
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const int most = int(std::min<rlim_t>(limit.rlim_cur / 2, 1 << 20));
  for (int file = 0; file < std::min(int(my.info.files.size()), most); ++file)
    my.held.emplace(file, open_regular(my.path(file), Failure::storage));
}

void CheckpointReader::fill(std::vector<Slab>& slabs, Progress* progress) {
  Impl& my = *impl_;
  for (const auto& [index, by_index] : my.find_sources(slabs)) {
    const auto held = my.held.find(index);
    RankFile file = held != my.held.end()
                        ? RankFile(held->second, my.path(index))
                        : RankFile(open_regular(my.path(index), Failure::storage), my.path(index));
    for (const auto& [n, source] : by_index)
      for (const Copy& copy : source.copies) run_copy(file, n, source.stored, copy, progress);
  }
}

void load_slabs(const CheckpointInfo& info, std::vector<Slab>& slabs, Progress* progress) {
  CheckpointReader(info).fill(slabs, progress);
}

}  // namespace brume::io
