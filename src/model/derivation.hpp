/// @file Members of a segment that follow from its operators, as they are derived.
#pragma once

#include <algorithm>
#include <vector>

#include "model/layer.hpp"

namespace brume::model {

inline bool is_end(TensorId id) { return id == TensorId::input || id == TensorId::output; }

class Derivation {
 public:
  explicit Derivation(Segment& segment) : s_(segment), done_(segment.tensors.size()) {}

  void describe();
  void save();
  void order_backward();
  void place_forward();
  void place_backward();

 private:
  bool of_layer() const {
    return s_.kind != SegmentKind::embedding && s_.kind != SegmentKind::head;
  }
  const Operator& op(int index) const { return s_.operators[index]; }
  const Operator& maker(TensorId id) const {
    return *std::ranges::find(s_.operators, id, &Operator::written);
  }
  bool is_cheap(TensorId id) const;
  bool in_forward_scratch(TensorId id) const;
  std::vector<TensorId> needed_by(const Operator& op) const;
  void mark_for_weights(TensorId id);
  std::vector<int> readers(TensorId id) const;
  Expr scratch_elements(TensorId id) const;
  void make_again(TensorId id, bool for_weights);
  void make_read_again(TensorId id, bool for_weights);
  void make_gradient(TensorId id);

  Segment& s_;
  std::vector<bool> done_;     ///< tensors whose gradients are made
  bool brings_again_ = false;  ///< a backward needs what the forward brought together
};

}  // namespace brume::model
