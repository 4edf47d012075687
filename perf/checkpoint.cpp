/// @file What checkpoints cost a training, beside a plain write and fsync of the same bytes, and
/// what comparing replicas does; all in one run, in turns, medians. Files go to a folder of this
/// benchmark's own under TMPDIR, or under the folder that is given.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "comm/session.hpp"
#include "data/sampler.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "engine/engine.hpp"
#include "engine/replicas.hpp"
#include "io/checkpoint.hpp"
#include "io/checkpoint_clock.hpp"
#include "plan/plan.hpp"

namespace {

using namespace brume;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int rounds = 7, steps_beside = 4;
constexpr int compare_every = 100;  // steps, a deck's default
constexpr double mtbf_s = 3 * 3600.0;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Tells when a folder appears.
class Watch {
 public:
  Watch(fs::path folder, Clock::time_point start)
      : thread_([this, folder = std::move(folder), start] {
          while (!ends_ && !fs::exists(folder))
            std::this_thread::sleep_for(std::chrono::microseconds(500));
          appeared_s_ = seconds_since(start);
        }) {}
  ~Watch() { stop(); }
  double stop() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
    return appeared_s_;
  }

 private:
  std::atomic<bool> ends_ = false;
  std::atomic<double> appeared_s_ = 0.0;
  std::thread thread_;
};

/// What one way of writing took in each round, of the slowest rank. [s]
struct Times {
  std::vector<double> committed, standing;
};

