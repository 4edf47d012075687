#include "search_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "version.hpp"

namespace brume::app {
namespace {

constexpr std::size_t most_state_bytes = std::size_t{16} << 20;  ///< that a document may have
constexpr std::size_t most_searches = 64;

struct Part {
  const char* key;
  std::string SearchKey::*hash;
  const char* words;  ///< for messages
};
constexpr std::array parts{Part{"program", &SearchKey::program, "version of Brume"},
                           Part{"model", &SearchKey::model, "model"},
                           Part{"training", &SearchKey::training, "[training]"},
                           Part{"cluster", &SearchKey::cluster, "[cluster]"},
                           Part{"profile", &SearchKey::profile, "profile"},
                           Part{"search", &SearchKey::search, "[search]"}};

const deck::Schema<SearchState::Content>& schema() {
  using Content = SearchState::Content;
  static const auto schema = [] {
    deck::Schema<Content> keys;
    keys.key("version", &Content::version,
             {.help = "version of this format", .required = true, .min = 1, .max = 1});
    for (const Part& part : parts)
      keys.key(part.key, &Content::key, part.hash, {.help = "hash", .required = true});
    return keys.tables("searches", &Content::searches, tuner::state_schema(), "searches");
  }();
  return schema;
}

std::string hash(const std::string& text) {
  Fnv1a hash;
  hash.add(text);
  return fmt::format("{:016x}", hash.value());
}

/// Hashes of the inputs of a search. Lengths of trainings and limits of the search are no inputs.
SearchKey key_of(const deck::Deck& deck, deck::SearchKeys keys, const model::Config& model,
                 const hardware::Machine& machine) {
  deck::Deck training, cluster;
  training.training = deck.training;
  training.training.steps = 0;
  training.training.tokens = training.training.epochs = 0.0;
  cluster.cluster = deck.cluster;
  const deck::SearchKeys usual;
  keys.gap = usual.gap;
  keys.time_limit_s = usual.time_limit_s;
  keys.simulate_top = usual.simulate_top;
  return {.program = sources_id,
          .model = hash(fmt::format("{} {} {:.17g} {}", deck::model_schema().write(deck.model),
                                    model.isolated, model.document_share, model.pairs)),
          .training = hash(deck::schema().write(training)),
          .cluster = hash(deck::schema().write(cluster)),
          .profile = hash(hardware::text(machine)),
          .search = hash(deck::search_schema().write(keys))};
}

void require_key(const SearchKey& wanted, const SearchKey& found, const std::string& path) {
  for (const Part& part : parts)
    require(wanted.*part.hash == found.*part.hash, Failure::input,
            "{} is the state of a search with another {}. Name another file by --search-state, or "
            "remove this one.",
            path, part.words);
}

/// "12 of 40 configurations searched, 3 left, best plan 3.20 s": those left may have a faster plan.
std::string progress(const tuner::State& state) {
  double best_s = std::numeric_limits<double>::infinity();
  for (const auto& plan : state.simulated) best_s = std::min(best_s, plan.seconds);
  const std::vector<int>& steps = state.searcher.steps;
  const std::vector<double>& bounds_s = state.searcher.bounds_s;
  int searched = 0, left = 0;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i] >= tuner::SearcherState::searched)
      ++searched;
    else if (i >= bounds_s.size() || bounds_s[i] < best_s)
      ++left;
  return fmt::format(
      "{} of {} searched, {} left, {}", searched, counted(std::ssize(steps), "configuration"), left,
      state.simulated.empty() ? "no plan yet" : "best plan " + format_seconds(best_s));
}

}  // namespace

SearchState::SearchState(std::string path, const deck::Deck& deck, const deck::SearchKeys& keys,
                         const model::Config& model, const hardware::Machine& machine)
    : path_(std::move(path)) {
  check_writable(path_);
  const SearchKey key = key_of(deck, keys, model, machine);
  if (std::error_code none; std::filesystem::exists(path_, none)) {
    require(std::filesystem::is_regular_file(path_, none), Failure::input,
            "{} is not a file. Name another file by --search-state.", path_);
    content_ = schema().read(deck::Document::load(path_));
    require_key(key, content_.key, path_);
    require(content_.searches.size() <= most_searches, Failure::input,
            "{}: has {} searches, expected at most {}", path_, content_.searches.size(),
            most_searches);
  }
  content_.key = key;
}

tuner::Options SearchState::continuing(tuner::Options options, std::size_t part) {
  if (part < content_.searches.size()) {
    options.state = &content_.searches[part];
    options.state_name = path_;
    log::info("search  continues from {}: {}", path_, progress(*options.state));
  } else {
    content_.searches.resize(part + 1);
  }
  options.keep = [this, part](const tuner::State& state) { keep(state, part); };
  return options;
}

void SearchState::keep(const tuner::State& state, std::size_t part) {
  content_.searches[part] = state;
  try {
    const std::string text = schema().write(content_);
    require(text.size() <= most_state_bytes, Failure::storage,
            "{}: the state has {} bytes, at most {} "
            "can be read",
            path_, text.size(), most_state_bytes);
    write_file(path_, text);
  } catch (const Error& error) {
    if (!std::exchange(warned_, true))
      log::warn("{}. The search continues without keeping its state.", error.what());
  }
}

}  // namespace brume::app
