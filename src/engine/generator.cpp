#include "engine/generator.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "device/device.hpp"
#include "engine/key_moves.hpp"
#include "executor.hpp"
#include "job.hpp"
#include "schedule/compile.hpp"
#include "state.hpp"

namespace brume::engine {

using schedule::Buffer;
using schedule::Program;

namespace {

constexpr schedule::Options options{.mode = schedule::Mode::generate};

model::Config with_length(model::Config model, int tokens) {
  model.generation.tokens = tokens;
  return model;
}

/// Logits of V tokens of the vocabulary, from the parts that ranks have of them.
void join_parts(std::span<const float> parts, int rows, int ranks, std::int64_t vocab,
                std::vector<float>& joined) {
  const std::int64_t widest = model::cut(vocab, ranks, 0).count;
  joined.resize(std::size_t(rows * vocab));
  for (int rank = 0; rank < ranks; ++rank) {
    const model::Cut cut = model::cut(vocab, ranks, rank);
    const float* from = parts.data() + rank * rows * widest;
    for (int row = 0; row < rows; ++row, from += cut.count)
      std::copy_n(from, cut.count, joined.data() + row * vocab + cut.first);
  }
}

}  // namespace

schedule::Arenas generator_bytes(const plan::Plan& plan, const model::Config& model, int rank) {
  schedule::Arenas bytes{};
  for (const int tokens : pass_lengths(plan, model.generation.tokens))
    bytes = schedule::largest(
        bytes, schedule::arena_bytes(plan, with_length(model, tokens), rank, options));
  return bytes;
}

struct Generator::Impl {
  /// Passes of one length.
  struct Length {
    model::Config model;
    Program program;
  };

  /// The compute tasks of passes of all lengths, by their Programs.
  class ByProgram final : public Compute {
   public:
    void add(const Program& program, std::unique_ptr<Compute> compute) {
      by_program_.emplace(&program, std::move(compute));
    }
    void run(const Program& program, const schedule::Task& task,
             const StepScalars& step) const override {
      by_program_.at(&program)->run(program, task, step);
    }
    ExpertLoads take_loads() const override { return {}; }

   private:
    std::map<const Program*, std::unique_ptr<Compute>> by_program_;
  };

  Impl(const plan::Plan& plan, const model::Config& model, const Settings& settings,
       comm::Communicator& world, const LentMemory* lent)
      : plan(plan),
        model(model),
        checks_memory(settings.check_memory),
        place(plan::place(plan, world.rank())),
        all(compile_all(plan, model, world.rank())),
        arena(lent ? Arena(*lent)
                   : reserve(generator_bytes(plan, model, world.rank()), settings, world)),
        groups(this->plan, all.back().program, world),
        copy(world.split(place.index(model::data_axes), world.rank())),
        head(world.split(is_last() ? place.index(model::data_axes) : -1, world.rank())),
        executor(arena, compute, groups, settings, model.precision,
                 [&world](const std::exception_ptr& failure) { leave(world, "a pass", failure); }) {
    for (const Length& length : all)
      compute.add(length.program,
                  make_compute(this->plan, length.model, world.rank(), settings.optimizer, arena));
    if (device::on_device())
      for (const Length& length : all) executor.connect(length.program);
  }

  static std::vector<Length> compile_all(const plan::Plan& plan, const model::Config& model,
                                         int rank) {
    std::vector<Length> all;
    for (const int tokens : pass_lengths(plan, model.generation.tokens)) {
      Length& length = all.emplace_back(with_length(model, tokens), Program());
      length.program = schedule::compile(plan, length.model, rank, options);
    }
    return all;
  }

  bool is_last() const { return place.stage + 1 == plan.num_stages(); }

  /// Puts values at the beginning of a buffer, if this rank has it.
  void put(const Program& program, std::string_view name, std::span<const std::int32_t> values) {
    for (const Buffer& buffer : program.buffers)
      if (buffer.persistent && buffer.name == name)
        device::copy_now(arena.at(buffer), values.data(), std::ssize(values) * 4);
  }

