#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "deck/json.hpp"
#include "interop/mist.hpp"
#include "json_reader.hpp"
#include "mist_rows.hpp"

namespace brume::interop {
namespace {

constexpr double failed_s = 1e5;  ///< what Mist stores for a measurement that failed

constexpr std::size_t most_bytes = 64 << 20;  ///< bytes of a file

/// Collects rows, each operator and size once.
class Rows {
 public:
  void add(const json& entry, const std::string& where) {
    const std::optional<hardware::OperatorRow> row = mist_row(entry, where);
    if (!row)
      unknown_.insert(text(entry, "op", where));
    else if (row->forward_s >= failed_s || row->backward_s >= failed_s)
      ++mist_.failed;
    else if (met_.emplace(row->kind, row->dims, row->group).second)
      mist_.profile.operators.push_back(*row);
    else
      ++mist_.repeated;
  }

  MistProfile done() {
    mist_.unknown.assign(unknown_.begin(), unknown_.end());
    return std::move(mist_);
  }

 private:
  MistProfile mist_;
  std::set<std::string> unknown_;
  std::set<std::tuple<std::string, std::vector<std::int64_t>, int>> met_;
};

/// The largest row of a kind, where launches weigh least.
const hardware::OperatorRow* largest(const hardware::Profile& profile, const std::string& kind) {
  const auto volume = [](const hardware::OperatorRow& row) {
    double all = 1.0;
    for (const std::int64_t dim : row.dims) all *= double(dim);
    return all;
  };
  const hardware::OperatorRow* found = nullptr;
  for (const hardware::OperatorRow& row : profile.operators)
    if (row.kind == kind && row.forward_s > 0.0 && (!found || volume(row) > volume(*found)))
      found = &row;
  return found;
}

/// What the largest product and the largest addition reach, in fp16.
void set_rates(hardware::Profile& profile) {
  if (const auto* row = largest(profile, "matmul"))
    profile.flops_per_s =
        2.0 * double(row->dims[0]) * double(row->dims[1]) * double(row->dims[2]) / row->forward_s;
  if (const auto* row = largest(profile, "pointwise"))
    profile.bytes_per_s = 6.0 * double(row->dims[0]) / row->forward_s;
  profile.origins.rates =
      "forward of the largest matmul row; of the largest pointwise row, 6 bytes "
      "an element";
}

std::string only_database(const json& entries, const std::string& path) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < entries.size(); ++i)
    names.insert(text(entries[i], "source", fmt::format("{}: entries[{}]", path, i)));
  require(names.size() == 1, Failure::input, "{}: name one of its databases with --database: {}",
          path, fmt::join(names, ", "));
  return *names.begin();
}

MistMachine machine_of(const json& file, const std::string& name, const std::string& path) {
  const json& templates = at(at(file, "hardware_specs", path), "templates", path);
  require(templates.is_object(), Failure::input, "{}: 'templates' must be an object", path);
  std::vector<std::string> names;
  for (const auto& [known, unused] : templates.items()) names.push_back(known);
  require(templates.contains(name), Failure::input, "{}: no hardware template '{}', only {}", path,
          name, fmt::join(names, ", "));
  const json& found = templates[name];
  const std::string where = fmt::format("{}: template '{}'", path, name);
  MistMachine machine;
  machine.devices_per_node = int(std::clamp<std::int64_t>(
      size(at(found, "num_gpus_per_node", where), "num_gpus_per_node", where), 1, 1024));
  machine.links = numbers(found, "gpu_gpu_comm_params", where);
  machine.copy_in = numbers(found, "cpu_gpu_comm_params", where);
  machine.copy_out = numbers(found, "gpu_cpu_comm_params", where);
  machine.slowdowns = numbers(found, "interference_model_params", where);
  return machine;
}

/// Who made the file, by its own word.
std::string maker(const json& file) {
  const auto provenance = file.find("provenance");
  if (provenance == file.end() || !provenance->is_object()) return "";
  std::string said;
  for (const char* key : {"project", "commit", "license", "note"})
    if (const auto word = provenance->find(key); word != provenance->end() && word->is_string())
      said += (said.empty() ? "" : ", ") + word->get<std::string>();
  return said;
}

}  // namespace

MistProfile read_mist_profile(const std::string& path, const std::string& database,
                              const std::string& machine) {
  const json file = deck::load_json(path, most_bytes);
  const json& entries = at(file, "entries", path);
  require(entries.is_array() && !entries.empty(), Failure::input,
          "{}: 'entries' must be a list of operators", path);
  const std::string wanted = database.empty() ? only_database(entries, path) : database;
  Rows rows;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string where = fmt::format("{}: entries[{}]", path, i);
    if (text(entries[i], "source", where) == wanted) rows.add(entries[i], where);
  }
  MistProfile mist = rows.done();
  hardware::Profile& profile = mist.profile;
  require(!profile.operators.empty(), Failure::input, "{}: no operators of database '{}'", path,
          wanted);
  const std::string name = std::filesystem::path(path).filename().string();
  profile.origin = fmt::format("{}; made by: brume import mist-profile {}", maker(file), name);
  profile.origins.operators = fmt::format("database {} of {}, means, fp16", wanted, name);
  set_rates(profile);
  if (machine.empty()) return mist;
  set_machine(profile, machine_of(file, machine, path), path);
  profile.origins.transfers = profile.origins.interference =
      fmt::format("hardware template {} of {}", machine, name);
  return mist;
}

}  // namespace brume::interop
