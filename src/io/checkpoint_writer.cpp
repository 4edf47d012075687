/// @file Writing a checkpoint: copies, files of all ranks, the manifest.
#include "checkpoint_writer.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "failpoint.hpp"
#include "manifest.hpp"
#include "rank_file.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

/// Gives `made` its final name. What had that name before has that of `made` afterwards.
void move_into_place(const fs::path& made, const fs::path& final_name) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(final_name, error))) return rename_to(made, final_name);
  // An exchange leaves no moment without a checkpoint of that name; not every file system has it.
  if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, final_name.c_str(), RENAME_EXCHANGE) == 0)
    return;
  const fs::path aside = final_name.string() + ".old.tmp";
  rename_to(final_name, aside);
  rename_to(made, final_name);
  rename_to(aside, made);
}

/// Values of slabs as they are when asked for.
GetValues current(const std::vector<engine::Slab>& slabs) {
  return [slabs](std::size_t n, std::int64_t first, std::span<float> room) {
    engine::get_values(slabs[n], first, room);
    return room;
  };
}

}  // namespace

/// Takes the owned ones of all slabs, constants last, if at all.
void CheckpointWriter::Impl::begin(const CheckpointInfo& next,
                                   const std::vector<engine::Slab>& all) {
  wait();
  info = next;
  info.ranks = comm->size();
  links = !comm::broadcast(*comm, linkable ? "y" : "", 0).empty();
  const auto own = [&](std::string name, bool constant) {
    OwnFile file{.name = std::move(name), .slabs = {}, .first_slab = slabs.size()};
    std::ranges::copy_if(all, std::back_inserter(file.slabs), [&](const engine::Slab& slab) {
      return slab.owned && constants.contains(slab.name) == constant;
    });
    if (constant && file.slabs.empty()) return;
    slabs.insert(slabs.end(), file.slabs.begin(), file.slabs.end());
    files.push_back(std::move(file));
  };
  slabs.clear();
  files.clear();
  own(rank_file_name(rank()), false);
  if (!links) own(constants_file_name(rank()), true);
}

/// Values of the slabs as they are now.
GetValues CheckpointWriter::Impl::copied() {
  copies.resize(slabs.size());
  for (std::size_t n = 0; n < slabs.size(); ++n) {
    copies[n].resize(std::size_t(slabs[n].elements));
    engine::get_values(slabs[n], 0, copies[n]);
  }
  return [this](std::size_t n, std::int64_t first, std::span<float> room) {
    return std::span<const float>(copies[n]).subspan(std::size_t(first), room.size());
  };
}

