#include <tuple>

#include "base/statistics.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

bool same_work(const OperatorRow& a, const OperatorRow& b) {
  return a.kind == b.kind && a.dims == b.dims;
}
bool same_work(const LinkRow& a, const LinkRow& b) {
  return std::tie(a.kind, a.nodes, a.ranks_per_node, a.bytes) ==
         std::tie(b.kind, b.nodes, b.ranks_per_node, b.bytes);
}
bool same_work(const WaitRow& a, const WaitRow& b) { return a.ranks == b.ranks; }
bool same_work(const CopyRow& a, const CopyRow& b) {
  return a.kind == b.kind && a.bytes == b.bytes;
}

}  // namespace

Profile medians(const std::vector<Profile>& rounds) {
  Profile result = rounds[0];
  const auto of_profile = [&](auto figure) {
    std::vector<double> values;
    for (const Profile& round : rounds) values.push_back(round.*figure);
    result.*figure = median(values);
  };
  const auto of_rows = [&](auto rows, auto figure) {
    for (auto& row : result.*rows) {
      std::vector<double> values;
      for (const Profile& round : rounds)
        for (const auto& other : round.*rows)
          if (same_work(row, other)) values.push_back(other.*figure);
      row.*figure = median(values);
    }
  };
  of_profile(&Profile::flops_per_s);
  of_profile(&Profile::fp8_flops_per_s);
  of_profile(&Profile::bytes_per_s);
  of_profile(&Profile::host_updates_per_s);
  of_profile(&Profile::task_overhead_s);
  of_rows(&Profile::operators, &OperatorRow::forward_s);
  of_rows(&Profile::operators, &OperatorRow::backward_s);
  of_rows(&Profile::links, &LinkRow::time_s);
  of_rows(&Profile::waits, &WaitRow::share);
  of_rows(&Profile::copies, &CopyRow::time_s);
  for (std::size_t i = 0; i < result.interference.size(); ++i) {
    std::vector<double> values;
    for (const Profile& round : rounds) values.push_back(round.interference.at(i));
    result.interference[i] = median(values);
  }
  return result;
}

}  // namespace brume::hardware
