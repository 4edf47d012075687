#include "schedule/program.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"

namespace brume::schedule {

const char* name(Channel channel) {
  switch (channel) {
    case Channel::compute: return "compute";
    case Channel::collective_tp: return "collective_tp";
    case Channel::collective_dp: return "collective_dp";
    case Channel::p2p_forward: return "p2p_forward";
    case Channel::p2p_backward: return "p2p_backward";
    case Channel::h2d: return "h2d";
    case Channel::d2h: return "d2h";
    case Channel::disk: return "disk";
    case Channel::host: return "host";
  }
  return "";
}

const char* name(Content content) {
  switch (content) {
    case Content::weights: return "weights";
    case Content::grads: return "gradients";
    case Content::optimizer: return "optimizer state";
    case Content::stream: return "layer inputs";
    case Content::saved: return "saved activations";
    case Content::workspace: return "workspace";
    case Content::staging: return "staging";
    case Content::batch: return "tokens";
    case Content::totals: return "totals";
    case Content::cache: return "key cache";
  }
  return "";
}

const char* name(Operation operation) {
  switch (operation) {
    case Operation::forward: return "forward";
    case Operation::backward: return "backward";
    case Operation::backward_input: return "backward input";
    case Operation::backward_weights: return "backward weights";
    case Operation::recompute: return "recompute";
    case Operation::loss: return "loss";
    case Operation::all_reduce: return "all-reduce";
    case Operation::reduce_scatter: return "reduce-scatter";
    case Operation::all_to_all: return "all-to-all";
    case Operation::send_rows: return "send rows";
    case Operation::return_rows: return "return rows";
    case Operation::all_gather: return "all-gather";
    case Operation::send: return "send";
    case Operation::recv: return "recv";
    case Operation::copy_in: return "copy in";
    case Operation::copy_out: return "copy out";
    case Operation::read: return "read";
    case Operation::write: return "write";
    case Operation::copy: return "copy";
    case Operation::clear: return "clear";
    case Operation::accumulate: return "accumulate";
    case Operation::norm: return "norm";
    case Operation::optimizer_step: return "optimizer step";
    case Operation::matrix_step: return "matrix step";
    case Operation::host_step: return "optimizer step on the host";
  }
  return "";
}

bool computes_segment(Operation operation) {
  using enum Operation;
  return operation == forward || operation == backward || operation == backward_input ||
         operation == backward_weights || operation == recompute;
}

Arenas largest(Arenas a, const Arenas& b) {
  for (std::size_t t = 0; t < a.size(); ++t) a[t] = std::max(a[t], b[t]);
  return a;
}

const Operand* Task::find(Role role, int index) const {
  for (const Operand& operand : operands)
    if (operand.role == role && operand.index == index) return &operand;
  return nullptr;
}

const Operand& Task::at(Role role, int index) const {
  const Operand* operand = find(role, index);
  if (operand == nullptr)
    throw Error(Failure::bug, "{} has no operand of role {}", label(*this), int(role));
  return *operand;
}

std::string label(const Task& task) {
  std::string text = name(task.operation);
  if (task.block >= 0) text += fmt::format(" block {}", task.block);
  if (task.block < 0 && task.peer >= 0) text += " tied table";
  if (computes_segment(task.operation)) text += fmt::format(" {}", model::name(task.segment));
  if (task.microbatch >= 0) text += fmt::format(", microbatch {}", task.microbatch);
  if (task.peer >= 0) text += fmt::format(", peer {}", task.peer);
  return text;
}

std::int64_t amount_bytes(const Task& task) {
  const auto sum = [&](auto&& counts) {
    std::int64_t bytes = 0;
    for (const Operand& operand : task.operands)
      if (counts(operand)) bytes += operand.bytes;
    return bytes;
  };
  const auto of = [](Role role) { return [role](const Operand& o) { return o.role == role; }; };
  switch (task.operation) {
    case Operation::forward:
    case Operation::backward:
    case Operation::backward_input:
    case Operation::backward_weights:
    case Operation::recompute:
    case Operation::loss: return 0;
    case Operation::all_reduce:
    case Operation::reduce_scatter:
    case Operation::all_to_all:
    case Operation::all_gather:
    case Operation::send:
    case Operation::recv: return task.operands[0].bytes;
    case Operation::send_rows:
    case Operation::return_rows: return std::min(task.operands[0].bytes, task.operands[1].bytes);
    case Operation::norm: return sum(of(Role::grads));
    case Operation::optimizer_step:
    case Operation::matrix_step:
    case Operation::host_step: return sum(of(Role::weights));
    case Operation::copy_in:
    case Operation::copy_out:
    case Operation::read:
    case Operation::write:
    case Operation::copy:
    case Operation::clear:
    case Operation::accumulate: return sum([](const Operand& o) { return o.writes; });
  }
  return 0;
}

}  // namespace brume::schedule
