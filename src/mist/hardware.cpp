/// @file Mist's interference model, collectives and copies.
#include "mist/counting.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.hpp"

namespace brume::mist {
namespace {

constexpr double absent_s = 1e-8;
constexpr double absent_gib = 1e-5;

/// Where the slowdowns of a set begin in Slowdowns; bit q stands for resource q.
constexpr std::array<std::size_t, 16> begin_of_set{0, 0,  0,  16, 0,  18, 22, 4,
                                                   0, 20, 24, 7,  26, 10, 13, 0};

unsigned present(const std::array<double, 4>& left_s) {
  unsigned set = 0;
  for (unsigned q = 0; q < 4; ++q) set |= left_s[q] > absent_s ? 1U << q : 0U;
  return set;
}

/// Runs the tasks of `set` until the first of them ends; returns how long that takes.
double run_phase(unsigned set, const double* slowdown, std::array<double, 4>& left_s) {
  std::array<double, 4> end_s{};
  double phase_s = std::numeric_limits<double>::infinity();
  for (unsigned q = 0; q < 4; ++q) {
    if ((set >> q & 1U) == 0) continue;
    end_s[q] = left_s[q] * *slowdown++;
    phase_s = std::min(phase_s, end_s[q]);
  }
  for (unsigned q = 0; q < 4; ++q)
    if ((set >> q & 1U) != 0) left_s[q] *= 1.0 - phase_s / end_s[q];
  return phase_s;
}

std::size_t row_of(int size) {
  require(size > 0 && std::has_single_bit(static_cast<unsigned>(size)), Failure::input,
          "a group spans a power of two of nodes and of ranks on each, not {}", size);
  return std::min(3, std::countr_zero(static_cast<unsigned>(size)));
}

double weight_of(Collective kind) {
  switch (kind) {
    case Collective::all_gather: return 1.0;
    case Collective::reduce_scatter: return 1.1;
    case Collective::all_reduce: return 2.1;
  }
  throw Error(Failure::bug, "unknown collective");
}

}  // namespace

double overlapped_s(const Slowdowns& slowdowns, std::array<double, 4> alone_s) {
  double total_s = 0.0;
  for (unsigned set = present(alone_s); std::popcount(set) > 1; set = present(alone_s))
    total_s += run_phase(set, slowdowns.data() + begin_of_set[set], alone_s);
  for (const double left_s : alone_s) total_s += left_s;
  return total_s;
}

double collective_s(const Hardware& hardware, Collective kind, double gib, int nodes, int ranks) {
  const int group = nodes * ranks;
  if (group == 1 || gib < absent_gib) return 0.0;
  const Link& link = hardware.links[row_of(nodes)][row_of(ranks)];
  return weight_of(kind) * (gib / link.gib_per_s * (group - 1) / group + link.latency_s);
}

double send_s(const Hardware& hardware, double gib, bool between_nodes) {
  return gib / hardware.links[between_nodes ? 1 : 0][between_nodes ? 0 : 1].gib_per_s;
}

double copy_s(const Link& link, double gib) {
  return gib == 0.0 ? 0.0 : gib / link.gib_per_s + link.latency_s;
}

}  // namespace brume::mist
