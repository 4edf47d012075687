#include "generation/sampling.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "base/mix.hpp"

namespace brume::generation {
namespace {

constexpr std::size_t block = 128;  ///< logits whose largest is known together
constexpr std::size_t lanes = 16;   ///< sums side by side, which a processor makes at once

/// The largest logit of each block; NaN where a block has one that is not finite, but for minus
/// infinity.
std::vector<float> largest_of_blocks(std::span<const float> logits) {
  std::vector<float> largest;
  largest.reserve(logits.size() / block + 1);
  for (std::size_t first = 0; first < logits.size(); first += block) {
    const std::span<const float> part =
        logits.subspan(first, std::min(block, logits.size() - first));
    float most[lanes];
    std::fill_n(most, lanes, part.front());
    int damaged[lanes] = {};
    const auto look = [&](float logit, std::size_t j) {
      most[j] = logit > most[j] ? logit : most[j];
      damaged[j] |= !(logit <= std::numeric_limits<float>::max());
    };
    std::size_t i = 0;
    for (; i + lanes <= part.size(); i += lanes)
      for (std::size_t j = 0; j < lanes; ++j) look(part[i + j], j);
    for (; i < part.size(); ++i) look(part[i], 0);
    const bool whole = std::ranges::count(damaged, 0) == std::ptrdiff_t(lanes);
    largest.push_back(whole ? *std::ranges::max_element(most)
                            : std::numeric_limits<float>::quiet_NaN());
  }
  return largest;
}

/// The first token of the largest logit.
std::int32_t likeliest(std::span<const float> logits, std::span<const float> largest) {
  const auto at = std::size_t(std::ranges::max_element(largest) - largest.begin());
  const auto begin = logits.begin() + std::ptrdiff_t(at * block);
  return std::int32_t(std::find(begin, logits.end(), largest[at]) - logits.begin());
}

struct Candidate {
  std::int32_t token;
  double weight;  ///< a logit, then its exponential
};

bool more_likely(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

bool penalizes(const Sampling& how) {
  return how.repetition_penalty != 1.0 || how.presence_penalty != 0.0 ||
         how.frequency_penalty != 0.0;
}

void penalize(const Sampling& how, const History& history, std::vector<float>& logits) {
  std::map<std::int32_t, int> counts;  // in the answer
  for (std::size_t i = 0; i < history.tokens.size(); ++i)
    counts[history.tokens[i]] += std::int64_t(i) >= history.prompt ? 1 : 0;
  for (const auto& [token, count] : counts) {
    if (token < 0 || std::size_t(token) >= logits.size()) continue;
    double logit = logits[token];
    logit = logit > 0.0 ? logit / how.repetition_penalty : logit * how.repetition_penalty;
    if (count > 0) logit -= how.presence_penalty + how.frequency_penalty * count;
    logits[token] = float(logit);
  }
}

/// The candidates that top-k leaves, of which the likeliest come first as far as top-p asks.
void cut_tail(std::vector<Candidate>& all, const Sampling& how) {
  if (how.top_k > 0 && std::size_t(how.top_k) < all.size()) {
    std::ranges::nth_element(all, all.begin() + (how.top_k - 1), more_likely);
    const double least = all[how.top_k - 1].weight;
    std::erase_if(all, [&](const Candidate& one) { return one.weight < least; });
  }
  double sum = 0.0;
  for (Candidate& one : all) sum += one.weight = std::exp(one.weight);  // of the likeliest 1
  if (how.top_p < 1.0) {
    // Sorts as many as are needed: most of the weight is in few tokens.
    double reached = 0.0;
    std::size_t kept = 0;
    for (std::size_t sorted = 0; kept < all.size() && (kept == 0 || reached < how.top_p * sum);) {
      if (kept == sorted) {
        sorted = std::min(all.size(), std::max<std::size_t>(64, 8 * sorted));
        std::partial_sort(all.begin() + std::ptrdiff_t(kept), all.begin() + std::ptrdiff_t(sorted),
                          all.end(), more_likely);
      }
      reached += all[kept++].weight;
    }
    all.resize(std::max<std::size_t>(1, kept));
  }
  if (how.min_p > 0.0)  // the likeliest has the weight 1
    std::erase_if(all, [&](const Candidate& one) { return one.weight < how.min_p; });
}

/// A logit that each token has which top-k, or min-p alone, leaves.
float least_logit(std::vector<float> largest, double top, const Sampling& how) {
  double least = -std::numeric_limits<double>::infinity();
  if (how.min_p > 0.0 && how.top_p >= 1.0)
    least = top + how.temperature * (std::log(how.min_p) - 1e-6);
  if (how.top_k > 0 && std::size_t(how.top_k) <= largest.size()) {
    // So many blocks have a logit of at least the k-th largest of these.
    const auto kth = largest.begin() + (how.top_k - 1);
    std::ranges::nth_element(largest, kth, std::greater<>());
    least = std::max(least, double(*kth));
  }
  return std::nextafter(float(least), -std::numeric_limits<float>::infinity());
}

std::int32_t draw(std::span<const float> logits, std::span<const float> largest,
                  const Sampling& how, double number) {
  const double top = std::ranges::max(largest);
  const float least = least_logit({largest.begin(), largest.end()}, top, how);
  std::vector<Candidate> all;
  if (std::isinf(least)) all.reserve(logits.size());
  for (std::size_t b = 0; b < largest.size(); ++b) {
    if (!(largest[b] >= least)) continue;
    for (std::size_t i = b * block; i < std::min(logits.size(), (b + 1) * block); ++i)
      if (logits[i] >= least)
        all.push_back({std::int32_t(i), (double(logits[i]) - top) / how.temperature});
  }
  cut_tail(all, how);
  const double sum = std::accumulate(all.begin(), all.end(), 0.0,
                                     [](double s, const Candidate& c) { return s + c.weight; });
  double left = number * sum;
  for (const Candidate& one : all)
    if ((left -= one.weight) < 0.0) return one.token;
  return all.back().token;
}

}  // namespace

std::span<const SamplingKey> sampling_keys() {
  static constexpr std::array keys{
      SamplingKey{"temperature", &Sampling::temperature, 0.0, 100.0},
      SamplingKey{"top_p", &Sampling::top_p, 0.0, 1.0},
      SamplingKey{"min_p", &Sampling::min_p, 0.0, 1.0},
      SamplingKey{"repetition_penalty", &Sampling::repetition_penalty, 0.01, 100.0},
      SamplingKey{"presence_penalty", &Sampling::presence_penalty, -100.0, 100.0},
      SamplingKey{"frequency_penalty", &Sampling::frequency_penalty, -100.0, 100.0}};
  return keys;
}

Choice choose(std::span<const float> logits, const Sampling& how, const History& history,
              std::uint64_t sequence) {
  std::vector<float> largest = largest_of_blocks(logits);
  const bool whole = std::ranges::none_of(largest, [](float one) { return std::isnan(one); });
  const float top = whole ? std::ranges::max(largest) : 0.0F;
  // Minus infinity is a token's that the model excludes, but not all tokens'.
  require(whole && std::isfinite(top), Failure::input,
          "the model makes logits that are not finite: its weights are damaged, or too large for "
          "its precision");
  std::vector<float> penalized;
  std::span<const float> used = logits;
  if (penalizes(how)) {
    penalized.assign(logits.begin(), logits.end());
    penalize(how, history, penalized);
    used = penalized;
    largest = largest_of_blocks(used);
  }
  const std::uint64_t place = history.tokens.size();
  const std::uint64_t key = mix(mix(how.seed + golden_step) + sequence * golden_step);
  const std::int32_t token =
      how.temperature == 0.0 ? likeliest(used, largest)
                             : draw(used, largest, how, uniform(mix(key + place * golden_step)));
  if (!how.log_probabilities) return {token};
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double(logit - top));
  return {token, double(logits[token] - top) - std::log(sum)};
}

}  // namespace brume::generation
