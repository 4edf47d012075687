/// @file Runs kernels block by block. A thread runs until it waits for others, and goes on when
/// they have come, so barriers and shuffles are real.
#include <cxxabi.h>

#include <cstdlib>

#include "thread.hpp"

namespace brume::emulation {
namespace {

std::map<std::string, Kernel>& kernels() {
  static auto& all = *new std::map<std::string, Kernel>;
  return all;
}

/// brume::kernels::update<float> of all that a compiler says of a body within it.
std::string readable(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> whole(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  if (status != 0) return mangled;
  std::string name = whole.get();
  const std::string inside = "brume::kernels::", unnamed = "(anonymous namespace)::";
  for (auto at = name.find(unnamed); at != std::string::npos; at = name.find(unnamed))
    name.erase(at, unnamed.size());
  const auto first = name.find(inside);
  if (first == std::string::npos) return name;
  name.erase(0, first + inside.size());
  return name.substr(0, name.find('('));
}

/// What two threads may not do to a word of shared memory between two barriers.
struct SharedWord {
  int written_after = -1, writer = -1;  ///< barriers
  int read_after = -1, reader = -1;
  bool read_by_many = false;
};

}  // namespace

Registered::Registered(const char* mangled, Kernel kernel) {
  kernel.name = readable(mangled);
  kernels().emplace(mangled, std::move(kernel));
}

const Kernel& kernel_of(const std::string& mangled) {
  const auto found = kernels().find(mangled);
  if (found == kernels().end()) report("no kernel " + mangled + " was translated");
  return found->second;
}

/// A block of threads; a thread of the host's keeps one for all its kernels.
class Block {
 public:
  /// @param first  a thread of the block, all but its own numbers
  void run(const Thread& first) {
    const Kernel& kernel = first.launch->kernel();
    const Dim size = first.ntid;
    const std::uint32_t count = size.x * size.y * size.z;
    if (count > most_threads)
      report(fmt::format("{} has {} threads a block, of at most {}", kernel.name, count,
                         most_threads));
    launch_ = first.launch;
    shared_.assign(kernel.shared_bytes, std::byte{0xff});
    words_.assign(kernel.shared_bytes / 4 + 1, {});
    locals_.assign(count * kernel.local_bytes, std::byte{0xff});
    registers_.resize(count * kernel.register_bytes);
    barriers_ = 0, alive_ = count;
    arrived_ = {};
    for (std::uint32_t i = count; i-- > 0;) {
      Thread& thread = threads_[i] = first;
      thread.tid = {i % size.x, i / size.x % size.y, i / size.x / size.y};
      thread.number = i;
      thread.block = this;
      thread.local = locals_.data() + i * kernel.local_bytes;
      thread.registers = registers_.data() + i * kernel.register_bytes;
      if (kernel.register_bytes > 0)
        ready_.push_back(i);
      else
        kernel.run(thread);
    }
    // The one that became ready last goes on first: lanes of a warp stay together, and what they
    // have in the cache.
    while (!ready_.empty()) {
      const std::uint32_t number = ready_.back();
      ready_.pop_back();
      if (!kernel.run(threads_[number])) continue;
      --alive_;
      open_barrier();
    }
    if (kernel.register_bytes > 0 && alive_ > 0)
      report(
          fmt::format("{}: {} threads of a block wait at a barrier, {} for lanes of a shuffle "
                      "that never come",
                      kernel.name, at_barrier_.size(), alive_ - at_barrier_.size()));
  }

  bool arrive_at_barrier(Thread& thread) {
    if (++thread.barriers == left_out_) return true;
    at_barrier_.push_back(thread.number);
    open_barrier();
    return false;
  }

