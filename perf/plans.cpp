/// @file Plans side by side, predicted and measured:
///
///   mpirun -n 1|2|4 perf_plans schedules|alternatives|contexts|optimizers [number...]
#include "plans.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "device/device.hpp"

int main(int argc, char** argv) {
  using namespace brume;
  static const std::map<std::string, decltype(&perf::schedules)> lists{
      {"schedules", perf::schedules},
      {"alternatives", perf::alternatives},
      {"contexts", perf::contexts},
      {"optimizers", perf::optimizers}};
  const auto list = lists.find(argc > 1 ? argv[1] : "");
  if (list == lists.end()) {
    fmt::print(stderr,
               "usage: perf_plans schedules|alternatives|contexts|optimizers [number...]\n");
    return 2;
  }
  std::vector<int> numbers;
  for (int i = 2; i < argc; ++i) numbers.push_back(std::atoi(argv[i]));
  comm::Session session;
  const auto world = session.world();
  device::use_device(session.node_rank(), world->size());
  list->second(session, *world, numbers);
}