  /// Puts a pass where its tasks look for it, and fills it up with tokens of no sequence.
  void load(const Length& length, const GeneratorPass& pass) {
    const auto count = std::size_t(length.model.generation.tokens);
    std::vector<std::int32_t> tokens(count), begins(count), sequences(count, -1);
    for (std::size_t n = 0; n < count; ++n) {
      const bool is_there = n < pass.tokens.size();
      const std::int32_t place = is_there ? pass.tokens[n].place : 0;
      begins[n] = std::int32_t(n % std::size_t(model.seq_len)) - place;
      if (!is_there) continue;
      tokens[n] = pass.tokens[n].token;
      sequences[n] = pass.tokens[n].sequence;
    }
    put(length.program, "inputs", tokens);
    put(length.program, "documents", begins);
    put(length.program, "sequences", sequences);
    put(length.program, "tables", pass.tables);
  }

  /// Copies keys and values of a move from the cache to a message, or back.
  /// @return the end of its part of the message
  std::byte* copy_keys(const KeyMove& move, std::span<const std::int32_t> blocks, std::byte* part,
                       bool gives) const {
    const KeyHeads heads(plan.stages[place.stage], place.at[model::Axis::tp], model);
    const auto cache = std::ranges::find_if(all.back().program.buffers, [&](const Buffer& b) {
      return b.content == schedule::Content::cache && b.block == move.layer + 1;
    });
    const std::int64_t bytes = heads.block_bytes * move.heads;
    for (const std::int32_t block : blocks)
      for (const bool values : {false, true}) {
        const std::int64_t head =
            (std::int64_t{block} * 2 + int(values)) * heads.count + move.head - heads.first;
        std::byte* const kept = arena.at(*cache) + head * heads.block_bytes;
        device::copy_now(gives ? part : kept, gives ? kept : part, bytes);
        part += bytes;
      }
    return part;
  }

  /// Makes moves of keys in blocks of this generator to blocks of another one. Collective over
  /// `copy`.
  void exchange(const Impl& to, std::span<const KeyMove> moves,
                std::span<const std::int32_t> own_blocks,
                std::span<const std::int32_t> blocks) const {
    const auto ranks = std::size_t(copy->size());
    const auto bytes = std::size_t(2 * KeyHeads(plan.stages[0], 0, model).block_bytes);
    std::vector<std::size_t> out_bytes(ranks), in_bytes(ranks);
    for (const KeyMove& move : moves) {
      const std::size_t some = bytes * std::size_t(move.heads) * blocks.size();
      if (move.from == copy->rank()) out_bytes[std::size_t(move.to)] += some;
      if (move.to == copy->rank()) in_bytes[std::size_t(move.from)] += some;
    }
    const auto sum = [](const std::vector<std::size_t>& parts) {
      return std::accumulate(parts.begin(), parts.end(), std::size_t{0});
    };
    std::vector<std::byte> out(sum(out_bytes)), in(sum(in_bytes));
    std::byte *sent = out.data(), *got = in.data();
    for (int peer = 0; peer < copy->size(); ++peer)
      for (const KeyMove& move : moves)
        if (move.from == copy->rank() && move.to == peer)
          sent = copy_keys(move, own_blocks, sent, true);
    copy->all_to_all(out, out_bytes, in, in_bytes);
    for (int peer = 0; peer < copy->size(); ++peer)
      for (const KeyMove& move : moves)
        if (move.to == copy->rank() && move.from == peer)
          got = to.copy_keys(move, blocks, got, false);
  }

