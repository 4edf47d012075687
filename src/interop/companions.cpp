/// @file Files that belong to a model beside its weights.
#include <array>
#include <system_error>

#include "base/files.hpp"
#include "interop/hugging_face.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

constexpr std::array companions{"config.json",        "generation_config.json",
                                "tokenizer.json",     "tokenizer_config.json",
                                "tokenizer.model",    "special_tokens_map.json",
                                "added_tokens.json",  "vocab.json",
                                "merges.txt",         "spiece.model",
                                "chat_template.jinja"};
constexpr std::int64_t largest_bytes = std::int64_t{256} << 20;

}  // namespace

std::vector<std::string> copy_companions(const fs::path& from, const fs::path& to) {
  std::vector<std::string> copied;
  std::error_code none;
  for (const char* name : companions) {
    if (!fs::exists(from / name, none)) continue;
    make_directory(to);
    write_file(to / name, read_file(from / name, Failure::input, largest_bytes, Links::follow));
    copied.emplace_back(name);
  }
  return copied;
}

}  // namespace brume::interop
