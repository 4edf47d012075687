#include "cache.hpp"

#include <algorithm>
#include <utility>

#include "base/parallel.hpp"
#include "node_order.hpp"

namespace brume::tuner {
namespace {

/// Evaluations from which on what was found takes about a GiB, and is forgotten before the next
/// search.
constexpr std::int64_t most_evaluations = 8'000'000;

/// Whether machines have the same times. The text of several groups lacks the links between them.
bool is_same(const hardware::Machine& a, const hardware::Machine& b) {
  return a.num_groups() == 1 && b.num_groups() == 1 && hardware::text(a) == hardware::text(b);
}

}  // namespace

Cache::Cache() = default;
Cache::~Cache() = default;

Cache::Known& Cache::of(const model::Config& model, const hardware::Machine& machine,
                        const hardware::Cluster& cluster, int threads) {
  hardware::Machine before = before_nodes(machine, cluster);
  if (known_ && known_->workers.evaluations() <= most_evaluations &&
      known_->workers.threads() == threads && known_->model == model &&
      is_same(known_->machine, before))
    known_->rows.limit(cluster);
  else
    known_ = std::make_unique<Known>(model, std::move(before), cluster, threads);
  return *known_;
}

}  // namespace brume::tuner
