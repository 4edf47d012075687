/// @file How a block's parameters lie in flat buffers.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "block_parameters.hpp"
#include "heads.hpp"

namespace brume::model {
namespace {

Expr aligned(const Expr& elements, std::int64_t alignment) {
  return ceil(elements / double(alignment)) * double(alignment);
}

/// Elements of flat buffers that a parameter takes, all of it on one rank.
double all_elements(const Parameter& parameter) {
  return double(parameter.stored_elements(parameter.elements()));
}

/// Elements of the largest piece that tp cuts off.
Expr local_elements(const Parameter& parameter) {
  const auto cut_along = [&](int dim, const Expr& parts) {
    const double extent = double(parameter.shape[std::size_t(dim)]);
    return ceil(extent / parts) * (all_elements(parameter) / extent);
  };
  const Expr by_tp = cut_along(parameter.split_dim, Expr::variable("tp"));
  if (parameter.expert_dim < 0) return by_tp;
  const Expr ep = Expr::variable("ep");
  return select(less(1.0, ep), cut_along(parameter.expert_dim, ep), by_tp);
}

}  // namespace

bool has_lean_state(const Parameter& parameter) {
  return parameter.unit == UpdateUnit::matrix || parameter.blocked_moments;
}

std::vector<std::size_t> layout_order(const Block& block) {
  std::vector<std::size_t> order(block.parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    const Parameter& one = block.parameters[i];
    const int rarely_partial = one.tp_partial ? 0 : one.split_heads > 0 ? 1 : 2;
    return std::tuple(one.frozen, rarely_partial, one.expert_dim >= 0, has_lean_state(one));
  });
  return order;
}

Cut cut(std::int64_t extent, int parts, int index) {
  const std::int64_t each = ceil_div(extent, parts), first = std::min(each * index, extent);
  return {first, std::min(each, extent - first)};
}

std::int64_t trained_alignment(const Block& block) {
  const bool blocked = std::ranges::any_of(block.parameters, &Parameter::blocked_moments);
  return blocked ? std::lcm(alignment_elements, std::int64_t{quantized_block}) : alignment_elements;
}

std::int64_t frozen_alignment(const Block& block) {
  std::int64_t alignment = alignment_elements;
  for (const Parameter& one : block.parameters)
    alignment = std::lcm(alignment, std::int64_t{one.block_elements});
  return alignment;
}

std::string quantization_fault(const Config& config, int tp, int ep) {
  if ((config.quantization == Quantization::none && config.moments != Moments::fp8) ||
      std::max(tp, ep) == 1)
    return {};
  for (const Block& block : blocks(config))
    for (const Parameter& one : block.parameters) {
      const bool quantized = one.quantization != Quantization::none || one.blocked_moments;
      const bool by_ep = ep > 1 && one.expert_dim >= 0;
      const int parts = by_ep ? ep : tp;
      const bool cuts_rows = one.splits(tp) && one.cut_dim(ep) + 1 == int(one.shape.size());
      if (!quantized || !cuts_rows ||
          one.shape.back() % (std::int64_t{parts} * quantized_block) == 0)
        continue;
      return fmt::format("{} = {} must cut rows of {}, which have {} values, between {} of {}",
                         by_ep ? "ep" : "tp", parts, model::name(one.id), one.shape.back(),
                         one.blocked_moments ? "blocks of moments" : "quantized blocks",
                         quantized_block);
    }
  return {};
}

Layout layout(const Block& block, int tp, int tp_rank, int shards, ExpertRanks experts) {
  Layout layout{.pieces = {},
                .partial_elements = 0,
                .dense_elements = 0,
                .full_state_elements = 0,
                .trained_elements = 0,
                .elements = 0};
  std::int64_t alignment = trained_alignment(block);
  const auto add = [&](std::size_t i) {
    const Parameter& parameter = block.parameters[i];
    Piece piece{.parameter = int(i),
                .shape = parameter.shape,
                .offset = std::vector<std::int64_t>(parameter.shape.size(), 0),
                .first = layout.elements,
                .elements = parameter.stored_elements(parameter.elements())};
    std::int64_t room = piece.elements;
    if (parameter.splits(tp)) {
      const bool whole = experts.count > 1 && parameter.expert_dim >= 0;
      const int parts = whole ? experts.count : tp;
      const auto dim = std::size_t(parameter.cut_dim(experts.count));
      const std::int64_t extent = parameter.shape[dim], rest = parameter.elements() / extent;
      const Cut mine = cut(extent, parts, whole ? experts.rank : tp_rank);
      piece.shape[dim] = mine.count;
      piece.offset[dim] = mine.first;
      piece.elements = parameter.stored_elements(mine.count * rest);
      room = parameter.stored_elements(cut(extent, parts, 0).count * rest);
    }
    layout.elements += round_up(room, alignment);
    if (parameter.is_partial(tp) && !parameter.frozen) layout.partial_elements = layout.elements;
    if (parameter.expert_dim < 0 && !parameter.frozen) layout.dense_elements = layout.elements;
    if (!has_lean_state(parameter) && !parameter.frozen)
      layout.full_state_elements = layout.elements;
    layout.pieces.push_back(std::move(piece));
  };
  const auto pad = [&](std::int64_t first) {
    layout.elements = first + round_up(layout.elements - first, alignment * shards);
  };
  const std::vector<std::size_t> order = layout_order(block);
  const auto frozen =
      std::ranges::find_if(order, [&](std::size_t i) { return block.parameters[i].frozen; });
  std::for_each(order.begin(), frozen, add), pad(0);
  layout.trained_elements = layout.elements;
  alignment = frozen_alignment(block);
  std::for_each(frozen, order.end(), add), pad(layout.trained_elements);
  return layout;
}

