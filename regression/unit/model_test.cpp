#include "model/model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace brume::model {
namespace {

Config small(bool tied_head = true) {
  return {.num_layers = 3,
          .hidden_size = 24,
          .num_heads = 4,
          .ffn_size = 80,
          .seq_len = 10,
          .vocab_size = 37,
          .tied_head = tied_head};
}

// GPT-2: V C + T C, a layer 4 C^2 + 2 C F + 9 C + F, a final norm 2 C; 124 M for the small one.
TEST(Model, CountsTheParametersOfGpt2) {
  const Config gpt2{.num_layers = 12,
                    .hidden_size = 768,
                    .num_heads = 12,
                    .ffn_size = 3072,
                    .seq_len = 1024,
                    .vocab_size = 50257};
  EXPECT_EQ(num_parameters(gpt2), 124'439'808);
}

TEST(Model, UntiedHeadHasATableOfItsOwn) {
  EXPECT_EQ(num_parameters(small(false)) - num_parameters(small(true)), 37 * 24);
}

// Matrix products cost 6 FLOPs a weight and token in forward and backward.
TEST(Model, FlopsAreSixPerWeightAndTokenAndMore) {
  const Config m = small();
  const double weights = 3.0 * (4 * 24 * 24 + 2 * 24 * 80) + 37 * 24;
  EXPECT_GT(flops_per_sequence(m), 6.0 * weights * 10);
  EXPECT_LT(flops_per_sequence(m), 9.0 * weights * 10);
}

TEST(Model, PiecesTileEveryTensorOverTensorParallelRanks) {
  for (const Block& block : blocks(small()))
    for (std::size_t p = 0; p < block.parameters.size(); ++p) {
      const Parameter& parameter = block.parameters[p];
      std::int64_t elements = 0;
      std::set<std::vector<std::int64_t>> offsets;
      for (int rank = 0; rank < 4; ++rank) {
        const Layout parts = layout(block, 4, rank, 1);
        elements += parts.pieces[p].elements;
        offsets.insert(parts.pieces[p].offset);
      }
      const bool split = parameter.split_dim >= 0;
      EXPECT_EQ(elements, parameter.elements() * (split ? 1 : 4)) << parameter.name;
      EXPECT_EQ(offsets.size(), split ? 4u : 1u) << parameter.name;
    }
}

TEST(Model, LayoutIsAlignedDisjointAndHasPartialGradientsFirst) {
  for (const Block& block : blocks(small())) {
    const Layout flat = layout(block, 2, 1, 3);
    std::int64_t end = 0;
    for (const Piece& piece : flat.pieces) {
      EXPECT_EQ(piece.first % 16, 0);
      EXPECT_GE(piece.first, end);
      end = piece.first + piece.elements;
      const bool partial = block.parameters[std::size_t(piece.parameter)].tp_partial;
      EXPECT_EQ(partial, piece.first < flat.partial_elements);
    }
    EXPECT_GE(flat.elements, end);
    EXPECT_EQ(flat.elements % (3 * 16), 0);
  }
}

TEST(Model, LayoutExpressionEqualsTheLayout) {
  for (const Block& block : blocks(small()))
    for (int tp : {1, 2, 4})
      for (int dp : {1, 2, 3, 8}) {
        const double elements =
            layout_elements(block).evaluate({{"tp", double(tp)}, {"dp", double(dp)}});
        EXPECT_EQ(elements, double(layout(block, tp, 0, dp).elements)) << block.name;
      }
}

TEST(Model, InitialValuesFollowSeedAndPlaceOnly) {
  const std::vector<Block> all = blocks(small());
  const Parameter& qkv = all[1].parameters[4];
  ASSERT_EQ(qkv.name, "layers.0.attention.qkv.weight");
  double sum = 0.0, squares = 0.0;
  for (std::int64_t i = 0; i < qkv.elements(); ++i) {
    const double value = initial_value(qkv, i, 7);
    sum += value;
    squares += value * value;
  }
  const double count = double(qkv.elements());
  EXPECT_NEAR(sum / count, 0.0, 4 * 0.02 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.002);
  EXPECT_EQ(initial_value(qkv, 5, 7), initial_value(qkv, 5, 7));
  EXPECT_NE(initial_value(qkv, 5, 7), initial_value(qkv, 5, 8));
  EXPECT_NE(initial_value(qkv, 5, 7), initial_value(all[2].parameters[4], 5, 7));
}

// What a layer keeps is its segments' inputs and all they save, each once.
TEST(Model, KeptTensorsAreInputsAndSaved) {
  const Config m = small();
  const std::map<std::string, double, std::less<>> values{{"b", 2.0}, {"tp", 2.0}};
  double kept = 0.0, expected = 2.0 * stream_elements(m).evaluate(values);
  for (const Kept& tensor : kept_tensors(m, false)) kept += tensor.elements.evaluate(values);
  for (SegmentKind kind : {SegmentKind::attention, SegmentKind::mlp})
    for (const Saved& saved : segment(m, kind).saved) expected += saved.elements.evaluate(values);
  EXPECT_EQ(kept, expected);
  ASSERT_EQ(kept_tensors(m, true).size(), 1u);
  EXPECT_EQ(kept_tensors(m, true)[0].elements.evaluate(values), 2.0 * 10 * 24);
}

}  // namespace
}  // namespace brume::model
