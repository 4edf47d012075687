#include "model/optimizers.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

constexpr StateField adamw_fields[] = {{"m"}, {"v"}};
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

std::string update_kind(const OptimizerRow& row, Precision moments) {
  return row.elementwise().name + std::string(moments == Precision::fp32 ? "" : "_bf16");
}

const OptimizerRow& optimizer(std::string_view name) {
  const auto row =
      std::ranges::find_if(rows, [&](const OptimizerRow* one) { return one->name == name; });
  require(row != std::end(rows), Failure::input, "'{}' is no optimizer", name);
  return **row;
}

std::vector<StateField> state_fields(const Config& config) {
  const OptimizerRow& row = config.optimizer->elementwise();
  std::vector<StateField> fields;
  for (const StateField& field : row.fields) fields.push_back(field.in(config.moments));
  for (std::size_t i = config.optimizer->fields.size(); i < fields.size(); ++i)
    fields[i].of_elements = true;
  if (has_master(config)) fields.push_back(master_weight);
  return fields;
}

namespace {

int field_bytes(const Config& config, bool of_elements) {
  int bytes = 0;
  for (const StateField& field : state_fields(config))
    if (of_elements || !field.of_elements) bytes += field.bytes();
  return bytes;
}

}  // namespace

int optimizer_bytes(const Config& config) { return field_bytes(config, true); }
int matrix_optimizer_bytes(const Config& config) { return field_bytes(config, false); }

std::vector<FieldPart> state_parts(const Config& config, const Layout& layout, std::int64_t first,
                                   std::int64_t elements) {
  std::vector<FieldPart> parts;
  std::int64_t byte = 0;
  for (const StateField& field : state_fields(config)) {
    const std::int64_t end = field.of_elements
                                 ? std::min(first + elements, layout.elementwise_elements)
                                 : first + elements;
    parts.push_back({field, first, std::max<std::int64_t>(0, end - first), byte});
    byte += parts.back().elements * field.bytes();
  }
  return parts;
}

std::int64_t state_bytes(const Config& config, const Layout& layout, std::int64_t first,
                         std::int64_t elements) {
  const FieldPart last = state_parts(config, layout, first, elements).back();
  return last.first_byte + last.elements * last.field.bytes();
}

}  // namespace brume::model