const Piece& Layout::piece(const Block& block, std::string_view suffix) const {
  for (const Piece& piece : pieces)
    if (block.parameters[piece.parameter].name.ends_with(suffix)) return piece;
  throw Error(Failure::bug, "block {} has no parameter '{}'", block.name, suffix);
}

LayoutElements layout_elements(const Config& config, const Block& block) {
  const Expr shards = Expr::variable("dp") * Expr::variable("cp") / expert_data_ranks(config);
  const std::int64_t of_trained = trained_alignment(block), of_frozen = frozen_alignment(block);
  LayoutElements elements{0.0, 0.0, 0.0, 0.0};
  for (const std::size_t i : layout_order(block)) {
    const Parameter& parameter = block.parameters[i];
    const Expr whole = all_elements(parameter);
    const Expr heads = local_heads(parameter.split_heads);
    const Expr local = parameter.split_dim < 0     ? whole
                       : parameter.split_heads > 0 ? whole / double(parameter.split_heads) * heads
                                                   : local_elements(parameter);
    if (parameter.frozen)
      elements.frozen += aligned(local, of_frozen);
    else
      elements.trained += aligned(local, of_trained);
    if (parameter.frozen) continue;
    if (parameter.expert_dim < 0) elements.dense = elements.trained;
    if (!has_lean_state(parameter)) elements.full_state = elements.trained;
  }
  const auto padded = [&](const Expr& all, std::int64_t alignment) {
    const Expr step = shards * double(alignment);
    return ceil(all / step) * step;
  };
  return {padded(elements.trained, of_trained), padded(elements.frozen, of_frozen), elements.dense,
          elements.full_state};
}

Matrices matrices(const std::vector<std::int64_t>& shape) {
  Matrices found{1, shape.at(shape.size() - 2), shape.back()};
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) found.count *= shape[i];
  return found;
}

MatrixWorkspace matrix_workspace(const Config& config, const Block& block) {
  constexpr std::int64_t line = alignment_elements * sizeof(float);
  MatrixWorkspace largest;
  for (const Parameter& one : block.parameters) {
    if (one.frozen || one.unit == UpdateUnit::element) continue;
    const Matrices of = matrices(one.shape);
    const std::int64_t short_side = std::min(of.rows, of.columns);
    const auto bytes = [&](std::int64_t elements) {
      return round_up(elements * weight_bytes(config.precision), line);
    };
    largest = {.squares_bytes = line,
               .matrix_bytes = std::max(largest.matrix_bytes, bytes(of.elements())),
               .gram_bytes = std::max(largest.gram_bytes, bytes(short_side * short_side))};
  }
  return largest;
}

std::pair<std::int64_t, std::int64_t> cut_matrices(const Block& block, const Layout& layout, int tp,
                                                   int ep) {
  std::pair<std::int64_t, std::int64_t> range{layout.trained_elements, 0};
  for (std::size_t i = 0; i < layout.pieces.size(); ++i) {
    const Piece& piece = layout.pieces[i];
    const Parameter& one = block.parameters[std::size_t(piece.parameter)];
    if (one.frozen || one.unit == UpdateUnit::element || !one.cuts_matrices(tp, ep)) continue;
    const bool last = i + 1 == layout.pieces.size();
    const std::int64_t end = last ? layout.elements : layout.pieces[i + 1].first;
    range = {std::min(range.first, piece.first),
             std::max(range.second, std::min(end, layout.trained_elements))};
  }
  return {range.first, std::max(range.first, range.second)};
}

Expr token_table_elements(const Config& config) {
  return local_elements(token_table(Module::token, config));
}

Expr layout_partial_elements(const Block& block) {
  const std::int64_t alignment = trained_alignment(block);
  Expr elements = 0.0;
  for (const Parameter& parameter : block.parameters) {
    if (parameter.frozen) continue;
    const Expr whole = aligned(double(parameter.elements()), alignment);
    if (parameter.tp_partial) elements += whole;
    if (parameter.split_heads > 0) elements += heads_are_whole(parameter.split_heads) * whole;
  }
  return elements;
}

}  // namespace brume::model