void CheckpointWriter::Impl::wait() {
  if (thread.joinable()) thread.join();
  // Failures are agreed on where they happen, so all ranks throw here or none.
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

void CheckpointWriter::Impl::run() noexcept {
  const auto start = std::chrono::steady_clock::now();
  try {
    write();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  longest_write_s = links && longest_has_constants
                        ? taken.count()
                        : std::max<double>(longest_write_s, taken.count());
  longest_has_constants = !links && !constants.empty();
  get_values = nullptr;
}

void CheckpointWriter::Impl::write() {
  in_place = false;
  try {
    commit();
  } catch (const comm::AgreedError&) {
    // All ranks have left the directory, because they agreed.
    if (rank() == 0) discard();
    throw;
  }
  if (rank() == 0) find_linkable(final_name());
  retain();
}

void CheckpointWriter::Impl::commit() {
  comm::together(*comm, [&] {
    if (rank() == 0) prepare();
  });
  std::string mine;
  comm::together(*comm, [&] {
    write_mine();
    for (const OwnFile& file : files)
      mine += (mine.empty() ? "" : ",\n") + entry_text(file.name, file.digest, file.slabs);
  });
  const std::vector<std::string> entries = comm->gather_at(mine, 0);
  comm::together(*comm, [&] {
    if (rank() == 0) publish(entries);
  });
  comm::together(*comm, [&] { prove(); });
}

void CheckpointWriter::Impl::find_linkable(const fs::path& checkpoint) {
  linkable = ConstantFiles::find(checkpoint, constants, root);
}

void CheckpointWriter::Impl::prepare() {
  std::error_code error;
  fs::remove_all(temporary(), error);
  make_directory(temporary());
  if (!links) return;
  try {
    linkable->link_in(temporary());
  } catch (const Error&) {
    linkable.reset();  // the next one has files of its own
    throw;
  }
}

void CheckpointWriter::Impl::write_mine() {
  for (OwnFile& own : files) {
    NewFile file(temporary() / own.name);
    failpoint("checkpoint_after_open", rank());
    write_rank_file(file, info.step, rank(), own.slabs,
                    [&](std::size_t n, std::int64_t first, std::span<float> room) {
                      return get_values(own.first_slab + n, first, room);
                    });
    file.flush();
    failpoint("after_write", rank());
    file.sync();
    file.close();
    own.digest = file.digest();
    failpoint("after_fsync", rank());
  }
}

void CheckpointWriter::Impl::publish(std::vector<std::string> entries) {
  if (links) std::ranges::copy(linkable->entries(), std::back_inserter(entries));
  NewFile file(temporary() / manifest_name);
  file.write(as_bytes(manifest_text(info, entries)));
  file.sync();
  file.close();
  sync_directory(temporary());
  failpoint("after_manifest", rank());
  failpoint("before_rename", rank());
  move_into_place(temporary(), final_name());
  in_place = true;
  failpoint("after_rename", rank());
  sync_directory(root);
}

/// Reads back what this rank wrote.
void CheckpointWriter::Impl::prove() const {
  if (rank() == 0) {
    const Manifest stored = read_manifest(final_name());
    require(stored.info.step == info.step && stored.info.ranks == comm->size(), Failure::storage,
            "{}: holds step {} of {} ranks", final_name().string(), stored.info.step,
            stored.info.ranks);
  }
  for (const OwnFile& file : files) verify_file(final_name() / file.name, file.digest, true);
}

OwnedBytes owned_bytes(const std::vector<engine::Slab>& slabs,
                       const std::set<std::string>& constants) {
  OwnedBytes bytes;
  for (const engine::Slab& slab : slabs)
    if (slab.owned)
      (constants.contains(slab.name) ? bytes.constant : bytes.trained) +=
          slab.elements * std::int64_t(sizeof(float));
  return bytes;
}

CheckpointWriter::CheckpointWriter(fs::path directory, comm::Communicator& world,
                                   std::int64_t max_copy_bytes, Retention retention,
                                   std::set<std::string> constants)
    : impl_(std::make_unique<Impl>()) {
  impl_->root = directory / "checkpoints";
  impl_->comm = world.split(0, world.rank());
  impl_->max_copy_bytes = max_copy_bytes;
  impl_->retention = retention;
  impl_->constants = std::move(constants);
  comm::together(*impl_->comm, [&] {
    if (world.rank() != 0) return;
    make_directory(impl_->root);
    sync_directory(impl_->root.parent_path());
  });
}

CheckpointWriter::~CheckpointWriter() {
  try {
    impl_->wait();
  } catch (const std::exception& error) {
    log::error("the last checkpoint was not written: {}", error.what());
  }
}

void CheckpointWriter::start(const CheckpointInfo& info, const std::vector<engine::Slab>& slabs) {
  impl_->begin(info, slabs);
  const OwnedBytes bytes = owned_bytes(impl_->slabs, impl_->constants);
  const bool copies = bytes.constant == 0 && takes_copy(bytes.trained, impl_->max_copy_bytes);
  comm::together(*impl_->comm,
                 [&] { impl_->get_values = copies ? impl_->copied() : current(impl_->slabs); });
  if (copies)
    impl_->thread = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "checkpoint");
      impl_->run();
    });
  else
    impl_->run();
}

void CheckpointWriter::write(const CheckpointInfo& info, const std::vector<engine::Slab>& slabs,
                             const GetValues& get_values) {
  require(std::ranges::all_of(slabs, &engine::Slab::owned), Failure::bug,
          "slabs without memory must be owned");
  require(impl_->constants.empty(), Failure::bug, "values that nobody holds are not linked to");
  impl_->begin(info, slabs);
  impl_->get_values = get_values;
  impl_->run();
  impl_->wait();
}

void CheckpointWriter::finish() { impl_->wait(); }

void CheckpointWriter::trust(const CheckpointInfo& checkpoint) {
  std::error_code error;
  const fs::path own = step_directory(impl_->root, checkpoint.step);
  if (fs::equivalent(own, checkpoint.directory, error)) impl_->proven.insert(checkpoint.step);
  if (impl_->rank() == 0) impl_->find_linkable(checkpoint.directory);
}

double CheckpointWriter::longest_write_s() const { return impl_->longest_write_s; }

std::int64_t CheckpointWriter::newest_whole() const {
  for (const std::int64_t step : steps_in(impl_->root))
    if (impl_->proven.contains(step)) return step;
  return -1;
}

}  // namespace brume::io
