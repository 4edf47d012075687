/// @file Search of the plan by which a deck's prompts are answered fastest.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deck/deck.hpp"
#include "generation/forecast.hpp"
#include "generation_plan.hpp"
#include "given.hpp"

namespace brume::app {

/// A plan with so many sequences at once on each copy, and its prediction.
struct GenerationCandidate {
  GenerationPlan plan;
  int batch = 1;
  generation::Forecast forecast;  ///< of the copy with most prompts, scaled to all of them
  double tokens = 0.0;            ///< of all answers
  double arena_bytes = 0.0;       ///< of a rank, by both plans

  double tokens_per_s() const { return tokens / forecast.seconds; }
  double other_bytes() const { return arena_bytes - plan.cache_bytes(); }
  /// Hours of all devices for a million tokens of answers.
  double device_hours() const {
    return plan.plan.devices() * forecast.seconds / 3600.0 / (tokens / 1e6);
  }
};

/// The lengths that a deck plans for.
struct GenerationLengths {
  /// @throws Error(input) if the longest prompt and answer are longer than the model's sequences
  explicit GenerationLengths(const deck::Deck& deck);

  /// Tokens of the longest prompt and answer.
  std::int64_t longest() const { return (3 * (std::int64_t{prompt} + answer) + 1) / 2; }
  int longest_answer() const { return (3 * answer + 1) / 2; }

  int prompt, answer;
};

/// Tries copies of the model with tensor parallelism and pipeline stages, and pairs of these with
/// one plan for prompts and one for answers.
class GenerationSearch {
 public:
  explicit GenerationSearch(const Given& given);

  /// The candidates that fit and keep the deck's limits, the fastest first.
  /// @throws Error(infeasible) if there is none
  std::vector<GenerationCandidate> run();

 private:
  /// A copy's ranks: stages of as many tensor-parallel ranks.
  struct Shape {
    int stages, tp;
    auto operator<=>(const Shape&) const = default;
  };
  /// One copy by one shape.
  struct Copy {
    plan::Plan plan;
    int longest_pass;
    generation::PassTimes times;
  };
  /// Times of its passes [s].
  struct Speed {
    double prompt_s;  ///< the longest pass, of prompts
    double stage_s;   ///< ... on its slowest stage
    double token_s;   ///< a pass of next tokens
  };
  void consider_copies_of(int ranks);
  void consider_batch(std::vector<Shape>& shapes, int batch);
  Speed speed_of(const Copy& copy, int batch) const;
  std::optional<GenerationCandidate> fitting(const Shape& answers, const Shape* prompts, int batch);
  const generation::Forecast& predict(GenerationCandidate one, const Shape& answers,
                                      const Shape* prompts);
  plan::Plan plan_of(const Shape& shape, int copies) const;
  const Copy& copy_of(const Shape& shape, const model::Config& model);
  void keep_limits();
  bool out_of_time() const;

  const Given& given_;
  const hardware::NodeGroup& nodes_;
  const deck::GenerationKeys& keys_;
  GenerationLengths lengths_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<GenerationCandidate> found_;
  std::map<Shape, std::unique_ptr<Copy>> copies_;  ///< of the batch that is looked at
  std::string refused_;                            ///< why the last refused one cannot be
  double short_bytes_ = 0.0;  ///< least that a rank lacks; 0: nothing lacks memory
  int short_ranks_ = 0;       ///< of its copy
};

}  // namespace brume::app