  /// The last lane exchanges the values of all.
  bool arrive_at_shuffle(Thread& thread) {
    const std::uint32_t warp = thread.number / 32, lane = thread.number % 32;
    const std::uint32_t mask = thread.shuffle.mask;
    std::uint32_t& arrived = arrived_[warp];
    arrived |= 1u << lane;
    if ((arrived & mask) != mask) return false;
    Thread* const lanes = threads_.data() + warp * 32;
    const auto fault = [&](const char* what) {
      report(fmt::format("{}, PTX line {}: lane {} of a shuffle of lanes {:#010x} {}",
                         launch_->kernel().name, thread.shuffle.line, lane, mask, what));
    };
    if ((mask >> lane & 1) == 0) fault("is none of them");
    std::array<std::uint32_t, 32> values;
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int i = std::countr_zero(rest);
      const Thread::Shuffle& other = lanes[i].shuffle;
      if (other.mask != mask || other.line != thread.shuffle.line)
        fault("meets one at another shuffle");
      values[std::size_t(i)] = other.value;
    }
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const auto i = std::uint32_t(std::countr_zero(rest));
      Thread::Shuffle& to = lanes[i].shuffle;
      const std::uint32_t segment = to.clamp >> 8 & 31;
      const std::uint32_t last = (i & segment) | (to.clamp & 31 & ~segment);
      const std::uint32_t from = i ^ (to.distance & 31);
      to.other = from <= last;
      if (to.other && (mask >> from & 1) == 0) fault("takes from one that is none of them");
      if (to.other) to.value = values[from];
      if (i != lane) ready_.push_back(warp * 32 + i);
    }
    arrived &= ~mask;
    return true;
  }

  std::byte* shared(Thread& thread, std::uint64_t at, std::uint32_t bytes, std::uint32_t alignment,
                    Access access) {
    if (at % alignment != 0 || at > shared_.size() || shared_.size() - at < bytes)
      report(
          fmt::format("{}: {} bytes at {} of a block's {} bytes of shared memory, which are out of "
                      "bounds or not aligned",
                      launch_->kernel().name, bytes, at, shared_.size()));
    const int me = int(thread.number);
    for (std::size_t w = at / 4; w <= (at + bytes - 1) / 4; ++w) {
      SharedWord& word = words_[w];
      const bool written = word.written_after == barriers_ && word.writer != me;
      const bool read = word.read_after == barriers_ && (word.reader != me || word.read_by_many);
      if (written || (read && access == Access::write))
        report(fmt::format(
            "{}: a hazard in shared memory: thread {} {} bytes {} to {}, which thread {} {}, and "
            "no barrier lies between",
            launch_->kernel().name, me, access == Access::write ? "writes" : "reads", w * 4,
            w * 4 + 4, written ? word.writer : word.reader, written ? "writes" : "reads"));
      if (access == Access::write) {
        word.written_after = barriers_, word.writer = me;
      } else {
        word.read_by_many =
            word.read_after == barriers_ && (word.read_by_many || word.reader != me);
        word.read_after = barriers_, word.reader = me;
      }
    }
    return shared_.data() + at;
  }

 private:
  static constexpr std::size_t most_threads = 1024;

  /// Lets all go on if the last one has come.
  void open_barrier() {
    if (at_barrier_.size() < alive_) return;
    while (!at_barrier_.empty()) {
      ready_.push_back(at_barrier_.back());
      at_barrier_.pop_back();
    }
    ++barriers_;
  }

  const int left_out_ = planted("barrier");
  Launch* launch_ = nullptr;
  std::vector<Thread> threads_ = std::vector<Thread>(most_threads);
  std::vector<std::byte> shared_, locals_, registers_;
  std::vector<SharedWord> words_;
  std::array<std::uint32_t, most_threads / 32> arrived_{};  ///< [warps] lanes at shuffles
  std::vector<std::uint32_t> ready_, at_barrier_;           ///< threads
  std::size_t alive_ = 0;
  int barriers_ = 0;  ///< that were passed
};

bool arrive_at_barrier(Thread& thread) { return thread.block->arrive_at_barrier(thread); }
bool arrive_at_shuffle(Thread& thread) { return thread.block->arrive_at_shuffle(thread); }
std::byte* shared(Thread& thread, std::uint64_t at, std::uint32_t bytes, std::uint32_t alignment,
                  Access access) {
  return thread.block->shared(thread, at, bytes, alignment, access);
}

namespace {
/// Marks of large blocks, cleared for the thread's next kernel, by the blocks' sizes.
thread_local std::map<std::uint64_t, std::vector<std::unique_ptr<Marks>>> spare_marks;
}  // namespace

Launch::Launch(const Kernel& kernel, Dim grid, Dim block, std::vector<std::byte> parameters)
    : kernel_(kernel), grid_(grid), block_(block), parameters_(std::move(parameters)) {
  all_.push_back(std::make_unique<Marks>());  // of no memory
  sites_.assign(kernel.site_lines.size(), all_.front().get());
}

