#include "plan/rules.hpp"

namespace brume::plan {

MovedTensors moved_tensors(const std::vector<model::Kept>& kept, double ratio,
                           const model::Split& split) {
  const auto values = split.values();
  std::vector<double> bytes;
  double all_bytes = 0.0;
  for (const model::Kept& tensor : kept)
    all_bytes += bytes.emplace_back(tensor.bytes.evaluate(values));
  MovedTensors moved;
  for (double tensor_bytes : bytes) {
    if (moved.bytes + tensor_bytes > ratio * all_bytes + 0.5) break;
    moved.bytes += tensor_bytes;
    ++moved.count;
  }
  return moved;
}

}  // namespace brume::plan
