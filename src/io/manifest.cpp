/// @file Manifests of checkpoints, written and read.
#include "manifest.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint_format.hpp"
#include "deck/json.hpp"
#include "manifest_hash.hpp"
#include "slab_map.hpp"
#include "step_directories.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* files_key = "files";

/// Runs `body`; what fails in it names the place.
template <typename Body>
auto storing(const std::string& name, Body&& body) {
  try {
    return body();
  } catch (const json::exception& error) {
    throw Error(Failure::storage, "{}: {}", name, error.what());
  } catch (const Error& error) {
    throw Error(error.failure(), "{}: {}", name, error.what());
  }
}

// Slabs are arrays without keys: there are thousands of them.
json slab_json(const engine::Slab& slab) {
  json array = json::array({slab.name, slab.kind, slab.global_shape, slab.offset, slab.shape,
                            slab.first, slab.elements});
  if (model::weight_bytes(slab.storage) < int(sizeof(float)))  // fp8 keeps its weights as bf16
    array.push_back(slab.storage == model::Precision::fp16 ? "fp16" : "bf16");
  return array;
}

json slabs_json(const std::vector<engine::Slab>& slabs) {
  json all = json::array();
  for (const engine::Slab& slab : slabs) all.push_back(slab_json(slab));
  return all;
}

model::Precision stored_as(const std::string& name) {
  if (name == "bf16") return model::Precision::bf16;
  if (name == "fp16") return model::Precision::fp16;
  throw Error(Failure::storage, "a slab is stored as {}, this program reads bf16 and fp16",
              deck::describe_json(name));
}

engine::Slab parse_slab(const json& array) {
  engine::Slab slab;
  array.at(0).get_to(slab.name);
  array.at(1).get_to(slab.kind);
  array.at(2).get_to(slab.global_shape);
  array.at(3).get_to(slab.offset);
  array.at(4).get_to(slab.shape);
  array.at(5).get_to(slab.first);
  array.at(6).get_to(slab.elements);
  if (array.size() > 7) slab.storage = stored_as(array.at(7).get<std::string>());
  require(is_sound(slab), Failure::storage, "slab of {} lies outside its tensor", slab.name);
  return slab;
}

constexpr std::string_view ranks_prefix = "rank-", constants_prefix = "frozen-", suffix = ".h5";

bool is_of_rank(std::string_view name) { return number_in(name, ranks_prefix, suffix) >= 0; }

/// @throws Error(storage) for a name that could lie outside the checkpoint
std::string parse_name(const json& file) {
  const auto name = file.at("name").get<std::string>();
  require(is_of_rank(name) || number_in(name, constants_prefix, suffix) >= 0, Failure::storage,
          "lists a file {}, which no checkpoint has", deck::describe_json(name));
  return name;
}

Digest parse_digest(const json& file) {
  Digest found;
  file.at("bytes").get_to(found.bytes);
  file.at("xxh3_128").get_to(found.hash);
  require(found.hash.size() == hash_digits, Failure::storage, "is damaged: a hash has {} digits",
          found.hash.size());
  return found;
}

/// JSON with a line for each key and each file.
std::string lines(const json& object, const std::vector<std::string>& files) {
  std::string out;
  for (const auto& [key, value] : object.items()) {
    out += (out.empty() ? "{\n" : ",\n") + json(key).dump() + ": ";
    if (key == files_key)
      out += fmt::format("[\n{}\n]", fmt::join(files, ",\n"));
    else
      out += value.dump();
  }
  return out + "\n}\n";
}

/// Parses a manifest whose hash fits. Files and slabs go to the two functions one by one: the tree
/// of many ranks' slabs would take ten times as much memory as their text.
template <typename TakeFile, typename TakeArray>
json parse_apart(std::string_view text, const TakeFile& take_file, const TakeArray& take_slab) {
  static constexpr int file_level = 2, slab_level = 4, max_levels = 8;  // a manifest has 6
  bool in_files = false;
  const auto each = [&](int level, json::parse_event_t event, json& parsed) {
    require(level <= max_levels, Failure::storage, "is damaged: it has more than {} levels",
            max_levels);
    if (event == json::parse_event_t::key && level == 1) in_files = parsed == files_key;
    const bool slab = event == json::parse_event_t::array_end && level == slab_level;
    const bool file = event == json::parse_event_t::object_end && level == file_level;
    if (in_files && slab) take_slab(parsed);
    if (in_files && file) take_file(parsed);
    return !(in_files && (slab || file));
  };
  try {
    return json::parse(text, each);
  } catch (const json::parse_error& error) {
    // The library's own message quotes all that it has read.
    throw Error(Failure::storage, "is damaged: it is not JSON from byte {} on", error.byte);
  }
}

