/// @file How long messages between pipeline stages take, whose b, dp, cp and tp may differ.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "analyzer/pipeline_time.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "price/price.hpp"

namespace brume::analyzer {

/// Location of the messages from the i-th rank of one stage to the j-th of another.
using EndsOf = std::function<price::Ends(int, int)>;

/// Seconds until a microbatch's stream has passed from one stage to another, or its gradient back:
/// each rank sends and receives its messages one after the other, and the busiest one counts.
double stream_s(const model::Config& model, const hardware::Machine& machine,
                const plan::Stage& from, const plan::Stage& to, const EndsOf& ends);

/// Seconds of the messages of a tied head between a first and a last stage, adding the gradients
/// that come home included.
/// @param ends  from the first stage's ranks to the last one's
TiedTimes tied_s(const model::Config& model, const hardware::Machine& machine,
                 const plan::Stage& first, const plan::Stage& last, const EndsOf& ends);

/// Times of the messages between stages, for plans of one model on one machine; each is found once
/// for equal stages at equal places.
class MessageTimes {
 public:
  /// The arguments must outlive the object.
  MessageTimes(const model::Config& model, const hardware::Machine& machine)
      : model_(model), machine_(machine) {}

  /// The pipeline's messages as the plan's ranks stand on their nodes.
  void add(const plan::Plan& plan, Pipeline& pipeline);

 private:
  /// Key: group, microbatch, dp, cp, tp, first device of both stages; the order of the nodes.
  using Key = std::vector<int>;
  struct Stream {
    double seconds;
    double sending, receiving;  ///< how much of that the busiest rank sends, receives
  };

  Key key(const plan::Plan& plan, int from, int to) const;
  const Stream& stream(const plan::Plan& plan, int from, int to);
  const TiedTimes& tied(const plan::Plan& plan);

  const model::Config& model_;
  const hardware::Machine& machine_;
  std::map<Key, Stream> streams_;
  std::map<Key, TiedTimes> tied_;
};

}  // namespace brume::analyzer
