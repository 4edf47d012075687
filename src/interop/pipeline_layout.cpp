#include "pipeline_layout.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>

#include "base/error.hpp"

namespace brume::interop {
namespace {

constexpr std::size_t most_characters = 100'000;  ///< of a layout written out

/// Writes repetitions out. @param end  character that ends this part; none: the text's end
std::string written_out(std::string_view& rest, char end) {
  std::string all;
  while (!rest.empty() && rest.front() != end) {
    const char c = rest.front();
    rest.remove_prefix(1);
    if (c == ',') continue;
    require(std::string_view("(EtmL|").find(c) != std::string_view::npos, Failure::input,
            "'{}' has no meaning here", c);
    std::string part(1, c);
    if (c == '(') {
      part = written_out(rest, ')');
      require(!rest.empty(), Failure::input, "a bracket is not closed");
      rest.remove_prefix(1);
    }
    std::size_t times = 1;
    if (rest.starts_with('*')) {
      const auto [after, failed] =
          std::from_chars(rest.data() + 1, rest.data() + rest.size(), times);
      require(failed == std::errc() && times <= most_characters, Failure::input,
              "a number of at most {} must stand behind *", most_characters);
      rest.remove_prefix(std::size_t(after - rest.data()));
    }
    require(part.size() * times + all.size() <= most_characters, Failure::input,
            "it is longer than {} characters", most_characters);
    for (std::size_t i = 0; i < times; ++i) all += part;
  }
  return all;
}

}  // namespace

PipelineLayout read_layout(const std::string& layout, int num_layers, int num_stages) {
  std::string_view rest = layout;
  require(layout.size() <= most_characters, Failure::input, "it is longer than {} characters",
          most_characters);
  require(std::ranges::count(layout, '(') <= 100, Failure::input, "it has more than 100 brackets");
  const std::string all = written_out(rest, '\0');
  require(all.find('m') == std::string::npos, Failure::input,
          "nothing here is like layers that predict several tokens (m)");
  std::vector<int> layers{0};
  for (const char c : all)
    if (c == '|')
      layers.push_back(0);
    else if (c == 't')
      ++layers.back();
  const std::size_t stages = std::size_t(num_stages);
  require(layers.size() % stages == 0, Failure::input, "it has {} parts for {} stages",
          layers.size(), num_stages);
  // The first part may have the embedding alone, the last one the loss.
  const auto has_empty = [&] {
    return layers.size() > 2 &&
           std::find(layers.begin() + 1, layers.end() - 1, 0) != layers.end() - 1;
  };
  const bool joined = layers.size() > stages && has_empty();
  if (joined) {
    for (std::size_t i = stages; i < layers.size(); ++i) layers[i % stages] += layers[i];
    layers.resize(stages);
  }
  require(!has_empty(), Failure::input, "Brume has no stage without layers between others");
  const int sum = std::accumulate(layers.begin(), layers.end(), 0);
  require(sum == num_layers, Failure::input, "it has {} layers, --num-layers says {}", sum,
          num_layers);
  return {layers, joined};
}

}  // namespace brume::interop
