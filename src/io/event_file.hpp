/// @file TensorBoard's event files: records of the protocol buffer tensorflow.Event.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "io/appended_file.hpp"
#include "io/metrics_log.hpp"

namespace brume::io {

/// CRC-32C (Castagnoli: polynomial 0x1EDC6F41, reflected) of some bytes.
/// @source RFC 3720, B.4
std::uint32_t crc32c(std::string_view bytes);

/// The framing of a record: its length, a checksum of that, the record, a checksum of the record.
/// @source TensorFlow, tensorflow/core/lib/io/record_writer.h
std::string framed(std::string_view record);

/// A file of one job. TensorBoard joins the files of a directory, and drops what an earlier one
/// says of steps from the one on that a later file begins with.
class EventFile {
 public:
  /// @param step  that has the number after the last one done
  /// @throws Error(storage)
  EventFile(const std::filesystem::path& directory, std::int64_t step);

  void add(std::int64_t step, std::span<const Scalar> scalars);
  void restart(std::int64_t step);  ///< what was said of this step and later ones is void

 private:
  AppendedFile file_;
};

}  // namespace brume::io
