/// @file The tokens of each training step: a pure function of seed and step, so a resumed run
/// continues exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/token_file.hpp"

namespace brume::data {

enum class Order { sequential, shuffled };

/// A token file and how often its windows are taken, relative to those of others.
struct WeightedFile {
  TokenFile file;
  double weight = 1.0;  ///< relative weight, above 0
};

/// Input tokens of a sample, their learned targets, and the starts of documents. Each is [T].
struct Window {
  std::span<std::int32_t> inputs;
  std::span<std::int32_t> targets;  ///< the tokens that follow; -1: not to be learned
  std::span<std::int32_t> begins;   ///< place in the window where each input's document begins; may
                                    ///< be left out
};

class Mixture;

/// Cuts token files into windows of seq_len + 1 tokens, seq_len apart, and puts them in an order.
///
/// Window w of a file starts at token w * seq_len; a shuffled epoch of a file visits each of its
/// windows once, in a permutation that follows from seed and epoch and is computed without a table.
/// Samples of several files come by their weights: of the first n samples a file with the share p
/// has p n, rounded up or down where n is a multiple of a block, whose samples are shuffled.
///
/// A window of a file with pairs is one answer with its prompt, cut after seq_len + 1 tokens or
/// filled with tokens that are no targets. Samples 2 i and 2 i + 1 are a pair, chosen and rejected;
/// pairs are put in an order. Pairs whose prompts leave no room for an answer are left out.
///
/// Tokens before their document's answer are no targets. Of isolated documents each is alone: its
/// first token is no target, as nothing precedes it.
class Sampler {
 public:
  /// @param apart  from one window's beginning to the next one's; 0: seq_len tokens
  /// @throws Error(input) when a file holds less than one window, or only some files have pairs
  Sampler(std::vector<WeightedFile> files, Order order, std::uint64_t seed, int seq_len,
          bool isolated = false, int apart = 0);
  Sampler(TokenFile file, Order order, std::uint64_t seed, int seq_len, bool isolated = false);

  /// The window for sample `index` = step * global_batch + position in the batch.
  /// @throws Error(storage)  when the file cannot be read, or was cut since it was opened
  void sample(std::int64_t index, const Window& window) const;
  void sample(std::int64_t index, std::span<std::int32_t> inputs,
              std::span<std::int32_t> targets) const {
    sample(index, {inputs, targets, {}});
  }

  /// The documents of a sample's seq_len + 1 tokens, by their places among them; `answer` is the
  /// first one that is a target, 1 at the earliest.
  std::vector<Document> documents(std::int64_t index) const;

  /// Targets that are to be learned among `count` samples from `first` on. Reads no token.
  std::int64_t num_targets(std::int64_t first, std::int64_t count) const;

  /// Pairs of an input of a sample and itself or an earlier one within a document, of isolated
  /// documents: the work of attention. Reads no token.
  double attention_pairs(std::int64_t index) const;

  /// Mean share of the pairs of an input and an earlier one that are within a document (over all
  /// windows, or over some of many files' windows); 1 unless documents are isolated.
  double document_share() const;

  std::int64_t num_windows() const { return num_windows_; }  ///< windows of all files
  /// The number of a sample's window, in the order of files and of windows in each.
  std::int64_t window(std::int64_t index) const;
  /// The same windows in the order of their numbers, over and over.
  Sampler by_number() const;

  bool pairs() const { return !pairs_.empty(); }
  std::int64_t pairs_left_out() const { return pairs_left_out_; }
  std::int64_t answers_cut() const { return answers_cut_; }  ///< not of pairs left out
  std::vector<TokenFileIdentity> identities() const;         ///< identities of the files
  /// Shares of the samples, per file.
  const std::vector<double>& shares() const { return shares_; }

 private:
  /// A window by its file.
  struct Place {
    std::size_t file;
    std::int64_t window;
  };
  /// Its first token, and how many it has; of pairs, the document that it is.
  struct First {
    const TokenFile& file;
    std::int64_t token, tokens;
    std::optional<Document> answer = {};
  };
  Place place(std::int64_t index) const;
  First first_token(std::int64_t index) const;
  void keep_pairs(const TokenFile& file);

  std::vector<TokenFile> files_;
  std::vector<std::int64_t> windows_;  ///< windows per file
  /// The pairs of each file that are not left out; empty: the files have none.
  std::vector<std::shared_ptr<const std::vector<std::int32_t>>> pairs_;
  std::int64_t pairs_left_out_ = 0, answers_cut_ = 0;
  bool by_number_ = false;
  std::vector<double> shares_;
  std::shared_ptr<const Mixture> mixture_;  ///< several files only
  Order order_;
  std::uint64_t seed_;
  int seq_len_;
  bool isolated_;
  int apart_;
  std::int64_t num_windows_ = 0;
};

/// Windows of seq_len + 1 tokens, one after the other, of tokens that no file has.
/// @throws Error(storage) when the temporary folder cannot hold them for a moment
Sampler sampler_of(std::span<const std::int32_t> tokens, int vocab_size,
                   const DocumentEnds& documents, int seq_len, bool isolated = false);

/// Windows of `count` random tokens, the same each time, for measurements.
/// @throws Error(storage) when the temporary folder cannot hold them for a moment
Sampler random_tokens(int vocab_size, int seq_len, std::int64_t count);

}  // namespace brume::data
