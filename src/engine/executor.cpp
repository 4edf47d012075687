#include "executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.hpp"
#include "comm/computing.hpp"
#include "comm/device_group.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "model/storage.hpp"

namespace brume::engine {

using schedule::Channel;
using schedule::Operation;
using schedule::Role;

namespace {

std::vector<std::string> channel_names() {
  std::vector<std::string> names;
  for (int c = 0; c < schedule::num_channels; ++c) names.emplace_back(schedule::name(Channel(c)));
  return names;
}

template <typename T>
void exchange(comm::Communicator& group, const schedule::Task& task, std::span<T> values) {
  switch (task.operation) {
    case Operation::all_reduce: return group.all_reduce(values);
    case Operation::reduce_scatter: return group.reduce_scatter(values);
    case Operation::all_gather: return group.all_gather(values);
    case Operation::send: return group.send(std::span<const T>(values), task.peer);
    case Operation::recv: return group.recv(values, task.peer);
    default: throw Error(Failure::bug, "'{}' does not communicate", schedule::label(task));
  }
}

/// Lengths of the parts of rows that begin at begins[0], begins[1], ...
std::vector<std::size_t> part_bytes(std::span<const std::int32_t> begins, std::int64_t row_bytes) {
  std::vector<std::size_t> bytes;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i)
    bytes.push_back(std::size_t(begins[i + 1] - begins[i]) * std::size_t(row_bytes));
  return bytes;
}

/// Lengths of the parts that a rank sends and receives, by the numbers of rows behind its routes.
std::pair<std::vector<std::size_t>, std::vector<std::size_t>> row_parts(const schedule::Task& task,
                                                                        std::size_t ranks,
                                                                        const std::byte* routes) {
  std::vector<std::int32_t> begins(2 * (ranks + 1));
  const auto bytes = std::int64_t(begins.size() * sizeof(begins[0]));
  device::copy(begins.data(), routes + task.operands[2].bytes - bytes, bytes);
  device::finish();
  const std::span all(begins);
  std::pair parts{part_bytes(all.first(ranks + 1), task.row_bytes),
                  part_bytes(all.last(ranks + 1), task.row_bytes)};
  if (task.operation == Operation::return_rows) std::swap(parts.first, parts.second);
  return parts;
}

/// Makes a stream for each channel, if this build's ranks compute on a device; files and what the
/// host steps are the host's work.
std::vector<std::unique_ptr<device::Stream>> channel_streams() {
  std::vector<std::unique_ptr<device::Stream>> streams;
  for (int c = 0; c < schedule::num_channels; ++c) {
    const bool on_host = Channel(c) == Channel::disk || Channel(c) == Channel::host;
    streams.push_back(on_host ? nullptr : device::make_stream());
  }
  return streams;
}

}  // namespace

Executor::Executor(const Arena& arena, const Compute& compute, const Groups& groups,
                   const Settings& settings, model::Precision precision,
                   std::function<void(std::exception_ptr)> on_failure)
    : arena_(arena),
      compute_(compute),
      groups_(groups),
      precision_(precision),
      on_task_done_(settings.on_task_done),
      channels_(channel_names(), std::move(on_failure), channel_streams()) {
  // Only what computes is bound: transfers of a rank find room beside it.
  for (const Channel computes : {Channel::compute, Channel::host})
    channels_.enqueue(int(computes), [threads = settings.threads, first = settings.first_core] {
      if (first >= 0) device::bind_this_thread(first, threads);
      kernels::use_threads(threads);
    });
}

void Executor::connect(const schedule::Program& program) {
  // In one order on all ranks: group by group, pair by pair, then as the Program has them.
  using Kind = std::tuple<Channel, model::AxisSet, int, int>;  // the last two: sender, receiver
  std::map<Kind, std::vector<const schedule::Task*>> kinds;
  const auto same = [&](const schedule::Task& a, const schedule::Task& b) {
    return a.operation == b.operation && a.operands[0].bytes == b.operands[0].bytes &&
           format(a, program.buffer(a.operands[0])) == format(b, program.buffer(b.operands[0]));
  };
  for (const schedule::Task& task : program.tasks) {
    if (task.group.empty() && task.peer < 0) continue;
    const bool sends = task.operation == Operation::send;
    const int from = sends ? program.rank : task.peer, to = sends ? task.peer : program.rank;
    std::vector<const schedule::Task*>& found = kinds[{task.channel, task.group, from, to}];
    const bool is_new = std::ranges::none_of(
        found, [&](const schedule::Task* other) { return same(*other, task); });
    if (found.empty() || (task.peer < 0 && is_new)) found.push_back(&task);
  }
  for (const auto& [kind, tasks] : kinds)
    for (const schedule::Task* task : tasks)
      channels_.run([&] {
        channels_.enqueue(int(task->channel), [&, task] { communicate(program, *task, true); });
      });
}

void Executor::run(const schedule::Program& program, Parts parts, const StepScalars& step,
                   const GuardCheck* guards, std::vector<schedule::Span>& times) {
  channels_.start_clock();
  times.assign(program.tasks.size(), {});
  program_ = &program;
  times_ = times.data();
  std::vector<char> waited_for(program.tasks.size(), 0);
  for (const schedule::Task& task : program.tasks)
    for (int other : task.waits) waited_for[other] = 1;

  std::vector<device::Event> events(program.tasks.size());
  const auto give = [&](std::size_t id) {
    const schedule::Task& task = program.tasks[id];
    const int channel = int(task.channel);
    for (int other : task.waits) channels_.wait(channel, events[other]);
    const bool works = parts == Parts::both || task.phase == schedule::Phase::both ||
                       (task.phase == schedule::Phase::update) == (parts == Parts::update);
    if (works)
      channels_.enqueue(
          channel,
          [&, id] {
            if (guards) guards->before(int(id));
            execute(program, int(id), step);
            if (guards) guards->after(int(id));
            if (on_task_done_) on_task_done_();
          },
          &times[id]);
    if (waited_for[id]) events[id] = channels_.record(channel);
  };
  channels_.run([&] {
    for (std::size_t id = 0; id < program.tasks.size(); ++id) give(id);
  });
}

