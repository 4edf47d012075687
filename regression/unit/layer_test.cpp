#include "model/layer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "model/model.hpp"
#include "random_plan.hpp"

namespace brume::model {
namespace {

using Values = std::map<std::string, double, std::less<>>;

std::vector<Config> models() {
  std::vector<Config> all = test::special_models();
  Config gpt = all.front();
  gpt.family = &family("gpt");
  gpt.qk_norm = false;
  gpt.num_kv_heads = 0;
  Config falcon = gpt;
  falcon.family = &family("falcon");
  falcon.layer_norms = 1;
  all.push_back(gpt);
  all.push_back(falcon);
  return all;
}

/// The same, with exchanges within their layers, and with adapters.
std::vector<Config> all_models() {
  std::vector<Config> all = models();
  for (Config one : models()) {
    one.exchanges_normed = true;
    all.push_back(one);
  }
  for (Config one : models()) {
    test::adapt(int(all.size()), one);
    all.push_back(one);
  }
  for (Config one : models()) {
    test::quantize(int(all.size()), one);
    all.push_back(one);
  }
  return all;
}

/// "in.W in.I": the calls of a backward by names of operators, A: made again.
std::string text(const Segment& segment) {
  std::string text;
  for (const BackwardCall& call : segment.backward) {
    const Operator& op = segment.operators[std::size_t(call.op)];
    text += (text.empty() ? "" : " ") + op.name +
            (call.again         ? ".A"
             : call.for_weights ? ".W"
                                : ".I");
  }
  return text;
}

TEST(Layer, BackwardsOfASequentialLayer) {
  const Config gpt = models()[models().size() - 2];
  EXPECT_EQ(text(segment(gpt, SegmentKind::embedding)), "embedding.I");
  EXPECT_EQ(text(segment(gpt, SegmentKind::attention)),
            "out.W out.I attention.I norm1.A qkv.W qkv.I norm1.I");
  EXPECT_EQ(text(segment(gpt, SegmentKind::mlp)),
            "gelu.A out.W out.I gelu.I norm2.A in.W in.I norm2.I");
  EXPECT_EQ(text(segment(gpt, SegmentKind::head)), "norm.A logits.W logits.I norm.I");
}

// One norm: its gradient is the sum of those of both first products.
TEST(Layer, BackwardOfAParallelLayer) {
  EXPECT_EQ(text(segment(models().back(), SegmentKind::parallel)),
            "out.W out.I attention.I rope.I gelu_erf.A out.W out.I gelu_erf.I "
            "norm1.A qkv.W in.W qkv.I in.I norm1.I");
}

TEST(Layer, BackwardBehindPostNormsAndNormsOfHeads) {
  const Config gemma3 = test::special_models().back();
  EXPECT_EQ(text(segment(gemma3, SegmentKind::attention)),
            "post_norm1.I out.W out.I qk norm.A rope.A attention.I rope.I qk norm.I norm1.A qkv.W "
            "qkv.I norm1.I");
  EXPECT_EQ(text(segment(gemma3, SegmentKind::attention, Axis::tp)),
            "norm1.A gather norm1.A post_norm1.I sum.I out.W out.I qk norm.A rope.A attention.I "
            "rope.I qk norm.I qkv.W qkv.I gather norm1.I norm1.I");
}

TEST(Layer, BackwardOfLatentAttention) {
  const std::vector<Config> all = models();
  const Segment s = segment(*std::ranges::find_if(all, &Config::latent), SegmentKind::attention);
  EXPECT_EQ(text(s),
            "narrow.A out.W out.I narrow.I attention.I rope.I expand.I q_down norm.A q.W q.I "
            "q_down norm.I kv_down norm.A kv_up.W kv_up.I kv_down norm.I norm1.A q_down.W "
            "kv_down.W k_turned.W q_down.I kv_down.I k_turned.I norm1.I");
}

// Routes and gates come from the forward. The router reads the normed input before its gradient
// takes that place.
TEST(Layer, BackwardOfExperts) {
  Config mixtral = test::special_models().front();
  mixtral.num_experts = 4, mixtral.experts_per_token = 2, mixtral.expert_ffn_size = 20;
  const Segment s = segment(mixtral, SegmentKind::experts);
  EXPECT_EQ(text(s),
            "combine.I swiglu.A out.W out.I swiglu.I choice.I norm2.A dispatch.A in.W in.I norm2.A "
            "router.I dispatch.I norm2.I");
  std::string saved, output_only;
  for (const Saved& one : s.saved)
    saved += one.name + (one.cheap ? ".cheap " : " ") + (one.for_weights ? "W " : "");
  for (const Operator& op : s.operators)
    if (op.output_only) output_only += op.name + " ";
  EXPECT_EQ(saved,
            "norm2.rstd W logits routes W wide W gates W norm2.out.cheap W dispatched.cheap W "
            "activated.cheap W ");
  EXPECT_EQ(output_only, "out combine ");
  EXPECT_EQ(text(segment(mixtral, SegmentKind::experts, Axis::ep)),
            "norm2.A gather norm2.A combine.I swiglu.A out.W out.I swiglu.I choice.I dispatch.A "
            "in.W in.I router.I dispatch.I gather norm2.I norm2.I");
}

// The last product's bias makes its part of the gates' gradients, so these live from there on; the
// weights part needs the gates for the bias's own gradient.
TEST(Layer, BackwardOfExpertsWithBiases) {
  const std::vector<Config> all = test::special_models();
  const auto gpt_oss = std::ranges::find_if(all, &Config::sinks);
  const Segment s = segment(*gpt_oss, SegmentKind::experts);
  EXPECT_EQ(text(s),
            "combine.I clamped_swiglu.A out.W out.I clamped_swiglu.I choice.I norm2.A dispatch.A "
            "in.W in.I norm2.A router.I dispatch.I norm2.I");
  EXPECT_EQ(std::ranges::find(s.saved, "gates", &Saved::name)->for_weights, true);
  std::string output_only;
  for (const Operator& op : s.operators)
    if (op.output_only) output_only += op.name + " ";
  EXPECT_EQ(output_only, "out combine ");
}

// The gate's product comes behind the router, which makes its gradient in the normed input's place.
TEST(Layer, BackwardOfASharedExpert) {
  Config qwen2_moe = test::special_models().front();
  qwen2_moe.num_experts = 4, qwen2_moe.experts_per_token = 2, qwen2_moe.expert_ffn_size = 20;
  qwen2_moe.shared_expert_ffn_size = 24, qwen2_moe.shared_expert_gate = true;
  const Segment s = segment(qwen2_moe, SegmentKind::experts);
  EXPECT_EQ(text(s),
            "combine.I swiglu.A out.W out.I swiglu.I shared swiglu.A shared out.W shared out.I "
            "shared swiglu.I sigmoid.I choice.I norm2.A dispatch.A in.W in.I norm2.A shared gate.W "
            "shared in.W norm2.A router.I dispatch.I shared gate.I shared in.I norm2.I");
  std::string saved;
  for (const Saved& one : s.saved) saved += one.name + (one.cheap ? ".cheap " : " ");
  EXPECT_EQ(saved,
            "norm2.rstd logits routes wide gates shared logits shared wide shared gates "
            "norm2.out.cheap dispatched.cheap activated.cheap shared activated.cheap ");
  // The ranks that sum the output cut it: of 24 columns 8 ranks have 3 each.
  const auto columns = [&](const Split& split) {
    return std::ranges::find(s.tensors, "shared activated", &Tensor::name)
        ->columns.evaluate(split.values());
  };
  EXPECT_EQ(columns({.tp = 2}), 12);
  EXPECT_EQ(columns({.tp = 2, .ep = 8}), 3);
}

// The exchanges there and back, and the sum of the terms of attention's output.
TEST(Layer, ExchangesEndRuns) {
  Config gemma3 = test::special_models().back();
  gemma3.exchanges_normed = true;
  const Segment s = segment(gemma3, SegmentKind::attention, Axis::tp);
  const auto text_of = [&](const std::vector<model::Run>& runs) {
    std::string all;
    for (const model::Run& run : runs) all += fmt::format("{}-{} ", run.first, run.end);
    return all;
  };
  // norm1 | gather | | there | | back | qkv, qk norm, rope, attention, residual, out | sum |
  // post_norm1
  EXPECT_EQ(text_of(forward_runs(s, {.tp = 2})), "0-1 2-2 3-3 4-10 11-12 ");
  EXPECT_EQ(text_of(forward_runs(s, {})), "0-12 ");
  // post_norm1 | sum | out.W to qkv.I | back | | there | | gather | norm1
  EXPECT_EQ(text(s),
            "post_norm1.I sum.I out.W out.I qk norm.A rope.A attention.I rope.I qk norm.I "
            "qkv.W qkv.I back.I there.I gather norm1.I norm1.I");
  EXPECT_EQ(text_of(backward_runs(s, {.tp = 2})), "0-1 2-11 12-12 13-13 14-15 ");
}

// Attention of ranks that share a sequence: heads of all tokens between two exchanges.
TEST(Layer, RanksThatShareASequenceExchangeHeads) {
  const Config qwen3 = test::special_models().front();
  const Segment s = segment(qwen3, SegmentKind::attention, Sharing::heads);
  const auto text_of = [&](const std::vector<model::Run>& runs) {
    std::string all;
    for (const model::Run& run : runs) all += fmt::format("{}-{} ", run.first, run.end);
    return all;
  };
  // norm1, qkv, qk norm, rope, cut qkv | to heads | attention | to tokens | join attended,
  // residual, out
  EXPECT_EQ(text_of(forward_runs(s, {.cp = 2})), "0-5 6-7 8-11 ");
  EXPECT_EQ(text_of(forward_runs(s, {.tp = 2})), "0-11 ");
  EXPECT_EQ(text(s),
            "out.W out.I join attended.I attended to tokens.I attention.I qkv to heads.I cut qkv.I "
            "rope.I qk norm.I norm1.A qkv.W qkv.I norm1.I");
  std::string saved;
  for (const Saved& one : s.saved) saved += one.name + " ";
  EXPECT_EQ(saved, "norm1.rstd qk.rstd qkv qkv.heads attended.heads lse attended norm1.out ");
  // 12 tokens have 4 query heads and 2 key heads of 10; 4 ranks repeat the latter.
  const Values at = Split{.cp = 4}.values();
  const auto elements = [&](const char* name) {
    return std::ranges::find(s.tensors, name, &Tensor::name)->elements().evaluate(at);
  };
  EXPECT_EQ(elements("qkv"), 3 * (4 + 2 + 2) * 10);
  EXPECT_EQ(elements("qkv.parts"), 3 * (4 + 4 + 4) * 10);
  EXPECT_EQ(elements("qkv.heads"), 12 * (1 + 1 + 1) * 10);
  EXPECT_EQ(elements("attended.heads"), 12 * 1 * 10);
  EXPECT_EQ(elements("attended"), 3 * 4 * 10);
  EXPECT_EQ(elements("lse"), 12 * 1);
}

// Latent features travel, and keys and values are made of them on each rank, in both passes.
TEST(Layer, RanksThatShareASequenceGatherLatentFeatures) {
  const std::vector<Config> all = models();
  const Config& latent = *std::ranges::find_if(all, &Config::latent);
  const Segment s = segment(latent, SegmentKind::attention, Sharing::keys);
  EXPECT_EQ(forward_runs(s, {.cp = 2}).size(), 2u);
  EXPECT_EQ(backward_runs(s, {.cp = 2}).size(), 2u);
  EXPECT_EQ(text(s),
            "narrow.A out.W out.I narrow.I kv_up.A expand.A attention.I rope queries.I q_down "
            "norm.A q.W q.I q_down norm.I expand.I kv_up.W kv_up.I gather latents.I kv_down norm.I "
            "rope kv_down.I norm1.A q_down.W kv_down.W k_turned.W q_down.I kv_down.I k_turned.I "
            "norm1.I");
  std::string saved;
  for (const Saved& one : s.saved) saved += one.name + (one.for_weights ? ".W " : " ");
  EXPECT_EQ(saved,
            "norm1.rstd.W q_down norm.rstd.W q_down.W kv_down norm.rstd kv_down latents.all.W "
            "attended.W lse queries norm1.out.W q_down.out.W narrow.W ");
  const auto tensor = [&](const char* name) {
    return *std::ranges::find(s.tensors, name, &Tensor::name);
  };
  const Values at = Split{.cp = 2, .gather_keys = 1}.values();
  EXPECT_EQ(tensor("latents.all").elements().evaluate(at),
            latent.seq_len * (latent.kv_lora_rank + latent.rotary_dim()));
  // The parts of keys are free again when these are widened, their gradient stays.
  EXPECT_TRUE(tensor("keys.parts").apart);
}

// Attention of queries of a rank's tokens, to keys of all that the backward gathers again.
TEST(Layer, RanksThatShareASequenceGatherKeys) {
  const Segment s = segment(test::special_models().front(), SegmentKind::attention, Sharing::keys);
  // norm1, qkv, qk norm, rope, cut keys | gather keys | attention, residual, out
  EXPECT_EQ(forward_runs(s, {.cp = 2}).size(), 2u);
  EXPECT_EQ(backward_runs(s, {.cp = 2}).size(), 3u);
  EXPECT_EQ(text(s),
            "out.W out.I qk norm.A rope.A cut keys.A gather keys.A attention.I gather keys.I cut "
            "keys.I rope.I qk norm.I norm1.A qkv.W qkv.I norm1.I");
  std::string saved;
  for (const Saved& one : s.saved) saved += one.name + " ";
  EXPECT_EQ(saved, "norm1.rstd qk.rstd qkv attended lse norm1.out keys.all qk.out ");
}

/// The list of a norm, a product, two other kernels and a product, on tensors [2, 3].
Segment chain(OperatorKind first, OperatorKind second) {
  Segment segment{.kind = SegmentKind::mlp, .activation_bytes = 4};
  for (const char* name : {"input", "output", "normed", "wide", "a", "b"})
    segment.tensors.push_back({name, 2.0, 3.0, 4});
  const auto add = [&](const char* name, OperatorKind kind, int read, int written) {
    segment.operators.push_back({.name = name,
                                 .kind = kind,
                                 .read = TensorId(read),
                                 .written = TensorId(written),
                                 .dims = {},
                                 .forward_flops = 0.0,
                                 .backward_flops = 0.0,
                                 .forward_bytes = 0.0,
                                 .backward_bytes = 0.0});
  };
  add("norm", OperatorKind::rms_norm, 0, 2);
  add("in", OperatorKind::matmul, 2, 3);
  add("first", first, 3, 4);
  add("second", second, 4, 5);
  add("out", OperatorKind::matmul, 5, 1);
  return segment;
}

// The product's factor is kept, and not made again, if the kernel before it is not cheap.
TEST(Layer, OnlyCheapOutputsAreMadeAgain) {
  Segment s = chain(OperatorKind::gelu, OperatorKind::attention);
  EXPECT_THROW(derive(s), Error) << "attention reads a cheap tensor while it makes its gradient";
  s = chain(OperatorKind::rope, OperatorKind::gelu);
  derive(s);
  EXPECT_EQ(text(s), "second.A out.W out.I second.I first.I norm.A in.W in.I norm.I");
  ASSERT_EQ(s.saved.size(), 3u);
  EXPECT_EQ(s.saved[0].name, "a");
  EXPECT_TRUE(s.saved[0].for_weights) << "the weights part makes b again from it";
  EXPECT_EQ(s.saved[1].name, "normed");
  EXPECT_EQ(s.saved[2].name, "b");
}

/// The list of a norm of each tensor-parallel rank's rows, which a product or attention reads after
/// a gather.
Segment gathering(OperatorKind reader) {
  Segment segment = chain(OperatorKind::rope, OperatorKind::gelu);
  const Expr tp = Expr::variable("tp");
  segment.tensors[2].rows = 2.0 / tp;
  segment.tensors[2].cut = Axis::tp;
  segment.tensors.push_back({"all", 2.0, 3.0, 4});
  segment.operators[1].kind = reader;
  segment.operators[1].read = TensorId(6);
  Operator gather = segment.operators[0];
  gather.name = "gather";
  gather.kind = OperatorKind::all_gather;
  gather.read = TensorId(2);
  gather.written = TensorId(6);
  gather.axes = Axis::tp;
  segment.operators.insert(segment.operators.begin() + 1, gather);
  derive(segment);
  return segment;
}

// Rows lie in the gathered tensor, and their gradients in its gradient.
TEST(Layer, RowsAreGatheredInPlace) {
  Segment s = gathering(OperatorKind::matmul);
  EXPECT_EQ(text(s),
            "second.A out.W out.I second.I first.I norm.A gather.A in.W in.I gather.I norm.I");
  const Tensor &rows = s.tensors[2], &all = s.tensors[6];
  EXPECT_EQ(rows.rows_of, TensorId(6));
  EXPECT_EQ(rows.gradient_of, TensorId(6));
  EXPECT_FALSE(all.apart);
  EXPECT_EQ(forward_runs(s, {.tp = 2}).size(), 2u);
  EXPECT_EQ(backward_runs(s, {.tp = 2}).size(), 3u);
  EXPECT_EQ(backward_runs(s, {}).size(), 1u);
  for (const Saved& saved : s.saved)
    EXPECT_NE(saved.name, "normed") << "it has no place of its own";
  EXPECT_EQ(std::ranges::count(s.saved, TensorId(6), &Saved::tensor), 1);
  EXPECT_EQ(s.forward_workspace_elements.evaluate(Split{.tp = 2}.values()),
            s.forward_workspace_elements.evaluate(Split{}.values()))
      << "the rows take no room";
}

// Attention reads what is gathered while it makes the gradient.
TEST(Layer, WhatIsGatheredAndItsGradientHaveTwoPlaces) {
  const Segment s = gathering(OperatorKind::attention);
  const Tensor& all = s.tensors[6];
  EXPECT_TRUE(all.apart);
  const Values at = Split{.tp = 2}.values();
  EXPECT_NE(all.again_offset.evaluate(at), all.backward_offset.evaluate(at));
  const double rest = s.backward_workspace_elements.evaluate(at);
  for (const Expr& offset : {all.again_offset, all.backward_offset})
    EXPECT_LE(offset.evaluate(at) + 6.0, rest);
}

/// Kinds of segments, with divisions of plans whose lists differ.
std::vector<std::pair<SegmentKind, Division>> kinds_of(const Config& m) {
  std::vector<std::pair<SegmentKind, Division>> found;
  for (const SegmentKind kind : segment_kinds(m))
    for (const Division& division :
         {Division(), Division(Sharing::heads), Division(Sharing::keys), Division(Axis::tp),
          Division(Axis::ep), Division({Axis::tp, Axis::cp}),
          Division({Axis::tp, Axis::cp}, Sharing::keys)})
      found.emplace_back(kind, division);
  if (m.num_experts > 0 && m.shared_expert_ffn_size == 0)
    found.emplace_back(SegmentKind::experts, Division(expert_axes, Sharing::heads, true));
  return found;
}

// Each rank norms its rows before a gather. What brings them together comes first, in both passes.
TEST(Layer, NormsOfRowsComeFirst) {
  for (const Config& m : models())
    for (const SegmentKind kind : segment_kinds(m)) {
      const Segment s = segment(m, kind, sum_axes(kind));
      const bool of_layer = kind != SegmentKind::embedding && kind != SegmentKind::head;
      const std::size_t inputs = kind == SegmentKind::parallel ? std::size_t(m.layer_norms) : 1;
      ASSERT_EQ(s.brought().size(), of_layer ? inputs : 0) << m.family->name;
      EXPECT_TRUE(segment(m, kind, Axis::cp).brought().empty());
      const auto forward = forward_runs(s, {.tp = 2}), backward = backward_runs(s, {.tp = 2});
      for (std::size_t i = 0; i < s.brought().size(); ++i) {
        const Tensor& all = s.tensor(s.brought()[i]);
        for (const auto& run : {forward[i], backward[i]}) EXPECT_EQ(run.end - run.first, 1);
        const Operator &norm = s.operators[std::size_t(forward[i].first)],
                       &again =
                           s.operators[std::size_t(s.backward[std::size_t(backward[i].first)].op)];
        EXPECT_TRUE(is_norm(norm.kind));
        EXPECT_EQ(norm.name, again.name);
        const Values at = Split{.tp = 2}.values();
        EXPECT_EQ(2.0 * s.tensor(norm.written).elements().evaluate(at),
                  all.elements().evaluate(at));
        for (const TensorId one : norm.statistics)
          EXPECT_EQ(2.0 * s.tensor(one).rows.evaluate(at), all.rows.evaluate(at));
      }
      if (of_layer && !m.post_norms()) {
        EXPECT_EQ(s.operators.back().kind, OperatorKind::residual);
      }
    }
}

// Each gradient is whole before it is read, and scratch that is in use is never written.
TEST(Layer, ABackwardReadsWhatIsMade) {
  for (const Config& m : all_models())
    for (const auto& [kind, division] : kinds_of(m)) {
      const Segment s = segment(m, kind, division);
      const auto op = [&](int index) { return s.operators[std::size_t(index)]; };
      std::map<TensorId, int> missing;  // readers that have not added to a tensor's gradient
      for (const Operator& one : s.operators)
        if (!is_epilogue(one.kind) && one.kind != OperatorKind::residual && !one.in_place() &&
            one.read != s.terms)
          ++missing[one.read];
      std::set<TensorId> there;  // that are cheap and made again
      for (const BackwardCall& call : s.backward) {
        const Operator done = op(call.op);
        if (call.again) {
          there.insert(done.written);
          continue;
        }
        EXPECT_EQ(missing[done.written], 0) << m.family->name << " " << done.name;
        const bool reads = rule(done.kind).needs(Need::read) && !is_product(done.kind);
        const bool cheap = std::ranges::any_of(
            s.saved, [&](const Saved& saved) { return saved.tensor == done.read && saved.cheap; });
        if (cheap && (reads || call.for_weights)) {
          EXPECT_TRUE(there.contains(done.read)) << done.name;
        }
        if (!call.for_weights && !done.in_place()) --missing[done.read];
      }
      EXPECT_EQ(missing[TensorId::input], 0);
    }
}

TEST(Layer, ScratchHoldsItsTensors) {
  for (const Config& m : all_models())
    for (const SegmentKind kind : segment_kinds(m))
      for (const Split& split :
           {Split{}, Split{.tp = 2, .microbatch = 3}, Split{.tp = 2, .microbatch = 3, .ep = 2},
            Split{.cp = 2}, Split{.tp = 2, .cp = 2}, Split{.cp = 2, .gather_keys = 1},
            Split{.tp = 2, .cp = 4, .gather_keys = 1},
            Split{.tp = 2, .microbatch = 2, .ep = 4, .dispatch_tokens = 1}}) {
        const Values at = split.values();
        const Segment s = segment(m, kind, split.division());
        const double products = s.product_grads_elements.evaluate(at);
        const double rest = s.backward_workspace_elements.evaluate(at) - products;
        for (const Tensor& tensor : s.tensors) {
          const double elements = tensor.elements().evaluate(at);
          const double end = tensor.backward_offset.evaluate(at);
          const bool product = tensor.gradient == Tensor::Gradient::products;
          if (product || end > 0.0) {
            EXPECT_LE(end + elements, product ? products : rest) << tensor.name;
          }
        }
      }
}

// 15 of the 28 pairs of 8 experts leave out the two of a rank.
TEST(Layer, TokensAreSentToTheRanksOfTheirExperts) {
  Config m{.num_layers = 1,
           .hidden_size = 16,
           .num_heads = 2,
           .ffn_size = 24,
           .seq_len = 12,
           .vocab_size = 31};
  m.family = &family("llama");
  m.qkv_bias = m.linear_bias = false;
  m.num_experts = 8, m.experts_per_token = 2, m.expert_ffn_size = 20;
  const Split split{.tp = 2, .microbatch = 2, .ep = 4, .dispatch_tokens = 1};
  const Values at = split.values();
  const double of_token = 4.0 * (1.0 - 15.0 / 28.0), own = 2 * 12 / 2, row = 16.0 * 4.0;
  EXPECT_DOUBLE_EQ(ranks_of_token(m).evaluate(at), of_token);
  const Segment s = segment(m, SegmentKind::experts, split.division());
  EXPECT_TRUE(s.brought().empty());
  // Exchanges, each with the operators that compute meanwhile.
  const auto exchanges = [&](const std::vector<model::Run>& runs, const auto& op_at) {
    std::vector<std::string> names;
    for (const model::Run& run : runs) {
      for (int i = run.first; i < run.end && run.beside; ++i) names.back() += ", " + op_at(i).name;
      if (&run != &runs.back() && is_exchange(op_at(run.end).kind))
        names.push_back(op_at(run.end).name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  const auto forward_of = [&](const Segment& s) {
    return exchanges(forward_runs(s, split), [&](int i) { return s.operators[std::size_t(i)]; });
  };
  const auto backward_of = [&](const Segment& s) {
    return exchanges(backward_runs(s, split), [&](int i) {
      return s.operators[std::size_t(s.backward[std::size_t(i)].op)];
    });
  };
  EXPECT_EQ(forward_of(s), (Names{"gather choices", "send tokens", "return tokens"}));
  EXPECT_EQ(backward_of(s), (Names{"send tokens, sum", "return tokens", "gather choices",
                                   "send tokens, norm2, router"}));
  Config shares = m;
  shares.shared_expert_ffn_size = 24;
  const Segment of_shared = segment(shares, SegmentKind::experts, split.division());
  EXPECT_EQ(forward_of(of_shared), (Names{"gather choices", "send tokens, shared in, shared swiglu",
                                          "return tokens, shared out"}));
  EXPECT_EQ(backward_of(of_shared),
            (Names{"send tokens, sum",
                   "return tokens, shared swiglu, shared out, shared out, shared swiglu",
                   "gather choices", "send tokens, norm2, shared in, norm2, router, shared in"}));
  const auto wide = std::ranges::find(of_shared.tensors, std::string("shared wide"), &Tensor::name);
  EXPECT_EQ(wide->elements().evaluate(at), 2 * own / 2 * 2 * 24);
  for (const Operator& op : s.operators)
    if (is_of_tokens(op.kind)) {
      EXPECT_DOUBLE_EQ(op.expected_bytes.evaluate(at), own * of_token * row);
    }
  for (const char* name : {"sent", "back"}) {
    const auto found = std::ranges::find(s.tensors, std::string(name), &Tensor::name);
    EXPECT_EQ(found->rows.evaluate(at), own * 2) << name;
  }
  // A recompute whose output nobody reads returns nothing.
  for (const Operator& op : s.operators)
    EXPECT_EQ(op.output_only, op.name == "out" || op.name == "combine" || op.name == "sum" ||
                                  op.name == "return tokens")
        << op.name;
}

// By hand, per token of a Gemma 3 layer: d_attended beside what attention reads, made again.
TEST(Layer, WorkspaceOfNormsOfHeads) {
  Config m = test::special_models().back();
  const Segment s = segment(m, SegmentKind::attention);
  const Values at = Split{}.values();
  const double heads = 4 * 10, qkv = (4 + 2) * 10, hidden = 36;
  EXPECT_EQ(s.forward_workspace_elements.evaluate(at), m.seq_len * qkv);
  EXPECT_EQ(s.product_grads_elements.evaluate(at), m.seq_len * (qkv + hidden));
  EXPECT_EQ(s.backward_workspace_elements.evaluate(at), m.seq_len * (qkv + hidden + heads + qkv));
  EXPECT_EQ(s.weights_workspace_elements.evaluate(at), m.seq_len * hidden);
}

TEST(Layer, ParametersAreNamedByTheirIds) {
  for (const Config& m : models())
    for (const Block& block : blocks(m))
      for (const Parameter& parameter : block.parameters)
        EXPECT_EQ(parameter.name, block.name + "." + name(parameter.id));
}

}  // namespace
}  // namespace brume::model
