/// @file Factors of adapters, and their term in a linear layer's weight.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "peft.hpp"

namespace brume::interop {

std::vector<float> tensor_values(const Placed& placed, const FillSlabs& fill) {
  std::vector<float> values(std::size_t(placed.parameter.elements()));
  std::vector<engine::Slab> slabs{whole_slab(placed.parameter, values.data())};
  fill(slabs);
  std::vector<float> turned(values.size());
  if (placed.transposed) {
    const std::int64_t rows = placed.rows(), columns = placed.columns();
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column)
        turned[std::size_t(column * rows + row)] = values[std::size_t(row * columns + column)];
    return turned;
  }
  auto from = values.begin();
  for (const RowRun& run : placed.runs) {
    const std::int64_t count = run.count * placed.columns();
    std::copy_n(from, count, turned.begin() + run.first * placed.columns());
    from += count;
  }
  return turned;
}

namespace {

/// One expert's values of a factor.
std::vector<float> expert_values(const Placed& placed, std::int64_t expert, const FillSlabs& fill) {
  const model::Parameter& parameter = placed.parameter;
  std::vector<float> values(std::size_t(parameter.elements() / parameter.shape.front()));
  std::vector<engine::Slab> slabs{whole_slab(parameter, values.data())};
  slabs.front().elements = std::ssize(values);
  slabs.front().first = expert * std::ssize(values);
  fill(slabs);
  return values;
}

}  // namespace

std::map<std::string, Factors> factors(const HuggingFaceLayout& layout) {
  constexpr std::string_view end = ".lora_A.weight";
  static_assert(end.size() == std::string_view(".lora_B.weight").size());
  std::map<std::string, Factors> all;
  for (const Placed& placed : layout.parameters) {
    if (!placed.parameter.id.is_adapter()) continue;
    const bool of_experts = placed.parameter.id.is_of_experts();
    const std::string& name = of_experts ? placed.parameter.name : placed.runs.front().tensor;
    const std::size_t begin = of_experts ? 0 : peft_prefix.size(),
                      until = of_experts ? name.rfind('.') : name.size() - end.size();
    Factors& both = all[name.substr(begin, until - begin) + ".weight"];
    (placed.parameter.id.part == model::Part::lora_a ? both.a : both.b) = &placed;
  }
  return all;
}

AdapterTerm::AdapterTerm(const Factors& factors, const model::Adapter& adapter, Dtype dtype,
                         const FillSlabs& fill, std::int64_t first_row)
    : rank_(*std::prev(factors.a->parameter.shape.end(), 2)),
      width_(factors.a->columns()),
      scale_(float(adapter.scale(*adapter.find(factors.a->parameter.id.module)))),
      dtype_(dtype) {
  const model::Parameter &a = factors.a->parameter, &b = factors.b->parameter;
  if (!a.id.is_of_experts()) {
    a_ = tensor_values(*factors.a, fill), b_ = tensor_values(*factors.b, fill);
    return;
  }
  const std::int64_t rows = b.elements() / (b.shape.front() * rank_);  // of an expert
  first_row_ = first_row % rows;
  a_ = expert_values(*factors.a, first_row / rows, fill);
  b_ = expert_values(*factors.b, first_row / rows, fill);
}

MergeSums AdapterTerm::add(std::int64_t row, std::int64_t column, std::int64_t columns,
                           std::span<float> values) const {
  MergeSums sums;
  std::vector<float> term(static_cast<std::size_t>(columns));
  for (; !values.empty(); ++row, values = values.subspan(term.size())) {
    std::ranges::fill(term, 0.0f);
    for (std::int64_t k = 0; k < rank_; ++k) {
      const float b = b_[(first_row_ + row) * rank_ + k];
      const float* a = a_.data() + k * width_ + column;
      for (std::int64_t i = 0; i < columns; ++i) term[i] += b * a[i];
    }
    with_values(dtype_, [&]<typename Value>(Value) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const float before = values[i], added = scale_ * term[i];
        values[i] += added;
        sums.weights += double(before) * before;
        sums.terms += double(added) * added;
        sums.kept += double(added) * (double(Value(values[i])) - double(Value(before)));
      }
    });
  }
  return sums;
}

MergeSums& MergeSums::operator+=(const MergeSums& other) {
  weights += other.weights;
  terms += other.terms;
  kept += other.kept;
  return *this;
}

}  // namespace brume::interop
