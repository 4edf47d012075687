/// @file Token files of a training, opened and checked.
#include "training_data.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/agree.hpp"
#include "token_checks.hpp"

namespace brume::app {
namespace {

/// @param key  that names the file, for errors
data::TokenFile open_tokens(const std::string& path, const char* key, const deck::DataKeys& keys,
                            const model::Config& model, const data::TokenChecks& known) {
  const data::DocumentMarks marks{keys.begin_token, keys.end_token};
  data::TokenFile file = [&] {
    try {
      return data::TokenFile(path, model.isolated ? marks : data::DocumentMarks{}, known);
    } catch (const Error& error) {
      throw Error(error.failure(), "{}: {}", key, error.what());
    }
  }();
  require(file.vocab_size() <= model.vocab_size, Failure::input,
          "{} = {}: its vocabulary of {} is larger than model.vocab_size = {}", key, path,
          file.vocab_size(), model.vocab_size);
  require(model.pairs || !file.has_pairs(), Failure::input,
          "{} = {}: holds pairs of answers, which only a training with training.preference.beta "
          "above 0 reads, usually 0.1",
          key, path);
  require(!model.pairs || file.has_pairs(), Failure::input,
          "{} = {}: holds no pairs of answers, which training.preference needs: make it by `brume "
          "import tokens` of lines with 'chosen' and 'rejected', or set "
          "training.preference.beta = 0",
          key, path);
  return file;
}

}  // namespace

model::Config isolated(model::Config model, const deck::Deck& deck) {
  if (!model.isolated) return model;
  try {
    data::TokenChecks known;
    add_checks(kept_checks(), known);
    model.document_share = open_training(deck, model, known).document_share();
  } catch (const Error& error) {
    log::warn("attention counts as that of whole sequences: {}", error.what());
  }
  return model;
}

data::TokenChecks check_tokens(const std::vector<NamedTokens>& files, const deck::Deck& deck,
                               const model::Config& model, comm::Communicator& job) {
  data::TokenChecks known;
  const bool leader = job.rank() == 0;
  add_checks(comm::broadcast(job, leader ? kept_checks() : "", 0), known);
  std::string mine;
  comm::together(job, [&] {
    for (auto i = std::size_t(job.rank()); i < files.size(); i += std::size_t(job.size())) {
      const data::TokenFile file =
          open_tokens(files[i].path, files[i].key, deck.data, model, known);
      if (!known.contains(file.key())) mine += check_line(file);
    }
  });
  const std::string read = fmt::format("{}", fmt::join(job.gather(mine), ""));
  if (leader) keep_checks(read);
  add_checks(read, known);
  return known;
}

data::Sampler open_training(const deck::Deck& deck, const model::Config& model,
                            const data::TokenChecks& known) {
  const auto order =
      deck.data.order == "shuffled" ? data::Order::shuffled : data::Order::sequential;
  const deck::DataKeys& keys = deck.data;
  std::vector<data::WeightedFile> files;
  if (!keys.train.empty())
    files.push_back({open_tokens(keys.train, "data.train", keys, model, known)});
  for (std::size_t i = 0; i < keys.files.size(); ++i) {
    data::TokenFile file = open_tokens(keys.files[i], "data.files", keys, model, known);
    const double size = double(file.has_pairs() ? file.num_pairs() : file.size());
    const double weight = keys.weights.empty() ? size : keys.weights[i];
    files.push_back({std::move(file), weight});
  }
  return data::Sampler(std::move(files), order, std::uint64_t(deck.training.seed), model.seq_len,
                       model.isolated);
}

data::Sampler open_validation(const std::string& path, const char* key, const deck::Deck& deck,
                              const model::Config& model, const data::TokenChecks& known) {
  constexpr std::uint64_t seed = 0;
  return data::Sampler(open_tokens(path, key, deck.data, model, known), data::Order::shuffled, seed,
                       model.seq_len, model.isolated);
}

}  // namespace brume::app
