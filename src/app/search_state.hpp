/// @file A file that keeps the state of a deck's search.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "tuner/tuner.hpp"

namespace brume::app {

/// Hashes of all that a search depends on, each in hexadecimal digits.
struct SearchKey {
  std::string program, model, training, cluster, profile, search;
};

/// The state of a search in a file: of one search, or of each of its parts.
/// A search that ended early, or was killed, continues from there.
class SearchState {
 public:
  /// Reads the file, if it exists.
  /// @throws Error(input)    if it is not the state of this search, naming the part that differs
  /// @throws Error(storage)  if it cannot be written later
  SearchState(std::string path, const deck::Deck& deck, const deck::SearchKeys& keys,
              const model::Config& model, const hardware::Machine& machine);

  /// Options that let one of the searches continue, and keep its state from then on. Valid until
  /// the next call.
  tuner::Options continuing(tuner::Options options, std::size_t part);

  struct Content {
    int version = 1;
    SearchKey key;
    std::vector<tuner::State> searches;
  };

 private:
  void keep(const tuner::State& state, std::size_t part);

  std::string path_;
  Content content_;
  bool warned_ = false;
};

}  // namespace brume::app