void Executor::execute(const schedule::Program& program, int id, const StepScalars& step) {
  const schedule::Task& task = program.task(id);
  const device::Range range([&] { return schedule::label(task); });
  try {
    if (task.operation == Operation::copy) return copy(program, task);
    switch (task.channel) {
      case Channel::compute:
      case Channel::host: {
        const comm::Computing now;
        return compute_.run(program, task, step);
      }
      case Channel::h2d:
      case Channel::d2h: return copy(program, task);
      case Channel::disk: return read_or_write(program, task);
      default: return communicate(program, task, false);
    }
  } catch (const std::exception& error) {
    const Error meant = error_of(error);
    throw Error(meant.failure(), "{}: {}: {}", schedule::name(task.channel), schedule::label(task),
                meant.what());
  }
}

/// @param only_connects  nothing is known of what the task exchanges
void Executor::communicate(const schedule::Program& program, const schedule::Task& task,
                           bool only_connects) const {
  const schedule::Operand& whole = task.operands[0];
  const auto at = [&](const schedule::Operand& operand) {
    return arena_.at(program.buffer(operand)) + operand.first_byte;
  };
  std::byte* data = at(whole);
  const auto bytes = std::size_t(whole.bytes);
  comm::Communicator& group = groups_.of(task);
  if (whole.role == Role::totals)
    return group.all_reduce(std::span(reinterpret_cast<double*>(data), bytes / sizeof(double)),
                            comm::Reduction::sum);
  if (sends_parts(task.operation)) {
    const schedule::Operand& received = task.operands[1];
    const auto ranks = std::size_t(group.size());
    std::vector<std::size_t> out(ranks, std::min(bytes, std::size_t(received.bytes)) / ranks);
    std::vector<std::size_t> in = out;
    if (!only_connects && task.operation != Operation::all_to_all)
      std::tie(out, in) = row_parts(task, ranks, at(task.operands[2]));
    const auto all = [](std::byte* begin, const std::vector<std::size_t>& parts) {
      return std::span(begin, std::accumulate(parts.begin(), parts.end(), std::size_t{0}));
    };
    return group.all_to_all(all(data, out), out, all(at(received), in), in);
  }
  // Collectives work in place: a shard that lies elsewhere has its place in the whole.
  const schedule::Operand* shard = task.operands.size() > 1 ? &task.operands[1] : nullptr;
  std::byte* place = shard ? data + group.rank() * shard->bytes : nullptr;
  if (shard && shard->reads) device::copy(place, at(*shard), shard->bytes);
  model::with_storage(format(task, program.buffer(whole)), [&]<class Storage>() {
    exchange(group, task, std::span(reinterpret_cast<Storage*>(data), bytes / sizeof(Storage)));
  });
  if (shard && shard->writes) device::copy(at(*shard), place, shard->bytes);
}

/// The format of communicated numbers: the model's for weights and activations, fp32 for gradients
/// of parameters and for the statistics that a head saves.
model::Precision Executor::format(const schedule::Task& task,
                                  const schedule::Buffer& buffer) const {
  using enum schedule::Content;
  if (task.in_fp32) return model::Precision::fp32;
  const bool kept = buffer.content == saved && task.segment != model::SegmentKind::head;
  const bool stored =
      buffer.content == weights || buffer.content == stream || buffer.content == workspace || kept;
  return stored ? precision_ : model::Precision::fp32;
}

void Executor::copy(const schedule::Program& program, const schedule::Task& task) const {
  for (const schedule::Operand& source : task.operands) {
    if (source.role != Role::source) continue;
    const schedule::Operand& destination = task.at(Role::destination, source.index);
    device::copy(arena_.at(program.buffer(destination)) + destination.first_byte,
                 arena_.at(program.buffer(source)) + source.first_byte, source.bytes);
  }
}

/// Copies between the disk and host memory, by this thread.
void Executor::read_or_write(const schedule::Program& program, const schedule::Task& task) const {
  const bool reads = task.operation == Operation::read;
  for (const schedule::Operand& source : task.operands) {
    if (source.role != Role::source) continue;
    const schedule::Operand& destination = task.at(Role::destination, source.index);
    const schedule::Operand &on_disk = reads ? source : destination,
                            &on_host = reads ? destination : source;
    const std::int64_t first_byte = program.buffer(on_disk).offset + on_disk.first_byte;
    const std::span memory(arena_.at(program.buffer(on_host)) + on_host.first_byte,
                           std::size_t(source.bytes));
    if (reads)
      arena_.disk().read(first_byte, memory);
    else
      arena_.disk().write(first_byte, memory);
  }
}

std::vector<schedule::Task> Executor::in_flight() const {
  std::vector<schedule::Task> tasks;
  const schedule::Program* program = program_;
  const auto first = reinterpret_cast<std::uintptr_t>(times_.load());
  for (int c = 0; program != nullptr && c < schedule::num_channels; ++c) {
    const schedule::Span* span = channels_.in_flight(c);
    // Between two looks another run may have begun, with spans elsewhere.
    const auto task = (reinterpret_cast<std::uintptr_t>(span) - first) / sizeof(schedule::Span);
    if (span == nullptr || task >= program->tasks.size()) continue;
    tasks.push_back(program->tasks[task]);
  }
  return tasks;
}

}  // namespace brume::engine
