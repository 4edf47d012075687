/// @file Machines by name: what a node is, and which devices and networks it is made of.
#pragma once

#include <string>

#include "deck/deck.hpp"
#include "deck/schema.hpp"

namespace brume::deck {

/// Kinds of files that come with the program: measured profiles, and machines with the devices and
/// networks that they are made of.
enum class Shipped { profile, machine, device, network };

/// The file of that name; else NAME.toml in the kind's folder of $BRUME_PROFILES, of what is
/// installed beside the program or of the source tree: the folder itself has profiles, `machines`,
/// `devices` and `networks` in it have the others.
///
/// @throws Error(input) with the names that there are
std::string shipped_path(Shipped kind, const std::string& name);

/// Content of a machine's file.
struct MachineKeys {
  std::string origin;   ///< source of these numbers
  std::string profile;  ///< name of a Shipped::profile, which was measured on it; or else:
  std::string device;   ///< name of a Shipped::device
  std::string fabric;   ///< name of a Shipped::network: between the devices of a node
  std::string network;  ///< name of a Shipped::network: between nodes
  int devices_per_node = 1;
  double memory_gib = 0.0;       ///< per device
  double host_memory_gib = 0.0;  ///< per node, for what is offloaded
  double error = 0.0;            ///< expected relative error of predicted times
};

const Schema<MachineKeys>& machine_schema();

const Schema<LevelKeys>& level_schema();
/// @throws Error(input) unless each level has a multiple of the nodes of the one before
void check_levels(const std::vector<LevelKeys>& levels, const std::string& where);

/// @throws Error(input)
MachineKeys load_machine(const std::string& name);

}  // namespace brume::deck
