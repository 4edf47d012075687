#include "plan/axes.hpp"

namespace brume::plan {

Coordinates coordinates(const Mesh<int>& mesh, int index) {
  Coordinates at;
  for (const auto& [axis, size] : mesh.sides()) {
    at[axis] = index % size;
    index /= size;
  }
  return at;
}

int index(const Mesh<int>& mesh, const Coordinates& at, AxisSet axes) {
  int found = 0, stride = 1;
  for (const auto& [axis, size] : mesh.sides()) {
    if (!axes.contains(axis)) continue;
    found += at[axis] * stride;
    stride *= size;
  }
  return found;
}

std::vector<int> members(const Mesh<int>& mesh, const Coordinates& at, AxisSet axes) {
  std::vector<int> ranks;
  Coordinates other = at;
  for (int member = 0; member < mesh.size(axes); ++member) {
    int rest = member;
    for (const auto& [axis, size] : mesh.sides()) {
      if (!axes.contains(axis)) continue;
      other[axis] = rest % size;
      rest /= size;
    }
    ranks.push_back(index(mesh, other));
  }
  return ranks;
}

}  // namespace brume::plan
