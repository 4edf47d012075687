/// @file Profiles of a cluster's groups, and of the links between them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hardware/cluster.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {

/// A message between two devices takes latency_s + gib / gib_per_s.
struct Link {
  double gib_per_s = 1.0;
  double latency_s = 0.0;
};

/// A profile for each group of a cluster.
class Machine {
 public:
  /// A machine of one group.
  Machine(Profile profile) : names_(1), profiles_{std::move(profile)}, links_(1) {}
  /// @param profiles  one a group
  /// @param links     between groups, as the deck gives them
  Machine(const Cluster& cluster, std::vector<Profile> profiles,
          const std::vector<deck::LinkKeys>& links);

  int num_groups() const { return int(profiles_.size()); }
  /// The place of a group's name; "" is the only group. @throws Error(input)
  int index(const std::string& group) const;
  const std::string& name(int group) const { return names_[group]; }
  const Profile& profile(int group) const { return profiles_[group]; }
  const Profile& profile(const std::string& group) const { return profile(index(group)); }

  /// Whichever nodes they are: the links between all of them are alike from here on.
  void forget_slow_pairs();

  /// Seconds of a message between devices of two groups: by their link, or else the slower of what
  /// both groups need between nodes of their own. 0 for no bytes.
  double crossing_s(int from, int to, double bytes) const;

 private:
  const std::optional<Link>& link(int from, int to) const {
    return links_[from * num_groups() + to];
  }

  std::vector<std::string> names_;
  std::vector<Profile> profiles_;
  std::vector<std::optional<Link>> links_;  ///< [group, group]
};

/// The cluster as plans find it: of each device's memory less what its group's profile says is
/// reserved, which is nothing where ranks compute on a node's processor. @throws Error(infeasible)
/// when nothing is left
Cluster usable(Cluster cluster, const Machine& machine);

/// The profiles of a cluster's groups: each group's own, otherwise its machine's.
/// @throws Error(input) when one names neither, or what it names cannot be read
Machine load_machine(const deck::ClusterKeys& keys);

/// Text that `parse_machine` gives the same profiles back from: of one group its profile.
std::string text(const Machine& machine);

/// @throws Error(input) when it does not hold a profile for each group
Machine parse_machine(const std::string& text, const std::string& origin,
                      const deck::ClusterKeys& keys);

}  // namespace brume::hardware
