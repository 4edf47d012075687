#include "token_checks.hpp"

#include <fmt/format.h>

#include <sstream>

#include "base/cache.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"

namespace brume::app {
namespace {

constexpr std::int64_t most_bytes = 4 << 20;  ///< of all lines

std::filesystem::path path() { return cache_path("tokens"); }

}  // namespace

std::string check_line(const data::TokenFile& file) {
  // A million tokens are read again in no time.
  constexpr std::int64_t few_tokens = 1 << 20;
  const data::TokenFileIdentity found = file.identity();
  const bool kept = found.tokens >= few_tokens && !file.key().empty() &&
                    file.key().find('\n') == std::string::npos;
  return kept ? fmt::format("{:016x} {} {}\n", found.checksum, found.vocab_size, file.key()) : "";
}

void add_checks(const std::string& lines, data::TokenChecks& known) {
  std::istringstream all(lines);
  for (std::string line; std::getline(all, line);) {
    std::istringstream words(line);
    data::TokenCheck check;
    std::string key;
    words >> std::hex >> check.checksum >> std::dec >> check.vocab_size >> std::ws;
    if (std::getline(words, key) && check.vocab_size > 0) known.insert_or_assign(key, check);
  }
}

std::string kept_checks() {
  try {
    if (!is_cached(path())) return "";
    return std::string(as_text(read_file(path(), Failure::storage, most_bytes)));
  } catch (const Error& error) {
    log::warn("token files are read once more: {}", error.what());
    return "";
  }
}

void keep_checks(const std::string& lines) {
  if (lines.empty()) return;
  try {
    make_cache();
    std::string all = lines + kept_checks();
    if (std::ssize(all) > most_bytes) all.resize(all.rfind('\n', most_bytes - 1) + 1);
    write_file(path(), all);
  } catch (const Error& error) {
    log::warn("token files will be read once more by the next job: {}", error.what());
  }
}

}  // namespace brume::app
