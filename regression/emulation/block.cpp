/// @file Runs kernels block by block. Threads that wait for others are fibers: each has a stack of
/// its own and goes on in turn, so barriers and shuffles are real.
#include <cxxabi.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>
#include <new>

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

/// A block of threads; a thread of the host's keeps one, with its stacks, for all its kernels.
class Block {
 public:
  static constexpr std::size_t most_threads = 1024;
  // No power of two, so that the stacks' ends share no lines of a cache.
  static constexpr std::size_t stack_bytes = (64 << 10) + 4160;

  struct Fiber {
    Thread thread{};
    bool started = false;
    void* context[5];
    std::vector<std::byte> local;
    // at a shuffle
    int line = 0;
    std::uint32_t value = 0, distance = 0, clamp = 0, mask = 0;
    bool other = false;
  };

  Block() : fibers_(new Fiber[most_threads]) {
    stacks_ = ::mmap(nullptr, stack_bytes * most_threads, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks_ == MAP_FAILED) report("the system gives no memory for the stacks of a block");
  }
  ~Block() {
    delete[] fibers_;
    ::munmap(stacks_, stack_bytes * most_threads);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// @param first  a thread of the block, all but its own numbers
  void run(const Thread& first) {
    const Kernel& kernel = first.launch->kernel();
    const Dim size = first.ntid;
    count_ = size.x * size.y * size.z;
    if (count_ > most_threads)
      report(fmt::format("{} has {} threads a block, of at most {}", kernel.name, count_,
                         most_threads));
    launch_ = first.launch;
    shared_.assign(kernel.shared_bytes, std::byte{0xff});
    words_.assign(kernel.shared_bytes / 4 + 1, {});
    barriers_ = 0, alive_ = count_;
    arrived_ = {};
    for (std::uint32_t i = count_; i-- > 0;) {
      Fiber& fiber = fibers_[i];
      fiber.thread = first;
      fiber.thread.tid = {i % size.x, i / size.x % size.y, i / size.x / size.y};
      fiber.thread.number = i;
      fiber.thread.block = this;
      if (kernel.local_bytes > 0) fiber.local.assign(kernel.local_bytes, std::byte{0xff});
      fiber.thread.local = fiber.local.data();
      if (kernel.waits)
        ready_.push_back(i);
      else
        kernel.run(fiber.thread);
    }
    if (!kernel.waits) return;
    if (__builtin_setjmp(scheduler_) == 0) go_on();
    if (alive_ > 0)
      report(
          fmt::format("{}: {} threads of a block wait at a barrier, {} for lanes of a shuffle "
                      "that never come",
                      kernel.name, at_barrier_.size(), alive_ - at_barrier_.size()));
  }

  void barrier(Thread& thread) {
    if (++thread.barriers == left_out_) return;
    at_barrier_.push_back(thread.number);
    open_barrier();
    leave(thread.number);
  }

  bool exchange(Thread& thread, int line, std::uint32_t& value, std::uint32_t distance,
                std::uint32_t clamp, std::uint32_t mask) {
    Fiber& mine = fibers_[thread.number];
    mine.line = line, mine.value = value, mine.distance = distance, mine.clamp = clamp,
    mine.mask = mask;
    if (!complete(thread.number)) leave(thread.number);
    value = mine.value;
    return mine.other;
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
  /// Lets all go on if the last one has come.
  void open_barrier() {
    if (at_barrier_.size() < alive_) return;
    while (!at_barrier_.empty()) {
      ready_.push_back(at_barrier_.back());
      at_barrier_.pop_back();
    }
    ++barriers_;
  }

  /// Exchanges the values of a shuffle if all its lanes are there. @return whether they are
  bool complete(std::uint32_t number) {
    const Fiber& mine = fibers_[number];
    const std::uint32_t warp = number / 32, lane = number % 32, mask = mine.mask;
    Fiber* const lanes = fibers_ + warp * 32;
    const auto fault = [&](const char* what) {
      report(fmt::format("{}, PTX line {}: lane {} of a shuffle of lanes {:#010x} {}",
                         launch_->kernel().name, mine.line, lane, mask, what));
    };
    std::uint32_t& arrived = arrived_[warp];
    arrived |= 1u << lane;
    if ((arrived & mask) != mask) return false;
    if ((mask >> lane & 1) == 0) fault("is none of them");
    std::array<std::uint32_t, 32> values;
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int i = std::countr_zero(rest);
      if (lanes[i].mask != mask || lanes[i].line != mine.line)
        fault("meets one at another shuffle");
      values[std::size_t(i)] = lanes[i].value;
    }
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const auto i = std::uint32_t(std::countr_zero(rest));
      Fiber& to = lanes[i];
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

  // Goes on with the one that became ready last: lanes of a warp stay together, and their stacks in
  // the cache. The first start of a fiber is ucontext's; later switches are the compiler's, which
  // take no call of the system.
  [[noreturn]] void go_on() {
    if (ready_.empty()) jump(scheduler_);
    const std::uint32_t number = ready_.back();
    ready_.pop_back();
    Fiber& fiber = fibers_[number];
    if (fiber.started) jump(fiber.context);
    fiber.started = true;
    running_ = this;
    ucontext_t start;
    ::getcontext(&start);
    start.uc_stack = {static_cast<std::byte*>(stacks_) + number * stack_bytes, 0, stack_bytes};
    start.uc_link = nullptr;
    ::makecontext(&start, reinterpret_cast<void (*)()>(&Block::enter), 1, int(number));
    ::setcontext(&start);
    std::abort();
  }
  void leave(std::uint32_t number) {
    if (__builtin_setjmp(fibers_[number].context) == 0) go_on();
  }
  [[noreturn, gnu::noinline]] static void jump(void** to) { __builtin_longjmp(to, 1); }
  static void enter(int number) { running_->serve(std::uint32_t(number)); }
  [[noreturn]] void serve(std::uint32_t number) {
    for (;;) {
      fibers_[number].thread.launch->kernel().run(fibers_[number].thread);
      --alive_;
      open_barrier();
      leave(number);
    }
  }

  static thread_local Block* running_;
  const int left_out_ = planted("barrier");
  Fiber* fibers_;
  void* stacks_;
  void* scheduler_[5];
  std::vector<std::byte> shared_;
  std::vector<SharedWord> words_;
  std::array<std::uint32_t, most_threads / 32> arrived_{};  ///< [warps] lanes at shuffles
  Launch* launch_ = nullptr;
  std::uint32_t count_ = 0, alive_ = 0;
  int barriers_ = 0;
  std::vector<std::uint32_t> ready_, at_barrier_;  ///< threads
};

thread_local Block* Block::running_ = nullptr;

void barrier(Thread& thread) { thread.block->barrier(thread); }
bool exchange(Thread& thread, int line, std::uint32_t& value, std::uint32_t distance,
              std::uint32_t clamp, std::uint32_t mask) {
  return thread.block->exchange(thread, line, value, distance, clamp, mask);
}
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
