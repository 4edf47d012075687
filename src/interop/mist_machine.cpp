#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.hpp"
#include "interop/mist.hpp"

namespace brume::interop {
namespace {

constexpr std::array<int, 4> sizes{1, 2, 4, 8};

void check(const std::vector<double>& numbers, std::size_t count, const char* key,
           const std::string& where) {
  require(numbers.size() == count, Failure::input, "{}: '{}' must have {} numbers, found {}", where,
          key, count, numbers.size());
}

/// Rates and latencies in turn.
void check_lines(const std::vector<double>& numbers, std::size_t count, const char* key,
                 const std::string& where) {
  check(numbers, count, key, where);
  for (std::size_t i = 0; i < count; ++i)
    require(
        i % 2 == 0 ? numbers[i] > 1e-9 && numbers[i] < 1e9 : numbers[i] >= 0 && numbers[i] < 1e6,
        Failure::input, "{}: '{}'[{}] must be a {}, found {}", where, key, i,
        i % 2 == 0 ? "rate in GiB/s above 0" : "latency in s, at least 0", numbers[i]);
}

void check(const MistMachine& machine, const std::string& where) {
  check_lines(machine.links, 32, "gpu_gpu_comm_params", where);
  check_lines(machine.copy_in, 2, "cpu_gpu_comm_params", where);
  check_lines(machine.copy_out, 2, "gpu_cpu_comm_params", where);
  check(machine.slowdowns, 28, "interference_model_params", where);
  for (const double slowdown : machine.slowdowns)
    require(slowdown >= 1e-3 && slowdown <= 1e6, Failure::input,
            "{}: 'interference_model_params' must be from 0.001 to 1e6, found {}", where, slowdown);
}

/// Slowdowns have four decimals, so what they add has no more.
double added_by(double slowdown) { return std::max(std::round((slowdown - 1.0) * 1e9) / 1e9, 0.0); }

/// a[q][j] = sigma_q({q, j}) - 1. The pairs come last: CN CH CD NH ND HD.
std::vector<double> pairwise(const std::vector<double>& slowdowns) {
  constexpr std::size_t resources = hardware::num_resources;
  std::vector<double> added(resources * resources, 0.0);
  std::size_t next = 16;
  for (std::size_t q = 0; q < resources; ++q)
    for (std::size_t j = q + 1; j < resources; ++j) {
      added[q * resources + j] = added_by(slowdowns[next++]);
      added[j * resources + q] = added_by(slowdowns[next++]);
    }
  return added;
}

}  // namespace

void set_machine(hardware::Profile& profile, const MistMachine& machine, const std::string& where) {
  check(machine, where);
  profile.key.ranks_per_node = machine.devices_per_node;
  profile.transfers.clear();
  for (std::size_t i = 0; i < 16; ++i) {
    const int nodes = sizes[i / 4], ranks = sizes[i % 4];
    const double gib_per_s = machine.links[2 * i], latency_s = machine.links[2 * i + 1];
    const bool unmeasured = gib_per_s == 4.5 && latency_s == 0.0;
    if (nodes * ranks > 1 && !unmeasured)
      profile.transfers.push_back({"collective", nodes, ranks, gib_per_s, latency_s});
  }
  profile.transfers.push_back({"copy_in", 1, 1, machine.copy_in[0], machine.copy_in[1]});
  profile.transfers.push_back({"copy_out", 1, 1, machine.copy_out[0], machine.copy_out[1]});
  profile.slowdowns = machine.slowdowns;
  profile.interference = pairwise(machine.slowdowns);
}

}  // namespace brume::interop
