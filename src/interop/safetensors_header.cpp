#include "safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace brume::interop {
namespace {

using nlohmann::json;

constexpr std::size_t most_dimensions = 16;
constexpr const char* metadata_key = "__metadata__";

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Failure::input, format, std::forward<Args>(args)...);
}

/// What one tensor's object says; nothing is checked yet but the types.
struct Said {
  std::string dtype;
  std::vector<std::int64_t> shape, offsets;
  std::set<std::string> keys;  ///< that it has
};

/// Takes the header's JSON piece by piece, so that no tree of it is made. Each function returns
/// whether the reader shall go on; a refusal is an exception.
class HeaderReader {
 public:
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  bool start_object(std::size_t) {
    if (level_ == 0 || (level_ == 1 && !in_list_)) return ++level_, true;
    refuse_value("an object");
  }
  bool end_object() {
    if (--level_ == 1) finish_entry();
    return true;
  }
  bool key(string_t& key) {
    if (level_ == 1) {
      if (!names_.insert(key).second) refuse("has tensor {} twice", shown(key));
      name_ = key;
      said_ = {};
    } else {
      if (!said_.keys.insert(key).second)
        refuse("tensor {} has {} twice", shown(name_), shown(key));
      if (!in_metadata() && key != "dtype" && key != "shape" && key != "data_offsets")
        refuse("tensor {} has the unknown key {}", shown(name_), shown(key));
      key_ = key;
    }
    return true;
  }
  bool start_array(std::size_t) {
    if (level_ != 2 || in_metadata() || in_list_ || key_ == "dtype") refuse_value("a list");
    return in_list_ = true;
  }
  bool end_array() {
    in_list_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) {
    if (!in_list_) refuse_value("a number");
    if (value > number_unsigned_t(std::numeric_limits<std::int64_t>::max()))
      refuse("tensor {}: {} in its {} is too large", shown(name_), value, key_);
    std::vector<std::int64_t>& list = key_ == "shape" ? said_.shape : said_.offsets;
    const std::size_t most = key_ == "shape" ? most_dimensions : 2;
    if (list.size() == most)
      refuse("tensor {}: its {} has more than {} numbers", shown(name_), key_, most);
    list.push_back(std::int64_t(value));
    return true;
  }
  bool string(string_t& value) {
    if (level_ == 2 && in_metadata()) return true;
    if (level_ != 2 || in_list_ || key_ != "dtype") refuse_value("a text");
    said_.dtype = std::move(value);
    return true;
  }
  bool null() { refuse_value("null"); }
  bool boolean(bool) { refuse_value("a truth value"); }
  bool number_integer(number_integer_t) { refuse_value("a negative number"); }
  bool number_float(number_float_t, const string_t&) {
    refuse_value("a number that is not whole, or too large,");
  }
  bool binary(binary_t&) { refuse_value("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    refuse("its header is not JSON from byte {} on", 8 + position - (position > 0));
  }

  std::map<std::string, TensorEntry> tensors;

 private:
  bool in_metadata() const { return name_ == metadata_key; }

  [[noreturn]] void refuse_value(const char* found) const {
    if (level_ == 0) refuse("its header is not an object, but {}", found);
    if (level_ == 1)
      refuse("tensor {} is not described by an object, but by {}", shown(name_), found);
    if (in_metadata()) refuse("{} has {} as {}, not a text", metadata_key, found, shown(key_));
    refuse("tensor {} has {} where its {} should be", shown(name_), found, key_);
  }

  /// Takes over what the object that just ended said of a tensor.
  void finish_entry() {
    if (in_metadata()) return;
    for (const char* key : {"dtype", "shape", "data_offsets"})
      if (!said_.keys.contains(key)) refuse("tensor {} has no {}", shown(name_), key);
    if (said_.offsets.size() != 2 || said_.offsets[0] > said_.offsets[1])
      refuse("tensor {}: its data_offsets are not a beginning and an end", shown(name_));
    const int bits = dtype_bits(said_.dtype);
    if (bits == 0) refuse("tensor {} has the unknown dtype {}", shown(name_), shown(said_.dtype));
    TensorEntry entry{.dtype = said_.dtype,
                      .shape = said_.shape,
                      .elements = 1,
                      .first_byte = said_.offsets[0],
                      .bytes = said_.offsets[1] - said_.offsets[0]};
    const bool empty = std::ranges::count(entry.shape, 0) > 0;
    for (const std::int64_t extent : entry.shape) {
      constexpr std::int64_t most_elements = std::numeric_limits<std::int64_t>::max() / 64;
      if (!empty && extent > most_elements / entry.elements)
        refuse("tensor {}: the elements of its shape [{}] cannot be counted", shown(name_),
               fmt::join(entry.shape, ", "));
      entry.elements *= empty ? 1 : extent;
    }
    if (empty) entry.elements = 0;
    if (entry.elements * bits % 8 != 0 || entry.elements * bits / 8 != entry.bytes)
      refuse("tensor {} of dtype {} and shape [{}] has {} bytes", shown(name_), entry.dtype,
             fmt::join(entry.shape, ", "), entry.bytes);
    tensors.emplace(name_, std::move(entry));
  }

  int level_ = 0;         ///< objects around
  bool in_list_ = false;  ///< of numbers
  std::string name_, key_;
  std::set<std::string> names_;
  Said said_;
};

/// Whether the tensors lie side by side from the first byte of the data to the last.
void check_offsets(const std::map<std::string, TensorEntry>& tensors, std::int64_t data_bytes) {
  std::vector<std::pair<const std::string*, const TensorEntry*>> order;
  for (const auto& [name, entry] : tensors) order.emplace_back(&name, &entry);
  std::ranges::sort(order, {}, [](const auto& tensor) {
    return std::pair(tensor.second->first_byte, tensor.second->bytes);
  });
  std::int64_t reached = 0;
  for (const auto& [name, entry] : order) {
    if (entry->first_byte != reached)
      refuse("tensor {} begins at byte {} of the data, {} {}", shown(*name), entry->first_byte,
             entry->first_byte > reached ? "which leaves a hole from byte"
                                         : "before the end of another at",
             reached);
    if (entry->bytes > data_bytes - reached)
      refuse("tensor {} ends at byte {} of the data, the file has {}", shown(*name),
             entry->first_byte + entry->bytes, data_bytes);
    reached += entry->bytes;
  }
  if (reached != data_bytes)
    refuse("its tensors end at byte {} of the data, the file has {}", reached, data_bytes);
}

}  // namespace

int dtype_bits(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, int>, 23> known{
      {{"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"U16", 16},    {"I16", 16},
       {"U32", 32},    {"I32", 32},        {"U64", 64},        {"I64", 64},    {"F16", 16},
       {"BF16", 16},   {"F32", 32},        {"F64", 64},        {"C64", 64},    {"F8_E4M3", 8},
       {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F4", 4},
       {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"E8M0", 8}}};
  const auto found = std::ranges::find(known, dtype, &std::pair<std::string_view, int>::first);
  return found == known.end() ? 0 : found->second;
}

std::map<std::string, TensorEntry> parse_header(std::string_view text, std::int64_t first_byte,
                                                std::int64_t data_bytes) {
  HeaderReader reader;
  json::sax_parse(text, &reader);
  check_offsets(reader.tensors, data_bytes);
  for (auto& [name, entry] : reader.tensors) entry.first_byte += first_byte;
  return std::move(reader.tensors);
}

}  // namespace brume::interop
