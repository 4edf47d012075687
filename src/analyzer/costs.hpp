/// @file Prices of a stage's parts as expressions: what the profile measured, behind names.
#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "plan/rules.hpp"
#include "price/price.hpp"

namespace brume::analyzer {

using price::Pass;

/// The plan variables that formulas name. What a rank keeps of its state takes its own
/// (kept_state.hpp).
struct Variables {
  explicit Variables(const model::Config& model)
      : expert_data_ranks(model::expert_data_ranks(model)) {}

  Expr l = Expr::variable("l"), c = Expr::variable("c"), k = Expr::variable("k"),
       b = Expr::variable("b"), dp = Expr::variable("dp"), cp = Expr::variable("cp"),
       tp = Expr::variable("tp"), ep = Expr::variable("ep"), z = Expr::variable("z"),
       a = Expr::variable("a"), ad = Expr::variable("ad"), p = Expr::variable("p"),
       r = Expr::variable("r"), G = Expr::variable("G"), S = Expr::variable("S"),
       n = Expr::variable("n"), m = Expr::variable("m"), R = Expr::variable("R");
  Expr expert_data_ranks;  ///< plan::Stage's

  Expr state_ranks() const { return dp * cp / expert_data_ranks; }
  plan::Sharded<Expr> sharded() const { return plan::sharded(z, Expr(state_ranks() / R)); }
  Expr cuts_sequences() const { return less(1.0, cp); }
  /// The variables on which a segment's numbers depend, as split_of() takes them.
  std::vector<Expr> split(const model::Config& model) const {
    return model.num_experts > 0 ? std::vector{b, tp, cp, ep} : std::vector{b, tp, cp};
  }
};

/// 1 where a <= b, else 0.
inline Expr at_most(const Expr& a, const Expr& b) { return 1.0 - less(b, a); }

using Arguments = std::span<const double>;

/// The split whose variables a function has as its arguments.
inline model::Split split_of(Arguments x, const StageRole& role) {
  const auto number = [&](std::size_t i) { return i < x.size() ? int(std::lround(x[i])) : 1; };
  return {.tp = number(1),
          .microbatch = number(0),
          .ep = number(3),
          .cp = number(2),
          .gather_keys = int(role.gather_keys),
          .dispatch_tokens = int(role.dispatch_tokens),
          .mlp_tiles = role.mlp_tiles};
}

/// A function that looks its earlier values up: a grid asks for the same arguments many times. Not
/// for several threads at once.
std::shared_ptr<const symbolic::Function> remembering(std::string name,
                                                      std::function<double(Arguments)> value);

/// The numbers of `price` as expressions, the overhead of their task included; what does not happen
/// costs nothing. Each
/// keeps the values it has given: a grid asks for the same ones many times in a row. So expressions
/// made from one object belong to one thread.
class Costs {
 public:
  Costs(const model::Config& model, const hardware::Machine& machine, StageRole role);

  /// Time of a segment's pass, or of one run of it, at Variables::split; of a head's one piece.
  Expr segment(model::SegmentKind kind, Pass pass, int run = price::all_runs) const;
  /// The norms of a segment that its backward makes again before ranks gather their tokens.
  Expr norms_again(model::SegmentKind kind) const;
  Expr optimizer(const Expr& elements, model::UpdateUnit unit) const;
  /// The step of a block's whole matrices, by the rank with most of them.
  Expr matrix_step(const model::Block& block) const;
  Expr host_update(const Expr& elements) const;  ///< 0 where nothing is stepped on the host
  bool host_update() const { return role_.host_update; }
  const StageRole& role() const { return role_; }
  bool host_is_apart() const { return price::host_is_apart(*profile_); }
  Expr collective(price::Collective which, model::AxisSet axes, const Expr& bytes) const;
  /// Over the ranks that sum a segment's output, of all tokens that it works on.
  Expr of_stream(price::Collective which, model::SegmentKind kind) const;
  /// An all-reduce over the data-parallel ranks that divide experts.
  Expr dense_reduction(const Expr& bytes) const;
  /// Over those that hold the same weights: an all-reduce, with ZeRO a reduce-scatter over the
  /// ranks that shard a replica.
  Expr gradient_reduction(const Expr& bytes) const;
  /// An all-reduce over replicas of the shards of so many bytes.
  Expr replica_reduction(const Expr& bytes) const;
  Expr weight_gather(const Expr& bytes) const;  ///< over those that shard a replica, with ZeRO
  Expr world_all_reduce(const Expr& bytes) const;
  Expr copy_in(const Expr& bytes) const;
  Expr copy_out(const Expr& bytes) const;
  bool disk() const { return role_.disk; }
  Expr disk_read(const Expr& bytes) const;  ///< 0 where nothing lies on disk, as the next one
  Expr disk_write(const Expr& bytes) const;
  Expr copy(const Expr& bytes) const;          ///< from one place on the device to another
  Expr clear_or_add(const Expr& bytes) const;  ///< gradients set to zero, or others added to them
  Expr norm(const Expr& bytes) const;          ///< of gradients

  /// All four started together, under interference; communication is over shards.
  Expr overlapped(const Expr& compute_s, const Expr& comm_s, const Expr& in_s,
                  const Expr& out_s) const;
  /// Compute and collectives that follow each other take turns beside a transfer, which slows both:
  /// the share of its time that it spends beside the compute.
  enum class Transfer { over_dp, in, out };
  Expr compute_share(Transfer transfer, const Expr& compute_s, const Expr& collectives_s) const;

 private:
  Expr extent_nodes(const plan::Mesh<Expr>& mesh, model::AxisSet axes) const;

  std::shared_ptr<const model::Config> model_;
  std::shared_ptr<const hardware::Machine> machine_;
  std::shared_ptr<const hardware::Profile> profile_;  ///< of the role's group, a part of it
  StageRole role_;
  Variables v_;
  plan::Mesh<Expr> weights_, sequences_;
  plan::Spread<Expr> shards_;  ///< of the ranks that shard a replica
  std::shared_ptr<const symbolic::Function> optimizer_, host_update_, gradient_reduction_,
      world_all_reduce_, copy_in_, copy_out_, disk_read_, disk_write_, copy_, clear_or_add_, norm_,
      overlapped_;
  std::array<std::shared_ptr<const symbolic::Function>, 4> collectives_;    ///< [Collective]
  std::array<std::shared_ptr<const symbolic::Function>, 3> compute_share_;  ///< [Transfer]
};

}  // namespace brume::analyzer
