#include "costs.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "plan/rules.hpp"

namespace brume::analyzer {
namespace {

using hardware::Profile;

int whole(double number) { return int(std::lround(number)); }

const char* word(Pass pass) {
  switch (pass) {
    case Pass::forward: return "forward";
    case Pass::backward: return "backward";
    case Pass::recompute: return "recompute";
    case Pass::stored_backward: return "stored_backward";
    case Pass::backward_input: return "backward_input";
    case Pass::backward_weights: return "backward_weights";
    case Pass::stored_backward_weights: return "stored_backward_weights";
  }
  return "";
}

/// Tasks of a pass over a segment: between exchanges over the ranks that sum its output. A head
/// whose logits are in parts has a second one, after ranks know each other's parts.
int tasks_of(const model::Config& model, model::SegmentKind kind, Pass pass,
             const model::Split& split) {
  const bool forward = pass == Pass::forward || pass == Pass::recompute;
  if (kind == model::SegmentKind::head) return forward && split.tp > 1 ? 2 : 1;
  if (kind == model::SegmentKind::embedding || split.size(model::sum_axes(kind)) == 1) return 1;
  const model::Segment list = model::segment(model, kind, split.division());
  const std::vector<model::Run> runs =
      forward ? model::forward_runs(list, split) : model::backward_runs(list, split);
  const auto tasks =
      int(std::ranges::count_if(runs, [](const model::Run& run) { return run.first < run.end; }));
  return pass == Pass::stored_backward ? tasks - int(list.brought().size()) : tasks;
}

/// Hash and equality that look arguments up without copying them.
struct OfArguments {
  using is_transparent = void;
  std::size_t operator()(Arguments arguments) const {
    std::size_t hash = arguments.size();
    for (double argument : arguments) hash = hash_with(hash, std::hash<double>{}(argument));
    return hash;
  }
  bool operator()(Arguments a, Arguments b) const { return std::ranges::equal(a, b); }
};

}  // namespace

std::shared_ptr<const symbolic::Function> remembering(std::string name,
                                                      std::function<double(Arguments)> value) {
  using Values = std::unordered_map<std::vector<double>, double, OfArguments, OfArguments>;
  const auto known = std::make_shared<Values>();
  const auto recall = [known, value = std::move(value)](Arguments arguments) {
    if (const auto entry = known->find(arguments); entry != known->end()) return entry->second;
    const std::vector<double> key(arguments.begin(), arguments.end());
    return known->emplace(key, value(arguments)).first->second;
  };
  return std::make_shared<symbolic::Function>(symbolic::Function{std::move(name), recall});
}

Costs::Costs(const model::Config& model, const hardware::Machine& machine, StageRole role)
    : model_(std::make_shared<model::Config>(model)),
      machine_(std::make_shared<hardware::Machine>(machine)),
      profile_(machine_, &machine_->profile(role.group)),
      role_(role),
      v_(model),
      weights_(plan::weights_mesh(v_.tp, v_.expert_data_ranks, v_.state_ranks(), v_.R)),
      sequences_(plan::sequences_mesh(v_.dp, v_.cp, v_.tp)),
      shards_(weights_.spread(model::Axis::shard, v_.m)) {
  // The functions outlive this object, so they hold what they read.
  const auto priced = [p = profile_](const char* name, auto seconds) {
    return remembering(name, [=](Arguments x) {
      const double work_s = seconds(x);
      return work_s > 0.0 ? price::task_s(*p, work_s) : 0.0;
    });
  };
  const auto of_bytes = [&](const char* name, double (*seconds)(const Profile&, double)) {
    return priced(name, [p = profile_, seconds](Arguments x) { return seconds(*p, x[0]); });
  };
  using enum price::Collective;
  const auto collective_s = [p = profile_, role](price::Collective collective, Arguments x) {
    const int nodes = whole(x[0]);
    return price::collective_s(*p, collective,
                               {.nodes = nodes,
                                .per_node = whole(x[1]),
                                .times = nodes > 1 ? role.times : 1.0,
                                .extent = whole(x[2]),
                                .first = role.first_in_unit,
                                .stage_nodes = whole(x[3])},
                               x[4]);
  };
  const auto collective = [&](const char* name, price::Collective which) {
    return priced(name, [=](Arguments x) { return collective_s(which, x); });
  };
  optimizer_ = priced("optimizer", [p = profile_, m = model_](Arguments x) {
    return price::optimizer_s(*m, *p, x[0], model::UpdateUnit(whole(x[1])));
  });
  host_update_ = priced("host_update", [p = profile_, m = model_](Arguments x) {
    return price::host_update_s(*m, *p, x[0]);
  });
  collectives_ = {collective("all_reduce", all_reduce),
                  collective("reduce_scatter", reduce_scatter),
                  collective("all_gather", all_gather), collective("all_to_all", all_to_all)};
  gradient_reduction_ = priced("reduce_gradients", [=](Arguments x) {
    const bool shards = plan::sharded(x[5], x[0] * x[1]).optimizer > 0.0;
    return collective_s(shards ? reduce_scatter : all_reduce, x);
  });
  world_all_reduce_ = priced("all_reduce_world", [p = profile_, role](Arguments x) {
    price::Ranks ranks = price::world_ranks(*p, whole(x[0]));
    ranks.times = role.world_times;
    return price::collective_s(*p, all_reduce, ranks, x[1]);
  });
  copy_in_ = of_bytes("copy_in", price::copy_in_s);
  copy_out_ = of_bytes("copy_out", price::copy_out_s);
  disk_read_ = of_bytes("disk_read", price::disk_read_s);
  disk_write_ = of_bytes("disk_write", price::disk_write_s);
  copy_ = of_bytes("copy", price::copy_s);
  clear_or_add_ = of_bytes("add", price::accumulate_s);
  norm_ = of_bytes("norm", price::norm_s);
  // What windows hold differs from strategy to strategy, which ranks slow each other does not.
  const auto slow = [p = profile_,
                     known =
                         std::make_shared<std::map<std::pair<int, int>, hardware::Interference>>()](
                        double nodes, double per_node) -> const hardware::Interference& {
    const auto [entry, fresh] = known->try_emplace({whole(nodes), whole(per_node)});
    if (fresh) entry->second = p->interference_model(entry->first.first, entry->first.second);
    return entry->second;
  };
  overlapped_ = std::make_shared<symbolic::Function>(
      symbolic::Function{"overlapped", [slow](Arguments x) {
                           return slow(x[4], x[5]).overlapped_s({x[0], x[1], x[2], x[3]});
                         }});
  const std::array<const char*, 3> shares{"share_of_comm", "share_of_in", "share_of_out"};
  for (std::size_t i = 0; i < shares.size(); ++i)
    compute_share_[i] = std::make_shared<symbolic::Function>(
        symbolic::Function{shares[i], [slow, by = i + 1](Arguments x) {
                             const hardware::Interference& model = slow(x[2], x[3]);
                             const double compute_s = x[0] * (1.0 + model.added[0][by]);
                             const double both_s = compute_s + x[1] * (1.0 + model.added[1][by]);
                             return both_s > 0.0 ? compute_s / both_s : 1.0;
                           }});
}

Expr Costs::segment(model::SegmentKind kind, Pass pass, int run) const {
  const bool all = run == price::all_runs, tiled = model::is_tiled(kind, role_.division({}));
  const Expr pieces = tiled ? model::pieces(*model_, kind, role_.division({})).count : Expr(1.0);
  auto function = remembering(
      std::string(model::name(kind)) + "_" + word(pass) + (all ? "" : "_" + std::to_string(run)),
      [model = model_, profile = profile_, kind, pass, run, all, tiled, pieces,
       role = role_](Arguments x) {
        const model::Split split = split_of(x, role);
        const double work_s = price::segment_s(*model, *profile, kind, pass, split, run);
        const double piece_s =
            price::task_s(*profile, work_s, all ? tasks_of(*model, kind, pass, split) : 1);
        return tiled ? piece_s * pieces.evaluate(split.values()) : piece_s;
      });
  return Expr::call(std::move(function), v_.split(*model_));
}

Expr Costs::norms_again(model::SegmentKind kind) const {
  auto function = remembering(
      std::string(model::name(kind)) + "_norms_again",
      [model = model_, profile = profile_, kind, role = role_](Arguments x) {
        const model::Split split = split_of(x, role);
        const model::Segment list = model::segment(*model, kind, split.division());
        double sum_s = 0.0;
        for (int run = 0; list.backward.front().again && run < std::ssize(list.brought()); ++run)
          sum_s += price::task_s(
              *profile, price::segment_s(*model, *profile, kind, Pass::backward, split, run));
        return sum_s;
      });
  return Expr::call(std::move(function), v_.split(*model_));
}

Expr Costs::optimizer(const Expr& elements, model::UpdateUnit unit) const {
  return Expr::call(optimizer_, {elements, double(unit)});
}

Expr Costs::matrix_step(const model::Block& block) const {
  if (model::matrix_workspace(*model_, block).bytes() == 0) return 0.0;
  auto function =
      remembering("matrix_step", [model = model_, profile = profile_, block](Arguments x) {
        const model::Split split{.tp = whole(x[1]), .ep = whole(x[2])};
        return price::task_s(*profile,
                             price::matrix_step_s(*model, *profile, block, split, whole(x[0])));
      });
  const Expr shards = select(v_.sharded().optimizer, v_.state_ranks() / v_.R, 1.0);
  return Expr::call(std::move(function), {shards, v_.tp, v_.ep});
}

Expr Costs::host_update(const Expr& elements) const {
  return role_.host_update ? Expr::call(host_update_, {elements}) : Expr(0.0);
}

/// Nodes from the first to the last that a group is on.
Expr Costs::extent_nodes(const plan::Mesh<Expr>& mesh, model::AxisSet axes) const {
  return max(mesh.extent(axes) / v_.m, 1.0);
}

Expr Costs::collective(price::Collective which, model::AxisSet axes, const Expr& bytes) const {
  const plan::Mesh<Expr>& mesh = axes.contains(model::Axis::cp) ? sequences_ : weights_;
  const auto [nodes, per_node] = mesh.spread(axes, v_.m);
  return Expr::call(collectives_[std::size_t(which)],
                    {nodes, per_node, extent_nodes(mesh, axes), v_.n, bytes});
}

Expr Costs::of_stream(price::Collective which, model::SegmentKind kind) const {
  return collective(which, model::sum_axes(kind), model::stream_bytes(*model_, kind));
}

Expr Costs::dense_reduction(const Expr& bytes) const {
  if (model_->num_experts == 0) return 0.0;
  return collective(price::Collective::all_reduce, model::Axis::ep, bytes);
}

Expr Costs::gradient_reduction(const Expr& bytes) const {
  return Expr::call(gradient_reduction_,
                    {shards_.nodes, shards_.per_node, extent_nodes(weights_, model::Axis::shard),
                     v_.n, bytes, v_.z});
}

Expr Costs::replica_reduction(const Expr& bytes) const {
  return collective(price::Collective::all_reduce, model::Axis::replica,
                    bytes * v_.R / v_.state_ranks());
}

Expr Costs::weight_gather(const Expr& bytes) const {
  return collective(price::Collective::all_gather, model::Axis::shard,
                    bytes * v_.sharded().optimizer);
}

Expr Costs::world_all_reduce(const Expr& bytes) const {
  return Expr::call(world_all_reduce_, {v_.S * v_.n * v_.m, bytes});
}

Expr Costs::copy_in(const Expr& bytes) const { return Expr::call(copy_in_, {bytes}); }
Expr Costs::copy_out(const Expr& bytes) const { return Expr::call(copy_out_, {bytes}); }

Expr Costs::disk_read(const Expr& bytes) const {
  return disk() ? Expr::call(disk_read_, {bytes}) : Expr(0.0);
}

Expr Costs::disk_write(const Expr& bytes) const {
  return disk() ? Expr::call(disk_write_, {bytes}) : Expr(0.0);
}

Expr Costs::copy(const Expr& bytes) const { return Expr::call(copy_, {bytes}); }

Expr Costs::clear_or_add(const Expr& bytes) const { return Expr::call(clear_or_add_, {bytes}); }

Expr Costs::norm(const Expr& bytes) const { return Expr::call(norm_, {bytes}); }

Expr Costs::overlapped(const Expr& compute_s, const Expr& comm_s, const Expr& in_s,
                       const Expr& out_s) const {
  return Expr::call(overlapped_, {compute_s, comm_s, in_s, out_s, shards_.nodes, shards_.per_node});
}

Expr Costs::compute_share(Transfer transfer, const Expr& compute_s,
                          const Expr& collectives_s) const {
  return Expr::call(compute_share_[std::size_t(transfer)],
                    {compute_s, collectives_s, shards_.nodes, shards_.per_node});
}

}  // namespace brume::analyzer
