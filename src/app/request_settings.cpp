/// @file Settings of answers that a request has in its body.
#include "request_settings.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>

#include "base/error.hpp"

namespace brume::app {
namespace {

using nlohmann::ordered_json;

/// Keys of a request that change no answer, or are read elsewhere.
constexpr std::array<std::string_view, 11> harmless_keys{
    "model", "prompt",   "messages", "tools",        "documents", "chat_template_kwargs",
    "user",  "metadata", "store",    "service_tier", "stream"};

/// A key of a request with its value.
struct GivenKey {
  const std::string& name;
  const ordered_json& value;
  const std::string& where;

  double number(double least, double most) const {
    require(value.is_number() && value >= least && value <= most, Failure::input,
            "{}: '{}' must be a number from {} to {}", where, name, least, most);
    return value.get<double>();
  }
  std::int64_t whole(std::int64_t least, std::int64_t most) const {
    require(value.is_number_integer() && value >= least && value <= most, Failure::input,
            "{}: '{}' must be a whole number from {} to {}", where, name, least, most);
    return value.get<std::int64_t>();
  }
};

constexpr std::int64_t any_int = std::numeric_limits<std::int32_t>::max(), most_samples = 10'000;

void take_max_tokens(const GivenKey& key, AnswerSettings& settings) {
  settings.max_tokens = int(key.whole(1, any_int));
}

void take_stops(const GivenKey& key, AnswerSettings& settings) {
  settings.stops.clear();
  for (const ordered_json& one :
       key.value.is_array() ? key.value : ordered_json::array({key.value})) {
    require(one.is_string() && one != "", Failure::input,
            "{}: 'stop' must be a text that is not empty, or a list of these", key.where);
    settings.stops.push_back(one.get<std::string>());
  }
}

/// A setting of a request that is none of generation::sampling_keys().
struct SettingKey {
  std::string_view name;
  void (*take)(const GivenKey& key, AnswerSettings& settings);
};
constexpr SettingKey setting_keys[] = {
    {"max_tokens", take_max_tokens},
    {"max_completion_tokens", take_max_tokens},
    {"n", [](const GivenKey& key,
             AnswerSettings& settings) { settings.samples = int(key.whole(1, most_samples)); }},
    {"top_k",
     [](const GivenKey& key, AnswerSettings& settings) {
       settings.sampling.top_k = int(std::max<std::int64_t>(0, key.whole(-1, any_int)));  // -1: all
     }},
    {"seed",
     [](const GivenKey& key, AnswerSettings& settings) {
       settings.sampling.seed =
           std::uint64_t(key.whole(0, std::numeric_limits<std::int64_t>::max()));
     }},
    {"logprobs",
     [](const GivenKey& key, AnswerSettings& settings) {
       settings.sampling.log_probabilities = key.value != false && key.value != 0;
     }},
    {"stop", take_stops},
};

const generation::SamplingKey* sampling_key(std::string_view name) {
  const std::span<const generation::SamplingKey> keys = generation::sampling_keys();
  const auto found = std::ranges::find(
      keys, name, [](const generation::SamplingKey& one) { return std::string_view(one.name); });
  return found == keys.end() ? nullptr : &*found;
}

const SettingKey* setting_key(std::string_view name) {
  const auto found = std::ranges::find(setting_keys, name, &SettingKey::name);
  return found == std::end(setting_keys) ? nullptr : found;
}

}  // namespace

bool is_setting(std::string_view name) {
  return sampling_key(name) != nullptr || setting_key(name) != nullptr;
}

void take_settings(const ordered_json& body, const std::string& where, AnswerSettings& settings,
                   std::set<std::string>& unknown) {
  for (const auto& [name, value] : body.items()) {
    if (value.is_null()) continue;
    const GivenKey key{name, value, where};
    if (const generation::SamplingKey* const real = sampling_key(name))
      settings.sampling.*real->value = key.number(real->least, real->most);
    else if (const SettingKey* const setting = setting_key(name))
      setting->take(key, settings);
    else if (std::ranges::find(harmless_keys, name) == harmless_keys.end())
      unknown.insert(name);
  }
}

}  // namespace brume::app
