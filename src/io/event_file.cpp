#include "event_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>

#include "base/host.hpp"

namespace brume::io {
namespace {

/// Numbers of the fields of tensorflow.Event, tensorflow.Summary and tensorflow.SessionLog.
/// @source TensorFlow, tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto
enum EventField { wall_time = 1, step_field = 2, file_version = 3, summary = 5, session_log = 7 };
enum SummaryField { summary_value = 1, value_tag = 1, value_simple = 2 };
enum SessionLogField { session_status = 1 };
constexpr std::uint64_t session_start = 1;

/// How a field of a protocol buffer is written.
enum Wire { varint = 0, fixed64 = 1, bytes_of_length = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  out += char(value);
}

template <typename Number>
void put_fixed(std::string& out, Number value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_key(std::string& out, int field, Wire wire) {
  put_varint(out, std::uint64_t(field) << 3 | std::uint64_t(wire));
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, bytes_of_length);
  put_varint(out, bytes.size());
  out += bytes;
}

/// An event of now. @param what  its further field
std::string event(std::int64_t step, int field, std::string_view what) {
  std::string out;
  put_key(out, wall_time, fixed64);
  put_fixed(
      out,
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  put_key(out, step_field, varint);
  put_varint(out, std::uint64_t(step));
  put_bytes(out, field, what);
  return framed(out);
}

std::filesystem::path new_name(const std::filesystem::path& directory) {
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return directory /
         fmt::format("events.out.tfevents.{}.{}.{}", now.count(), host_name(), ::getpid());
}

constexpr std::array<std::uint32_t, 256> crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit)
      table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82F63B78u : 0u);  // 0x1EDC6F41, bits reflected
  }
  return table;
}();

/// So that a checksum of bytes with their own checksum in them is no constant.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ crc_table[(crc ^ std::uint8_t(byte)) & 0xFF];
  return ~crc;
}

std::string framed(std::string_view record) {
  std::string out;
  put_fixed(out, std::uint64_t(record.size()));
  put_fixed(out, masked_crc(out));
  out += record;
  put_fixed(out, masked_crc(record));
  return out;
}

EventFile::EventFile(const std::filesystem::path& directory, std::int64_t step)
    : file_(new_name(directory)) {
  file_.append(event(0, file_version, "brain.Event:2"));
  if (step > 1) restart(step);
}

void EventFile::add(std::int64_t step, std::span<const Scalar> scalars) {
  std::string values;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, value_tag, scalar.name);
    put_key(value, value_simple, fixed32);
    put_fixed(value, float(scalar.value));
    put_bytes(values, summary_value, value);
  }
  file_.append(event(step, summary, values));
}

void EventFile::restart(std::int64_t step) {
  std::string started;
  put_key(started, session_status, varint);
  put_varint(started, session_start);
  file_.append(event(step, session_log, started));
}

}  // namespace brume::io
