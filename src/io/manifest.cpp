#include "manifest.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/log.hpp"
#include "checkpoint_format.hpp"
#include "slab_map.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t max_manifest_bytes = std::int64_t{1} << 30;

/// Runs `body`; what JSON does not like becomes an Error(storage) with `name`.
template <typename Body>
auto storing(const std::string& name, Body&& body) {
  try {
    return body();
  } catch (const json::exception& error) {
    throw Error(Failure::storage, "{}: {}", name, error.what());
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

model::Precision stored_as(const std::string& name) {
  if (name == "bf16") return model::Precision::bf16;
  if (name == "fp16") return model::Precision::fp16;
  throw Error(Failure::storage, "a slab is stored as {}, this program reads bf16 and fp16",
              json(name).dump());
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

json entry_json(const RankEntry& entry) {
  json slabs = json::array();
  for (const engine::Slab& slab : entry.slabs) slabs.push_back(slab_json(slab));
  return {
      {"bytes", entry.digest.bytes}, {"xxh3_128", entry.digest.hash}, {"slabs", std::move(slabs)}};
}

RankEntry parse_entry(const json& object) {
  RankEntry entry;
  object.at("bytes").get_to(entry.digest.bytes);
  object.at("xxh3_128").get_to(entry.digest.hash);
  require(entry.digest.hash.size() == digest({}).hash.size(), Failure::storage,
          "is damaged: a hash has {} digits", entry.digest.hash.size());
  for (const json& slab : object.at("slabs")) entry.slabs.push_back(parse_slab(slab));
  return entry;
}

/// JSON with a line for each key and each file.
std::string lines(const json& object) {
  std::string out;
  for (const auto& [key, value] : object.items()) {
    out += (out.empty() ? "{\n" : ",\n") + json(key).dump() + ": ";
    if (key != "files") {
      out += value.dump();
      continue;
    }
    for (std::size_t i = 0; i < value.size(); ++i)
      out += (i == 0 ? "[\n" : ",\n") + value[i].dump();
    out += "\n]";
  }
  return out + "\n}\n";
}

/// Parses a manifest, whose hash is not known to fit yet. JSON calls itself for each level when it
/// writes the text that is hashed, so the levels of a file that somebody damaged must be few.
json parse_levels(std::string_view text) {
  static constexpr int max_levels = 8;  // a manifest has 6
  const auto check_level = [](int level, json::parse_event_t, json&) {
    require(level <= max_levels, Failure::storage, "is damaged: it has more than {} levels",
            max_levels);
    return true;
  };
  try {
    return json::parse(text, check_level);
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

/// Hash of a manifest: of its JSON without spaces, keys sorted, its own hash left out.
std::string own_hash(const json& object) { return digest(as_bytes(object.dump())).hash; }

Manifest parse_manifest(json object) {
  const std::string stored = object.at("manifest_xxh3_128").get<std::string>();
  object.erase("manifest_xxh3_128");
  const std::string found = own_hash(object);
  require(found == stored, Failure::storage, "is damaged: its hash is {}, expected {}", found,
          stored);
  require(object.at("filetype") == checkpoint_filetype &&
              object.at("version").at(0) == checkpoint_version[0],
          Failure::storage, "is of version {}, this program reads {}", object.at("version").dump(),
          checkpoint_version[0]);
  Manifest manifest;
  object.at("step").get_to(manifest.info.step);
  manifest.info.samples = object.value("samples", manifest.info.samples);
  manifest.info.data_text = object.value("data", manifest.info.data_text);
  engine::LossScaling& scaling = manifest.info.scaling;
  scaling.scale = object.value("loss_scale", scaling.scale);
  scaling.good_steps = object.value("good_steps", scaling.good_steps);
  manifest.info.valid_loss = number_if_any(object, "valid_loss");
  object.at("deck").get_to(manifest.info.deck_text);
  object.at("plan").get_to(manifest.info.plan_text);
  object.at("profile").get_to(manifest.info.profile_text);
  object.at("model").get_to(manifest.info.model_text);
  for (const json& file : object.at("files")) manifest.files.push_back(parse_entry(file));
  manifest.info.ranks = int(manifest.files.size());
  require(object.at("ranks") == manifest.info.ranks, Failure::storage, "lists {} files",
          manifest.files.size());
  return manifest;
}

}  // namespace

std::string rank_file_name(int rank) { return fmt::format("rank-{}.h5", rank); }

std::string entry_text(const RankEntry& entry) {
  return storing("a slab", [&] { return entry_json(entry).dump(); });
}

RankEntry parse_entry(const std::string& text) {
  return storing("a slab", [&] { return parse_entry(json::parse(text)); });
}

std::string manifest_text(const Manifest& manifest) {
  return storing(manifest_name, [&] {
    json files = json::array();
    for (std::size_t rank = 0; rank < manifest.files.size(); ++rank) {
      files.push_back(entry_json(manifest.files[rank]));
      files.back()["name"] = rank_file_name(int(rank));
    }
    json object = {{"filetype", checkpoint_filetype},
                   {"version", checkpoint_version},
                   {"step", manifest.info.step},
                   {"samples", manifest.info.samples},
                   {"data", manifest.info.data_text},
                   {"ranks", manifest.files.size()},
                   {"deck", manifest.info.deck_text},
                   {"plan", manifest.info.plan_text},
                   {"profile", manifest.info.profile_text},
                   {"model", manifest.info.model_text},
                   {"files", std::move(files)}};
    if (const engine::LossScaling& scaling = manifest.info.scaling;
        scaling != engine::LossScaling{})
      object["loss_scale"] = scaling.scale, object["good_steps"] = scaling.good_steps;
    if (const auto& loss = manifest.info.valid_loss; loss && std::isfinite(*loss))
      object["valid_loss"] = *loss;
    object["manifest_xxh3_128"] = own_hash(object);
    return lines(object);
  });
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / manifest_name;
  const Bytes bytes = read_file(path, Failure::storage, max_manifest_bytes);
  return storing(path.string(), [&] {
    try {
      Manifest manifest = parse_manifest(parse_levels(as_text(bytes)));
      manifest.info.directory = checkpoint;
      return manifest;
    } catch (const Error& error) {
      throw Error(error.failure(), "{}: {}", path.string(), error.what());
    }
  });
}

void verify_file(const Manifest& manifest, int rank, bool from_disk) {
  const fs::path path = manifest.info.directory / rank_file_name(rank);
  const Digest& expected = manifest.files[std::size_t(rank)].digest;
  const Digest found = digest_of_file(path, from_disk);
  require(found == expected, Failure::storage,
          "{}: is damaged: {} bytes with hash {}, the manifest has {} bytes with {}", path.string(),
          found.bytes, found.hash, expected.bytes, expected.hash);
}

void verify_files(const Manifest& manifest, int first, int stride) {
  for (int rank = first; rank < manifest.info.ranks; rank += stride) verify_file(manifest, rank);
}

std::int64_t step_of(const fs::path& directory) {
  constexpr std::string_view prefix = "step-";
  const std::string name = directory.filename().string();
  const bool digits = name.size() > prefix.size() && name.size() <= prefix.size() + 15 &&
                      name.starts_with(prefix) &&
                      std::all_of(name.begin() + prefix.size(), name.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  return digits ? std::stoll(name.substr(prefix.size())) : -1;
}

std::vector<std::int64_t> steps_in(const fs::path& checkpoints) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator at(checkpoints, error), end; !error && at != end; at.increment(error))
    if (const std::int64_t step = step_of(at->path()); step >= 0) steps.push_back(step);
  std::ranges::sort(steps, std::greater<>());
  return steps;
}

void remove_unfinished_steps(const fs::path& checkpoints) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(checkpoints, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".tmp")) found.push_back(at->path());
  }
  for (const fs::path& path : found) {
    fs::remove_all(path, error);
    if (error) log::warn("{}: cannot be removed: {}", path.string(), error.message());
  }
}

fs::path step_directory(const fs::path& checkpoints, std::int64_t step) {
  return checkpoints / fmt::format("step-{}", step);
}

Manifest open_step(const fs::path& checkpoints, std::int64_t step) {
  Manifest manifest = read_manifest(step_directory(checkpoints, step));
  require(manifest.info.step == step, Failure::storage, "{}: holds step {}",
          manifest.info.directory.string(), manifest.info.step);
  verify_files(manifest);
  return manifest;
}

}  // namespace brume::io
