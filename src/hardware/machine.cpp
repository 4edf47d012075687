#include "hardware/machine.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/units.hpp"

namespace brume::hardware {
namespace {

/// Profiles of several groups in one text.
struct Profiles {
  std::vector<Profile> groups;
};

const deck::Schema<Profiles>& profiles_schema() {
  static const deck::Schema<Profiles> schema = [] {
    deck::Schema<Profiles> s;
    return s.tables("groups", &Profiles::groups, profile_schema(), "in the deck's order");
  }();
  return schema;
}

/// Names are what plans say: none, where there is one group.
std::vector<std::string> names_of(const Cluster& cluster) {
  std::vector<std::string> names;
  for (const NodeGroup& group : cluster.groups) names.push_back(group.name);
  return names;
}

}  // namespace

Machine::Machine(const Cluster& cluster, std::vector<Profile> profiles,
                 const std::vector<deck::LinkKeys>& links)
    : names_(names_of(cluster)),
      profiles_(std::move(profiles)),
      links_(names_.size() * names_.size()) {
  require(profiles_.size() == names_.size(), Failure::bug, "{} profiles for {} groups",
          profiles_.size(), names_.size());
  for (const deck::LinkKeys& keys : links) {
    const auto a = std::size_t(index(keys.between[0])), b = std::size_t(index(keys.between[1]));
    links_[a * names_.size() + b] = links_[b * names_.size() + a] =
        Link{keys.gib_per_s, keys.latency_s};
  }
}

int Machine::index(const std::string& group) const {
  if (group.empty() && names_.size() == 1) return 0;
  const auto found = std::ranges::find(names_, group);
  require(found != names_.end(), Failure::input, "the cluster has no group '{}'", group);
  return int(found - names_.begin());
}

void Machine::forget_slow_pairs() {
  for (Profile& profile : profiles_) {
    profile.slow_pairs.clear();
    profile.hosts.clear();
  }
}

double Machine::crossing_s(int from, int to, double bytes) const {
  if (bytes <= 0.0) return 0.0;
  if (const auto& own = link(from, to))
    return bytes / bytes_per_gib / own->gib_per_s + own->latency_s;
  return std::max(link_time(profile(from), LinkKind::send, 2, 1, bytes),
                  link_time(profile(to), LinkKind::send, 2, 1, bytes));
}

Cluster usable(Cluster cluster, const Machine& machine) {
  for (int g = 0; g < cluster.num_groups(); ++g) {
    NodeGroup& group = cluster.groups[g];
    const std::int64_t reserved = machine.profile(g).reserved_bytes;
    require(reserved < group.memory_bytes, Failure::infeasible,
            "memory_gib gives a device {}, of which libraries and the driver take {}",
            format_bytes(double(group.memory_bytes)), format_bytes(double(reserved)));
    group.memory_bytes -= reserved;
    group.reserved_bytes = reserved;
    group.on_device = reserved > 0;
  }
  return cluster;
}

Machine load_machine(const deck::ClusterKeys& keys) {
  std::vector<Profile> profiles;
  for (const deck::GroupKeys& group : keys.all_groups()) {
    profiles.push_back(group.profile.empty() ? machine_profile(group)
                                             : load_profile(group.profile));
    set_levels(profiles.back(), group);
  }
  return Machine(cluster(keys), std::move(profiles), keys.links);
}

std::string text(const Machine& machine) {
  if (machine.num_groups() == 1) return profile_schema().write(machine.profile(0));
  Profiles profiles;
  for (int group = 0; group < machine.num_groups(); ++group)
    profiles.groups.push_back(machine.profile(group));
  return profiles_schema().write(profiles);
}

Machine parse_machine(const std::string& text, const std::string& origin,
                      const deck::ClusterKeys& keys) {
  const Cluster groups = cluster(keys);
  const deck::Document document = deck::Document::parse(text, origin);
  if (groups.num_groups() == 1) return profile_schema().read(document);
  Profiles profiles = profiles_schema().read(document);
  require(profiles.groups.size() == groups.groups.size(), Failure::input,
          "{}: profiles of {} groups, the deck's cluster has {}", origin, profiles.groups.size(),
          groups.groups.size());
  return Machine(groups, std::move(profiles.groups), keys.links);
}

}  // namespace brume::hardware
