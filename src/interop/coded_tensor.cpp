/// @file Which format of codes a tensor has.
#include "coded_tensor.hpp"

#include <algorithm>

#include "eight_bits.hpp"
#include "four_bits.hpp"
#include "mxfp4.hpp"

namespace brume::interop {

bool is_part_of_codes(std::string_view name, std::string_view tensor) {
  if (!name.starts_with(tensor)) return false;
  name.remove_prefix(tensor.size());
  const auto among = [&](const auto& parts) {
    return std::ranges::find(parts, name) != std::end(parts);
  };
  return among(four_bit_parts) || among(mxfp4_parts) || among(eight_bit_parts);
}

std::vector<std::uint8_t> bytes_of(const TensorFile& file, const std::string& tensor,
                                   std::int64_t first, std::int64_t end) {
  std::vector<std::uint8_t> found(std::size_t(end - first), 0);
  file.read_bytes(tensor, first, std::as_writable_bytes(std::span(found)));
  return found;
}

std::unique_ptr<CodedTensor> coded_tensor(const std::string& tensor, const FileOf& files,
                                          BlockShape declared) {
  if (FourBitTensor::is_one(tensor, files)) return std::make_unique<FourBitTensor>(tensor, files);
  if (Mxfp4Tensor::is_one(tensor, files)) return std::make_unique<Mxfp4Tensor>(tensor, files);
  if (EightBitTensor::is_one(tensor, files))
    return std::make_unique<EightBitTensor>(tensor, files, declared);
  return nullptr;
}

}  // namespace brume::interop