class Bench {
 public:
  Bench(const comm::Session& session, comm::Communicator& world, const fs::path& folder)
      : world_(world), folder_(folder), data_(data::random_tokens(8192, 128, 100'000)) {
    const model::Config model{.num_layers = 6,
                              .hidden_size = 512,
                              .num_heads = 8,
                              .ffn_size = 2048,
                              .seq_len = 128,
                              .vocab_size = 8192};
    plan::Stage stage{.microbatch = 4, .dp = world.size()};
    stage.zero_level = world.size() > 1 ? 1 : 0;
    engine::Settings settings;
    settings.steps = 1000;
    settings.threads = device::threads_per_rank(session.ranks_per_node());
    plan_ = plan::equal_stages(model, 4 * world.size(), 1, stage);
    engine_ = std::make_unique<engine::Engine>(plan_, model, settings, world);
    bytes_ = io::owned_bytes(engine_->slabs()).trained;
    values_.assign(std::size_t(bytes_), std::byte{42});
    in_place_.emplace(folder_ / "in-place", world_, 0, io::Retention{.last = 1});
    copying_.emplace(folder_ / "copied", world_, bytes_, io::Retention{.last = 1});
  }

  void run() {
    Times plain, in_place, copied, beside;
    std::vector<double> steps_s, comparisons_s;
    for (int round = -1; round < rounds; ++round) {
      if (round == 0) plain = in_place = copied = beside = {};  // the first one warmed up
      for (int i = 0; i < 3; ++i)  // in turns, because the first one finds memory cold
        switch ((round + i + 1) % 3) {
          case 0: add(plain, write_plainly(), 0.0); break;
          case 1: checkpoint(in_place, *in_place_, "in-place", false); break;
          default: checkpoint(copied, *copying_, "copied", false);
        }
      for (int i = 0; i < steps_beside; ++i) steps_s.push_back(step());
      usual_s_ = median(steps_s);
      checkpoint(beside, *copying_, "copied", true);
      comparisons_s.push_back(compare_replicas());
    }
    std::vector<double> all_bytes{double(bytes_)};
    world_.all_reduce(all_bytes, comm::Reduction::sum);
    if (world_.rank() != 0) return;
    const double plain_s = median(plain.committed);
    fmt::print("{} ranks, {} of weights and moments, a step {}; plain write and fsync {} ({}/s)\n",
               world_.size(), format_bytes(all_bytes[0]), format_seconds(usual_s_),
               format_seconds(plain_s), format_bytes(all_bytes[0] / plain_s));
    fmt::print("{:<24} {:>10} {:>7} {:>10} {:>10} {:>9}\n", "checkpoint", "committed", "ratio",
               "standing", "interval", "share");
    print("from where values lie", in_place, plain_s);
    print("from a copy", copied, plain_s);
    print("from a copy, training on", beside, plain_s);
    if (world_.size() == 1) return;
    const double comparison_s = median(comparisons_s);
    fmt::print(
        "a comparison of replicas takes {}: {:.3f} % of a training that compares every {} steps\n",
        format_seconds(comparison_s), 100.0 * comparison_s / (compare_every * usual_s_),
        compare_every);
  }

 private:
  double step() { return slowest(engine_->step(data_).iteration_s); }

  double compare_replicas() {
    const Clock::time_point start = Clock::now();
    require(!engine::compare_replicas(*engine_, plan_, world_), Failure::bug, "replicas differ");
    return slowest(seconds_since(start));
  }

  double slowest(double mine_s) {
    std::vector<double> all{mine_s};
    world_.all_reduce(all, comm::Reduction::max);
    return all[0];
  }

  void add(Times& times, double committed_s, double standing_s) {
    times.committed.push_back(slowest(committed_s));
    times.standing.push_back(slowest(standing_s));
  }

  /// Nothing that was written before is still on its way to the disk.
  void begin_together() {
    if (world_.rank() == 0) ::sync();
    slowest(0.0);
  }

  double write_plainly() {
    const fs::path path = folder_ / fmt::format("plain-{}", world_.rank());
    begin_together();
    const Clock::time_point start = Clock::now();
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0640));
    write_all(file, values_, path.string());
    sync(file, path.string());
    const double time_s = seconds_since(start);
    fs::remove(path);
    return time_s;
  }

  /// @param beside  the training goes on while the checkpoint is written
  void checkpoint(Times& times, io::CheckpointWriter& writer, const char* name, bool beside) {
    io::CheckpointInfo info;
    info.step = ++number_;
    begin_together();
    const Clock::time_point start = Clock::now();
    Watch watch(folder_ / name / "checkpoints" / fmt::format("step-{}", number_), start);
    writer.start(info, engine_->slabs());
    double standing_s = seconds_since(start);
    for (int i = 0; beside && i < steps_beside; ++i) standing_s += step() - usual_s_;
    writer.finish();
    add(times, watch.stop(), standing_s);
  }

  void print(const char* name, const Times& times, double plain_s) const {
    const double committed_s = median(times.committed), standing_s = median(times.standing);
    const double interval_s = io::best_interval_s(standing_s, mtbf_s);
    fmt::print("{:<24} {:>10} {:>7.2f} {:>10} {:>10} {:>7.2f} %\n", name,
               format_seconds(committed_s), plain_s / committed_s, format_seconds(standing_s),
               format_seconds(interval_s), 100.0 * standing_s / interval_s);
  }

  comm::Communicator& world_;
  fs::path folder_;
  data::Sampler data_;
  plan::Plan plan_;
  std::unique_ptr<engine::Engine> engine_;
  std::optional<io::CheckpointWriter> in_place_, copying_;
  std::vector<std::byte> values_;
  std::int64_t bytes_ = 0;   ///< of this rank
  std::int64_t number_ = 0;  ///< of checkpoints
  double usual_s_ = 0.0;     ///< a step that nothing disturbs
};

}  // namespace

int main(int argc, char** argv) {
  comm::Session session;
  const auto world = session.world();
  try {
    std::string folder =
        (fs::path(argc > 1 ? argv[1] : fs::temp_directory_path()) / "brume-perf-XXXXXX").string();
    if (world->rank() == 0)
      require(::mkdtemp(folder.data()) != nullptr, Failure::storage, "{}: cannot be made", folder);
    folder = comm::broadcast(*world, folder, 0);
    device::use_device(session.node_rank(), world->size());
    Bench(session, *world, folder).run();
    if (world->rank() == 0) fs::remove_all(folder);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "perf_checkpoint: rank {}: {}\n", world->rank(), error.what());
    comm::Session::abort(1);
    return 1;
  }
}
