#include "model/optimizers.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

constexpr StateField adamw_fields[] = {{"m"}, {.name = "v", .positive = true}};
constexpr StateField lion_fields[] = {{"m"}};
constexpr StateField sgd_fields[] = {{"momentum"}};
constexpr StateField muon_fields[] = {{"m"}};

constexpr StateField master_weight{"weight"};

bool has_master(const Config& config) { return config.precision != Precision::fp32; }

}  // namespace

constexpr OptimizerRow adamw{.name = "adamw", .fields = adamw_fields, .flops = 16.0};
constexpr OptimizerRow lion{.name = "lion", .fields = lion_fields, .flops = 10.0};
constexpr OptimizerRow sgd{.name = "sgd", .fields = sgd_fields, .flops = 6.0};
constexpr OptimizerRow muon{
    .name = "muon", .fields = muon_fields, .flops = 6.0, .of_elements = &adamw};

namespace {

constexpr const OptimizerRow* rows[] = {&adamw, &lion, &sgd, &muon};

}  // namespace

std::string update_kind(const OptimizerRow& row, Moments moments) {
  const std::string rule = row.elementwise().name;
  return moments == Moments::fp32 ? rule : rule + "_" + name(moments);
}

const OptimizerRow& optimizer(std::string_view name) {
  const auto row =
      std::ranges::find_if(rows, [&](const OptimizerRow* one) { return one->name == name; });
  require(row != std::end(rows), Failure::input, "'{}' is no optimizer", name);
  return **row;
}

Moments moments(std::string_view name) {
  for (const Moments one : {Moments::fp32, Moments::bf16, Moments::fp8})
    if (name == brume::name(one)) return one;
  throw Error(Failure::input, "moments \"{}\" are none of fp32, bf16 and fp8", name);
}

std::vector<StateField> state_fields(const Config& config) {
  const OptimizerRow& row = config.optimizer->elementwise();
  std::vector<StateField> fields;
  const auto add = [&](std::span<const StateField> of_row, Moments moments, StateOf of) {
    for (const StateField& field : of_row)
      fields.push_back(field.in(moments)), fields.back().of = of;
  };
  if (config.moments == Moments::fp8) {
    add(row.fields, Moments::fp32, StateOf::full);
    add(row.fields, Moments::fp8, StateOf::lean);
  } else {
    const std::size_t of_matrices = config.optimizer->fields.size();
    add(row.fields.first(of_matrices), config.moments, StateOf::all);
    add(row.fields.subspan(of_matrices), config.moments, StateOf::full);
  }
  if (has_master(config)) fields.push_back(master_weight);
  return fields;
}

namespace {

double field_bytes(const Config& config, StateOf kind) {
  double bytes = 0.0;
  for (const StateField& field : state_fields(config))
    if (field.of == StateOf::all || field.of == kind) bytes += field.element_bytes();
  return bytes;
}

}  // namespace

double optimizer_bytes(const Config& config) { return field_bytes(config, StateOf::full); }
double lean_optimizer_bytes(const Config& config) { return field_bytes(config, StateOf::lean); }

std::vector<FieldPart> state_parts(const Config& config, const Layout& layout, std::int64_t first,
                                   std::int64_t elements) {
  std::vector<FieldPart> parts;
  std::int64_t byte = 0;
  for (const StateField& field : state_fields(config)) {
    std::int64_t begin = first, end = first + elements;
    if (field.of == StateOf::full) end = std::min(end, layout.full_state_elements);
    if (field.of == StateOf::lean) begin = std::max(begin, layout.full_state_elements);
    parts.push_back({field, begin, std::max<std::int64_t>(0, end - begin), byte});
    byte += field.bytes(parts.back().elements);
  }
  return parts;
}

std::int64_t state_bytes(const Config& config, const Layout& layout, std::int64_t first,
                         std::int64_t elements) {
  const FieldPart last = state_parts(config, layout, first, elements).back();
  return last.first_byte + last.field.bytes(last.elements);
}

}  // namespace brume::model
