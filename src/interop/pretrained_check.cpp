/// @file Checks that the files of a model have its tensors, in its shapes, and no others.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "eight_bits.hpp"
#include "pretrained_weights.hpp"

namespace brume::interop {
namespace {

/// The first few of a list of names, for a message.
std::string few(const std::vector<std::string>& names) {
  constexpr std::size_t most = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i)
    text += (i ? ", " : "") + shown(names[i]);
  return names.size() > most ? text + fmt::format(" and {} more", names.size() - most) : text;
}

std::string plural(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

/// That each tensor of the model is there, and no other.
void PretrainedWeights::Impl::check_tensors() const {
  std::vector<std::string> missing, extra;
  std::set<std::string> known;
  for (const NewTensor& tensor : layout.tensors) {
    const std::string found = name_in_files(tensor.name);
    known.insert(found);
    if (!places.contains(found) && !codes.contains(found)) missing.push_back(found);
  }
  // The dtype of codes that are not read is named rather than their scales.
  const auto scales_others = [&](const std::string& tensor) {
    return std::ranges::any_of(eight_bit_parts, [&](const std::string& part) {
      if (!tensor.ends_with(part)) return false;
      const auto of = places.find(tensor.substr(0, tensor.size() - part.size()));
      return of != places.end() && !readable(of->second->tensors().at(of->first).dtype);
    });
  };
  const auto is_part = [&](const std::string& tensor) {
    if (codes.contains(scaled_by(tensor)) || scales_others(tensor)) return true;
    const auto behind = codes.upper_bound(tensor);  // names that begin like it come before
    return behind != codes.begin() && is_part_of_codes(tensor, std::prev(behind)->first);
  };
  const auto is_extra = [&](const std::string& tensor) {
    return std::ranges::any_of(extra_layers,
                               [&](const std::string& layer) { return tensor.starts_with(layer); });
  };
  for (const auto& [tensor, file] : places)
    if (!known.contains(tensor) && !is_extra(tensor) && !is_buffer(tensor) &&
        !(has_spare_head && tensor == head) && !is_part(tensor))
      extra.push_back(tensor);
  require(missing.empty(), Failure::input,
          "{}: lacks {} of the {}: {}{}: a file is missing, or {}{}", name,
          plural(missing.size(), "tensor"), noun, few(missing),
          extra.empty() ? "" : "; others are there: " + few(extra), another,
          missing.size() == 1 && missing[0] == head ? fmt::format("; {}", without_head) : "");
  require(
      extra.empty(), Failure::input,
      "{}: has {} that the {} has no place for: {}: {}, or these belong to something beside it and "
      "must be left out of the files",
      name, plural(extra.size(), "tensor"), noun, few(extra), another);
}

void PretrainedWeights::Impl::check_shapes() const {
  for (const NewTensor& tensor : layout.tensors) {
    const std::string found_name = name_in_files(tensor.name);
    const auto in_codes = codes.find(found_name);
    const bool coded = in_codes != codes.end();
    const TensorFile& file = coded ? in_codes->second->file() : file_of(found_name);
    const std::vector<std::int64_t>& found =
        coded ? in_codes->second->shape() : file.tensors().at(found_name).shape;
    dtype_of(found_name);
    // Positions beyond those that the model uses are left where they are.
    const bool is_position = tensor.name == layout.prefix + "wpe.weight";
    const bool longer = is_position && found.size() == 2 && found[1] == tensor.shape[1] &&
                        found[0] > tensor.shape[0];
    require(found == tensor.shape || longer, Failure::input,
            "{}: tensor {} has shape [{}], the {} needs [{}]: {}{}", file.name(), shown(found_name),
            fmt::join(found, ", "), noun, fmt::join(tensor.shape, ", "), another,
            is_position ? "; seq_len must be at most the positions that there are" : "");
  }
}

void PretrainedWeights::require_tied() const {
  const std::string& head_tensor = impl_->head;
  if (!impl_->tied || !impl_->places.contains(head_tensor)) return;
  const std::string table = impl_->layout.tensors.front().name;
  const auto& head = impl_->file_of(head_tensor).tensors().at(head_tensor);
  const std::vector<std::int64_t>& shape = impl_->layout.tensors.front().shape;
  bool same = head.shape == shape;
  std::vector<float> ours, theirs;
  for (std::int64_t first = 0; same && first < head.elements; first += piece_elements) {
    ours.resize(std::size_t(std::min(piece_elements, head.elements - first)));
    theirs.resize(ours.size());
    impl_->read(table, first, ours);
    impl_->read(impl_->layout.head, first, theirs);
    same = std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)) == 0;
  }
  require(same, Failure::input, "{}: tensor {} is not the token table, {}", impl_->name,
          shown(head_tensor), impl_->untied);
}

}  // namespace brume::interop
