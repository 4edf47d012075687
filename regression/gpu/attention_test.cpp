/// @file Attention by cuDNN against the plain sums: shapes, shared key heads, strides, shares.
#include <gtest/gtest.h>

#include "gpu.hpp"
#include "kernels/fused_attention.hpp"
#include "reference/attention.hpp"

namespace brume::kernels {
namespace {

using reference::Array;

/// Values of 16 bits in device memory.
class Rows {
 public:
  Rows(const std::vector<float>& values, std::int64_t stride)
      : stride_(stride), memory_(std::int64_t(values.size()) * 2) {
    const std::vector<bfloat16> rounded(values.begin(), values.end());
    device::copy_now(memory_.data(), rounded.data(), memory_.bytes());
  }
  FusedOperands::Rows rows() const { return {memory_.data(), stride_}; }
  std::vector<float> values() const {
    std::vector<bfloat16> rounded(std::size_t(memory_.bytes()) / 2);
    device::finish();
    device::copy_now(rounded.data(), memory_.data(), memory_.bytes());
    return {rounded.begin(), rounded.end()};
  }

 private:
  std::int64_t stride_;
  device::Memory memory_;
};

std::vector<float> rounded(const Array& array) {
  std::vector<float> values = array.values();
  for (float& value : values) value = bfloat16(value);
  return values;
}

reference::Doubles doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// Both passes of one shape on the device.
struct Case {
  explicit Case(const AttentionShape& s)
      : shape(s),
        qkv(rounded(reference::random_array(s.batch * s.seq_len, s.width(), 1))),
        d_o(rounded(reference::random_array(s.batch * s.seq_len, s.heads * s.head_dim, 2))),
        on_qkv(qkv, s.width()),
        on_d_o(d_o, s.heads * s.head_dim),
        o(std::vector<float>(d_o.size()), s.heads * s.head_dim),
        dqkv(std::vector<float>(qkv.size(), 7.0f), s.width()),  // as much as to be overwritten
        lse(std::vector<float>(std::size_t(s.batch) * s.heads * s.seq_len)) {}

  FusedOperands operands(Pass pass) const {
    FusedOperands of{true, on_qkv.rows(), o.rows(), lse.data(), {}, {}};
    if (pass == Pass::backward) of.d_o = on_d_o.rows(), of.dqkv = dqkv.rows();
    return of;
  }
  bool run(Pass pass) const { return fused_attention(pass, shape, operands(pass)); }

  AttentionShape shape;
  std::vector<float> qkv, d_o;
  Rows on_qkv, on_d_o, o, dqkv;
  test::OnDevice lse;
};

// Sizes of heads and tokens that fill no block; groups of key heads, of which one is read by
// nobody.
TEST(FusedAttention, EqualsThePlainSums) {
  for (const AttentionShape& shape :
       {AttentionShape{2, 64, 2, 64}, AttentionShape{2, 70, 4, 128}, AttentionShape{1, 333, 2, 80},
        AttentionShape{2, 200, 4, 64, 2, 2}, AttentionShape{2, 65, 4, 64, 1, 4},
        AttentionShape{2, 66, 2, 64, 2, 2, 2}, AttentionShape{1, 128, 4, 64, 2, 6, 4}}) {
    const Case c(shape);
    SCOPED_TRACE(testing::Message() << shape.seq_len << " tokens, " << shape.heads << " heads");
    ASSERT_TRUE(c.run(Pass::forward));
    const auto expected = reference::attention_forward(shape, doubles(c.qkv));
    EXPECT_LT(reference::relative_error(c.o.values(), expected.o), 1e-2);
    EXPECT_LT(reference::relative_error(c.lse.values(), expected.lse), 1e-3);
    ASSERT_TRUE(c.run(Pass::backward));
    EXPECT_LT(
        reference::relative_error(
            c.dqkv.values(), reference::attention_backward(shape, doubles(c.qkv), doubles(c.d_o))),
        2e-2);
  }
}

// 8 sequences of 16 heads: a gigabyte beside the operands, if it were one call.
TEST(FusedAttention, SharesAreDoneOneAfterTheOther) {
  const AttentionShape whole{8, 2048, 16, 128};
  const Case all(whole);
  ASSERT_TRUE(all.run(Pass::forward) && all.run(Pass::backward));
  const Case one({1, 2048, 16, 128});  // the first sequence alone
  ASSERT_TRUE(one.run(Pass::forward) && one.run(Pass::backward));
  const std::vector<float> together = all.dqkv.values(), alone = one.dqkv.values();
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin()));
  EXPECT_EQ(std::count(together.begin(), together.end(), 7.0f), 0);
}

TEST(FusedAttention, RepeatsBitwise) {
  const Case first({2, 1024, 8, 64, 2, 4}), second(first.shape);
  for (const Case* c : {&first, &second})
    ASSERT_TRUE(c->run(Pass::forward) && c->run(Pass::backward));
  EXPECT_EQ(first.dqkv.values(), second.dqkv.values());
}

TEST(FusedAttention, WhatCudnnDoesNotDoIsLeftToOthers) {
  const Case uneven({1, 64, 3, 64, 2, 2});  // key heads of two and of one query head
  EXPECT_FALSE(uneven.run(Pass::forward));
  const Case narrow({1, 64, 2, 12});
  EXPECT_EQ(fused_attention_calls(Pass::forward, narrow.shape, narrow.operands(Pass::forward)), 0);
}

}  // namespace
}  // namespace brume::kernels