std::vector<Interval> Launch::run() {
  thread_local const std::unique_ptr<Block> block = std::make_unique<Block>();
  Thread thread{};
  thread.ntid = block_;
  thread.nctaid = grid_;
  thread.launch = this;
  for (thread.ctaid.z = 0; thread.ctaid.z < grid_.z; ++thread.ctaid.z)
    for (thread.ctaid.y = 0; thread.ctaid.y < grid_.y; ++thread.ctaid.y)
      for (thread.ctaid.x = 0; thread.ctaid.x < grid_.x; ++thread.ctaid.x) block->run(thread);
  std::vector<Interval> found = intervals();
  for (auto& marks : all_) {
    if (marks->bytes < std::uint64_t{1} << Marks::stretch_shift) continue;
    marks->clear();
    spare_marks[marks->bytes].push_back(std::move(marks));
  }
  return found;
}

std::string Launch::place(std::uint32_t site) const {
  return fmt::format("{}, PTX line {},", kernel_.name, kernel_.site_lines[site]);
}

Marks* Launch::enter(std::uint32_t site, std::uint64_t at, std::uint32_t bytes,
                     std::uint32_t alignment) {
  if (at % alignment != 0)
    report(fmt::format("{} touches {} bytes at {:#x}, which is not aligned to {}", place(site),
                       bytes, at, alignment));
  for (const auto& marks : all_)
    if (at - marks->base < marks->bytes && marks->bytes - (at - marks->base) >= bytes)
      return sites_[site] = marks.get();
  const Locked locked;
  Allocation* const block = find(at, bytes, place(site));
  if (block == nullptr)
    report(fmt::format("{} touches {} bytes at {:#x}, which are the host's own", place(site), bytes,
                       at));
  auto& spare = spare_marks[block->bytes];
  auto marks = std::make_unique<Marks>();
  if (!spare.empty()) {
    marks = std::move(spare.back());
    spare.pop_back();
  } else {
    for (auto& bits : marks->bits)
      bits.reset(static_cast<std::uint64_t*>(std::calloc(block->bytes / 64 + 1, 8)));
    marks->stretches.reset(
        static_cast<std::uint8_t*>(std::calloc((block->bytes >> Marks::stretch_shift) + 1, 1)));
    if (!marks->bits[0] || !marks->bits[1] || !marks->stretches)
      report("the host has no memory for the marks of a kernel");
  }
  marks->allocation = block, marks->base = block->base;
  marks->bytes = block->bytes, marks->host = block->host;
  all_.push_back(std::move(marks));
  return sites_[site] = all_.back().get();
}

std::vector<Interval> Launch::intervals() const {
  std::vector<Interval> found;
  for (const auto& marks : all_) {
    if (marks->allocation == nullptr) continue;
    for (const Access access : {Access::read, Access::write}) marks->add_intervals(access, found);
  }
  return found;
}

void Marks::clear() {
  for (std::uint64_t stretch = 0; stretch <= bytes >> stretch_shift; ++stretch) {
    if (!std::exchange(stretches[stretch], 0)) continue;
    for (auto& some : bits)
      std::fill(some.get() + first_word(stretch), some.get() + first_word(stretch + 1), 0);
  }
}

void Marks::add_intervals(Access access, std::vector<Interval>& found) const {
  const auto begin = found.size();
  for (std::uint64_t stretch = 0; stretch <= bytes >> stretch_shift; ++stretch) {
    if (!stretches[stretch]) continue;
    for (std::uint64_t word = first_word(stretch); word < first_word(stretch + 1); ++word) {
      std::uint64_t rest = bits[std::size_t(access)][word];
      for (std::uint64_t at = word * 64; rest != 0;) {
        const int skipped = std::countr_zero(rest);
        rest >>= skipped, at += std::uint64_t(skipped);
        const int run = std::countr_one(rest);
        rest = run == 64 ? 0 : rest >> run;
        if (found.size() > begin && found.back().last == at)
          found.back().last += std::uint64_t(run);
        else
          found.push_back({allocation, at, at + std::uint64_t(run), access});
        at += std::uint64_t(run);
      }
    }
  }
}

}  // namespace brume::emulation
