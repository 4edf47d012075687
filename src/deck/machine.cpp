#include "deck/machine.hpp"

#include "base/error.hpp"
#include "deck/schema.hpp"

namespace brume::deck {

const Schema<MachineKeys>& machine_schema() {
  static const auto schema = [] {
    return Schema<MachineKeys>()
        .key("origin", &MachineKeys::origin, {.help = "source of these numbers", .required = true})
        .key("profile", &MachineKeys::profile,
             {.help = "profile measured on it; otherwise device, fabric and network are required"})
        .key("device", &MachineKeys::device, {.help = "device file"})
        .key("fabric", &MachineKeys::fabric, {.help = "network file for the devices of a node"})
        .key("network", &MachineKeys::network, {.help = "network file between nodes"})
        .key("devices_per_node", &MachineKeys::devices_per_node,
             {.help = "GPUs per node, or ranks on CPU-only nodes",
              .required = true,
              .min = 1,
              .max = 1024})
        .key("memory_gib", &MachineKeys::memory_gib,
             {.unit = "GiB",
              .help = "memory per device",
              .required = true,
              .min = 0.001,
              .max = 1e6})
        .key("host_memory_gib", &MachineKeys::host_memory_gib,
             {.unit = "GiB",
              .help = "CPU memory per node for offloading",
              .required = true,
              .min = 0,
              .max = 1e6})
        .key("error", &MachineKeys::error,
             {.help = "expected relative error of predicted times", .min = 0, .max = 10});
  }();
  return schema;
}

MachineKeys load_machine(const std::string& name) {
  const std::string path = shipped_path(Shipped::machine, name);
  MachineKeys machine = machine_schema().read(Document::load(path));
  const bool composed =
      !machine.device.empty() && !machine.fabric.empty() && !machine.network.empty();
  require(composed != !machine.profile.empty(), Failure::input,
          "{}: needs a profile, or device, fabric and network instead", path);
  return machine;
}

}  // namespace brume::deck
