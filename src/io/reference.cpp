#include "io/reference.hpp"

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.hpp"
#include "base/files.hpp"
#include "files.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* reference_name = "reference.bin";
constexpr const char* reference_filetype = "brume reference";
constexpr std::int64_t most_reference_bytes = std::int64_t{1} << 33;

std::vector<double> doubles_of(std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

void write_reference(const fs::path& directory, const Reference& reference) {
  const nlohmann::json head{{"filetype", reference_filetype}, {"version", 1},
                            {"run", reference.run},           {"source", reference.source},
                            {"weights", reference.weights},   {"train", reference.train.size()},
                            {"valid", reference.valid.size()}};
  const std::string line = head.dump() + "\n";
  Bytes file(as_bytes(line).begin(), as_bytes(line).end());
  for (const std::vector<double>* values : {&reference.train, &reference.valid}) {
    const auto bytes = std::as_bytes(std::span(*values));
    file.insert(file.end(), bytes.begin(), bytes.end());
  }
  seal(file);
  write_file(directory / reference_name, file);
}

std::optional<Reference> read_reference(const fs::path& directory) {
  const fs::path path = directory / reference_name;
  const std::string name = path.string();
  std::error_code none;
  if (!fs::exists(path, none)) return std::nullopt;
  const std::int64_t bytes =
      check_seal(open_regular(path, Failure::storage), name, Failure::storage);
  const Bytes file = read_file(path, Failure::storage, most_reference_bytes);
  const std::string_view text = as_text(file).substr(0, std::size_t(bytes));
  const std::size_t end = std::min(text.find('\n'), text.size());
  const auto head = nlohmann::json::parse(text.substr(0, end), nullptr, false);
  Reference reference;
  const auto get = [&](const char* key, auto& value) {
    try {
      head.at(key).get_to(value);
    } catch (const nlohmann::json::exception&) {
      throw Error(Failure::storage, "{}: has no '{}' of the right kind", name, key);
    }
  };
  std::string filetype;
  std::uint64_t version = 0, train = 0, valid = 0;
  get("filetype", filetype), get("version", version);
  require(filetype == reference_filetype && version == 1, Failure::storage,
          "{}: is no file of log-probabilities of version 1", name);
  get("run", reference.run), get("source", reference.source), get("weights", reference.weights);
  get("train", train), get("valid", valid);
  const auto values = std::as_bytes(std::span(text)).subspan(std::min(end + 1, text.size()));
  const std::uint64_t count = values.size() / sizeof(double);
  require(values.size() % sizeof(double) == 0 && train <= count && valid == count - train,
          Failure::storage, "{}: promises {} and {} numbers, but {} bytes follow", name, train,
          valid, values.size());
  reference.train = doubles_of(values.first(std::size_t(train) * sizeof(double)));
  reference.valid = doubles_of(values.subspan(std::size_t(train) * sizeof(double)));
  return reference;
}

}  // namespace brume::io
