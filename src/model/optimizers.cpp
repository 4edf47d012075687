#include "model/optimizers.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

constexpr StateField adamw_fields[] = {{"m"}, {"v"}};
constexpr StateField lion_fields[] = {{"m"}};
constexpr StateField sgd_fields[] = {{"momentum"}};

constexpr StateField master_weight{"weight"};

bool has_master(const Config& config) { return config.precision != Precision::fp32; }

}  // namespace

constexpr OptimizerRow adamw{.name = "adamw", .fields = adamw_fields, .flops = 16.0};
constexpr OptimizerRow lion{.name = "lion", .fields = lion_fields, .flops = 10.0};
constexpr OptimizerRow sgd{.name = "sgd", .fields = sgd_fields, .flops = 6.0};

namespace {

constexpr const OptimizerRow* rows[] = {&adamw, &lion, &sgd};

}  // namespace

const OptimizerRow& optimizer(std::string_view name) {
  const auto row =
      std::ranges::find_if(rows, [&](const OptimizerRow* one) { return one->name == name; });
  require(row != std::end(rows), Failure::input, "'{}' is no optimizer", name);
  return **row;
}

std::vector<StateField> state_fields(const Config& config) {
  std::vector<StateField> fields(config.optimizer->fields.begin(), config.optimizer->fields.end());
  if (has_master(config)) fields.push_back(master_weight);
  return fields;
}

int optimizer_bytes(const Config& config) {
  int bytes = has_master(config) ? master_weight.bytes() : 0;
  for (const StateField& field : config.optimizer->fields) bytes += field.bytes();
  return bytes;
}

}  // namespace brume::model
