/// @file Times of messages between stages of two layouts.
#include "analyzer/messages.hpp"
#include "grid.hpp"

namespace brume::tuner {
namespace {

/// Location of two stages on nodes: on one node if they fit there.
analyzer::EndsOf ends(const Layout& a, const Layout& b, const hardware::Machine& machine,
                      bool on_one_node = true) {
  const int per_node = machine.profile(a.group).key.ranks_per_node;
  const bool share = on_one_node && a.devices() < per_node && b.devices() < per_node;
  const bool leaves_node = a.group == b.group && !share;
  return [=](int, int) { return price::Ends{a.group, b.group, leaves_node}; };
}

}  // namespace

double Grid::stream_s(const Layout& from, const Layout& to) {
  const auto [known, fresh] = streams_s_.try_emplace({from, to}, 0.0);
  if (fresh)
    known->second =
        analyzer::stream_s(model_, machine_, stage_of(from, machine_.name(from.group)),
                           stage_of(to, machine_.name(to.group)), ends(from, to, machine_));
  return known->second;
}

double Grid::tied_gradient_s(const Layout& first, const Layout& last, bool on_one_node) {
  const auto [known, fresh] = tied_gradients_s_.try_emplace({first, last, on_one_node}, 0.0);
  if (fresh) {
    const analyzer::TiedTimes times = analyzer::tied_s(
        model_, machine_, stage_of(first, machine_.name(first.group)),
        stage_of(last, machine_.name(last.group)), ends(first, last, machine_, on_one_node));
    known->second = times.gradient_s + times.rest_s;
  }
  return known->second;
}

}  // namespace brume::tuner