/// A number without which a checkpoint is whole. JSON has no NaN and no infinity: older programs
/// wrote them as null.
std::optional<double> number_if_any(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

Manifest parse(std::string_view text, const TakeSlab& take) {
  const OwnHash own = find_own_hash(text);
  const std::string found = hash_of(text, own);
  const std::string_view stored = text.substr(own.digits, hash_digits);
  require(found == stored, Failure::storage, "is damaged: its hash is {}, expected {}", found,
          stored);
  std::vector<Digest> files;
  std::vector<std::string> names;
  std::size_t slabs = 0;  // of the file that is being read
  std::set<std::pair<std::string, std::string>> seen;
  std::vector<engine::Slab> firsts;
  const json object = parse_apart(
      text,
      [&](const json& file) {
        files.push_back(parse_digest(file));
        names.push_back(parse_name(file));
        slabs = 0;
      },
      [&](const json& array) {
        engine::Slab slab = parse_slab(array);
        if (seen.emplace(slab.name, slab.kind).second) firsts.push_back(slab);
        if (take) take(int(files.size()), slabs, std::move(slab));
        ++slabs;
      });
  require(object.at("filetype") == checkpoint_filetype &&
              object.at("version").at(0) == checkpoint_version[0],
          Failure::storage, "is of version {}, this program reads {}", object.at("version").dump(),
          checkpoint_version[0]);
  Manifest manifest;
  manifest.info.identity = found;
  object.at("step").get_to(manifest.info.step);
  manifest.info.samples = object.value("samples", manifest.info.samples);
  manifest.info.run = object.value("run", manifest.info.run);
  manifest.info.job = object.value("job", manifest.info.job);
  manifest.info.data_text = object.value("data", manifest.info.data_text);
  engine::LossScaling& scaling = manifest.info.scaling;
  scaling.scale = object.value("loss_scale", scaling.scale);
  scaling.good_steps = object.value("good_steps", scaling.good_steps);
  manifest.info.valid_loss = number_if_any(object, "valid_loss");
  manifest.info.updates = object.value("updates", manifest.info.updates);
  manifest.info.missed = object.value("missed_updates", manifest.info.missed);
  object.at("deck").get_to(manifest.info.deck_text);
  object.at("plan").get_to(manifest.info.plan_text);
  object.at("profile").get_to(manifest.info.profile_text);
  object.at("model").get_to(manifest.info.model_text);
  manifest.files = std::move(files);
  manifest.firsts = std::move(firsts);
  for (const engine::Slab& slab : manifest.firsts)
    if (slab.kind == "weight")
      manifest.info.formats.emplace(slab.name, slab.storage);
    else
      manifest.info.trained.insert(slab.name);
  manifest.info.ranks = int(std::ranges::count_if(names, is_of_rank));
  require(object.at("ranks") == manifest.info.ranks, Failure::storage, "lists files of {} ranks",
          manifest.info.ranks);
  manifest.info.files = std::move(names);
  return manifest;
}

}  // namespace

std::string rank_file_name(int rank) { return fmt::format("{}{}{}", ranks_prefix, rank, suffix); }
std::string constants_file_name(int index) {
  return fmt::format("{}{}{}", constants_prefix, index, suffix);
}

std::string slabs_text(const std::vector<engine::Slab>& slabs) {
  return storing("a slab", [&] { return slabs_json(slabs).dump(); });
}

std::vector<engine::Slab> parse_slabs(std::string_view text) {
  return storing("slabs", [&] {
    std::vector<engine::Slab> slabs;
    for (const json& array : json::parse(text)) slabs.push_back(parse_slab(array));
    return slabs;
  });
}

std::string entry_text(const std::string& name, const Digest& digest,
                       const std::vector<engine::Slab>& slabs) {
  return storing("a slab", [&] {
    return json{{"name", name},
                {"bytes", digest.bytes},
                {"xxh3_128", digest.hash},
                {"slabs", slabs_json(slabs)}}
        .dump();
  });
}

std::string manifest_text(const CheckpointInfo& info, const std::vector<std::string>& entries) {
  return storing(manifest_name, [&] {
    json object = {{"filetype", checkpoint_filetype},
                   {"version", checkpoint_version},
                   {"step", info.step},
                   {"samples", info.samples},
                   {"data", info.data_text},
                   {"ranks", info.ranks},
                   {"deck", info.deck_text},
                   {"plan", info.plan_text},
                   {"profile", info.profile_text},
                   {"model", info.model_text},
                   {files_key, nullptr},
                   {hash_key, std::string(hash_digits, '0')}};
    if (info.scaling != engine::LossScaling{})
      object["loss_scale"] = info.scaling.scale, object["good_steps"] = info.scaling.good_steps;
    if (!info.run.empty()) object["run"] = info.run;
    if (!info.job.empty()) object["job"] = info.job;
    if (info.updates >= 0) object["updates"] = info.updates;
    if (!info.missed.empty()) object["missed_updates"] = info.missed;
    if (info.valid_loss && std::isfinite(*info.valid_loss)) object["valid_loss"] = *info.valid_loss;
    std::string text = lines(object, entries);
    const OwnHash own = find_own_hash(text);
    text.replace(own.digits, hash_digits, hash_of(text, own));
    return text;
  });
}

std::string brief_text(const Manifest& manifest) {
  std::vector<std::string> entries;
  for (std::size_t file = 0; file < manifest.files.size(); ++file)
    entries.push_back(entry_text(manifest.info.files[file], manifest.files[file],
                                 file == 0 ? manifest.firsts : std::vector<engine::Slab>()));
  return manifest_text(manifest.info, entries);
}

Manifest parse_manifest(std::string_view text, const fs::path& checkpoint, const TakeSlab& take) {
  return storing((checkpoint / manifest_name).string(), [&] {
    Manifest manifest = parse(text, take);
    manifest.info.directory = checkpoint;
    return manifest;
  });
}

Bytes manifest_bytes(const fs::path& checkpoint) {
  return read_file(checkpoint / manifest_name, Failure::storage,
                   std::numeric_limits<std::int64_t>::max());
}

Manifest read_manifest(const fs::path& checkpoint) {
  return parse_manifest(as_text(manifest_bytes(checkpoint)), checkpoint);
}

void verify_file(const fs::path& file, const Digest& expected, bool from_disk) {
  const Digest found = digest_of_file(file, from_disk);
  require(found == expected, Failure::storage,
          "{}: is damaged: {} bytes with hash {}, the manifest has {} bytes with {}", file.string(),
          found.bytes, found.hash, expected.bytes, expected.hash);
}

}  // namespace brume::io
