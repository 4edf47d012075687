/// @file The deck's cluster: its keys, and what no single one of them shows.
#pragma once

#include <string>

#include "base/error.hpp"
#include "deck/deck.hpp"

namespace brume::deck {

/// Checks beyond single keys, with the place of the key in the message.
class Checker {
 public:
  explicit Checker(const Document& document) : document_(document) {}
  void operator()(bool holds, const std::string& path, const std::string& what) const {
    require(holds, Failure::input, "{}: '{}' {}", document_.where(path), path, what);
  }

 private:
  const Document& document_;
};

const Schema<ClusterKeys>& cluster_schema();

/// Gives the keys that a group's machine says a value, where the document has none.
/// @throws Error(input)
void set_machine_keys(Document& document);

/// @param mist  whether to use Mist's conventions, which know one group
/// @throws Error(input)
void check_cluster(const ClusterKeys& cluster, const Document& document, bool mist);

}  // namespace brume::deck