  std::span<const float> take_logits(const Program& program, int wanted) {
    if (!is_last() || wanted == 0) return {};
    const auto buffer =
        std::ranges::find_if(program.buffers, [](const Buffer& b) { return b.name == "logits"; });
    const int ranks = head->size();
    const std::int64_t widest = model::cut(model.vocab_size, ranks, 0).count,
                       own = model::cut(model.vocab_size, ranks, head->rank()).count;
    parts.resize(std::size_t(ranks * wanted * widest));
    device::copy_now(parts.data() + head->rank() * wanted * widest, arena.at(*buffer),
                     wanted * own * std::int64_t(sizeof(float)));
    if (ranks > 1) head->all_gather(std::span(parts));
    if (head->rank() != 0) return {};
    if (ranks > 1)
      join_parts(parts, wanted, ranks, model.vocab_size, logits);
    else
      logits.swap(parts);
    if (const auto cap = float(model.logits_cap); cap > 0.0f)
      for (float& logit : logits) logit = cap * std::tanh(logit / cap);
    return logits;
  }

  plan::Plan plan;
  model::Config model;
  bool checks_memory;
  plan::Place place;
  std::vector<Length> all;  ///< shortest first
  Arena arena;
  ByProgram compute;
  Groups groups;
  std::unique_ptr<comm::Communicator> copy;
  std::unique_ptr<comm::Communicator> head;  ///< the ranks of the copy's last stage
  std::vector<float> parts, logits;
  std::vector<schedule::Span> times;
  Executor executor;  ///< last: its threads use the rest
};

Generator::Generator(const plan::Plan& plan, const model::Config& model, const Settings& settings,
                     comm::Communicator& world, const LentMemory* lent) {
  require(plan.devices() == world.size(), Failure::input,
          "the plan is for {} ranks, the job has {}", plan.devices(), world.size());
  impl_ = std::make_unique<Impl>(plan, model, settings, world, lent);
}

Generator::~Generator() = default;

std::vector<Slab> Generator::slabs() {
  return engine::slabs(impl_->all.back().program, impl_->plan, impl_->model, &impl_->arena);
}

comm::Communicator& Generator::copy() { return *impl_->copy; }
int Generator::copy_index() const { return impl_->place.index(model::data_axes); }
int Generator::sampler() const {
  return impl_->copy->size() - impl_->plan.stages.back().tp;  // stages own ranks in their order
}

void Generator::give_keys(Generator& to, std::span<const std::int32_t> blocks) {
  constexpr double most_bytes = 1 << 26;  // that a rank has of a message
  const Impl& from = *impl_;
  require(from.copy->rank() == to.copy().rank() && from.copy->size() == to.copy().size(),
          Failure::bug, "two plans have other orders of the ranks of a copy");
  const double block_bytes = model::cache_bytes(from.model).evaluate({{"tp", 1.0}}) /
                             from.model.generation.blocks * from.plan.num_stages();
  const auto at_once = std::size_t(std::max(1.0, most_bytes / block_bytes));
  std::vector<std::int32_t> own(blocks.size());
  std::iota(own.begin(), own.end(), 0);
  for (const std::vector<KeyMove>& moves : key_rounds(from.plan, to.impl_->plan, from.model))
    for (std::size_t first = 0; first < blocks.size(); first += at_once) {
      const std::size_t count = std::min(at_once, blocks.size() - first);
      from.exchange(*to.impl_, moves, std::span(own).subspan(first, count),
                    blocks.subspan(first, count));
    }
}

std::span<const float> Generator::run(const GeneratorPass& pass) {
  Impl& g = *impl_;
  const auto at = std::ranges::find_if(g.all, [&](const Impl::Length& length) {
    return length.model.generation.tokens >= std::ssize(pass.tokens);
  });
  require(at != g.all.end() &&
              pass.wanted <=
                  std::min<std::ptrdiff_t>(std::ssize(pass.tokens), g.model.generation.sequences),
          Failure::bug, "a pass of {} tokens and {} logits is too long", pass.tokens.size(),
          pass.wanted);
  g.load(*at, pass);
  std::optional<GuardCheck> guards;  // of this pass, because others have buffers elsewhere
  if (g.checks_memory) guards.emplace(at->program, g.arena);
  g.executor.run(at->program, Parts::train, {}, guards ? &*guards : nullptr, g.times);
  return g.take_logits(at->program, pass.wanted);
}

}  // namespace brume::engine
