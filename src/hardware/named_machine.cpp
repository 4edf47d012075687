/// @file Profiles of machines that come with the program, of their devices and networks.
#include "base/error.hpp"
#include "deck/machine.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

/// A network's file: a row, and where its numbers come from.
struct NetworkFile : NetworkRow {
  std::string origin;
  std::vector<deck::LevelKeys> levels;
};

const deck::Schema<NetworkFile>& network_file_schema() {
  static const auto schema = [] {
    return deck::Schema<NetworkFile>()
        .key("origin", &NetworkFile::origin, {.help = "source of these numbers", .required = true})
        .key("span", static_cast<std::string NetworkFile::*>(&NetworkRow::span),
             {.help = "devices of a node, or nodes of a cluster",
              .required = true,
              .choices = {"node", "cluster"}})
        .key("gib_per_s", static_cast<double NetworkFile::*>(&NetworkRow::gib_per_s),
             {.unit = "GiB/s",
              .help = "bandwidth in one direction, per device or per node",
              .required = true,
              .min = 1e-6,
              .max = 1e6})
        .key("peer_gib_per_s", static_cast<double NetworkFile::*>(&NetworkRow::peer_gib_per_s),
             {.unit = "GiB/s",
              .help = "largest bandwidth to one peer; 0: all",
              .min = 0,
              .max = 1e6})
        .key("start_s", static_cast<double NetworkFile::*>(&NetworkRow::start_s),
             {.unit = "s", .help = "start of a collective or message", .min = 0, .max = 1})
        .key("hop_s", static_cast<double NetworkFile::*>(&NetworkRow::hop_s),
             {.unit = "s", .help = "hop to the next rank", .min = 0, .max = 1})
        .tables("levels", &NetworkFile::levels, deck::level_schema(),
                "Levels of a network between nodes, the smallest units first");
  }();
  return schema;
}

NetworkFile load_network(const std::string& name, const char* span) {
  const std::string path = deck::shipped_path(deck::Shipped::network, name);
  NetworkFile file = network_file_schema().read(deck::Document::load(path));
  require(file.span == span, Failure::input,
          "{}: joins the {}, and is named where the {} are joined", path,
          file.span == "node" ? "devices of a node" : "nodes of a cluster",
          std::string(span) == "node" ? "devices of a node" : "nodes of a cluster");
  require(file.levels.empty() || file.span == "cluster", Failure::input,
          "{}: has levels, which networks between nodes have", path);
  deck::check_levels(file.levels, path);
  return file;
}

}  // namespace

std::vector<deck::KeyText> network_keys() { return network_file_schema().help(); }

Profile machine_profile(const deck::GroupKeys& group) {
  const deck::MachineKeys machine = deck::load_machine(group.machine);
  if (!machine.profile.empty()) {
    require(group.network.empty(), Failure::input,
            "machine '{}' was measured with its own network: cluster.network cannot be another",
            group.machine);
    Profile profile = load_profile(machine.profile);
    profile.error = machine.error;
    return profile;
  }
  Profile profile = profile_schema().read(
      deck::Document::load(deck::shipped_path(deck::Shipped::device, machine.device)));
  check_sizes(profile, machine.device);
  const std::string between = group.network.empty() ? machine.network : group.network;
  const NetworkFile within_node = load_network(machine.fabric, "node");
  const NetworkFile within_cluster = load_network(between, "cluster");
  profile.networks = {within_node, within_cluster};
  profile.levels = within_cluster.levels;
  profile.file = group.machine;
  profile.origin = machine.device + ": " + profile.origin;
  profile.origins.transfers += "; " + machine.fabric + ": " + within_node.origin + "; " + between +
                               ": " + within_cluster.origin;
  profile.key.ranks_per_node = group.devices_per_node;
  profile.error = machine.error;
  return profile;
}

}  // namespace brume::hardware
