#include "network.hpp"

#include <fmt/format.h>

#include <fstream>
#include <map>

namespace brume::profiler {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<std::string> network_adapters(const fs::path& folder) {
  std::map<std::string, int> ports;  // by rate
  std::error_code none;              // what cannot be listed has no ports
  for (const fs::directory_entry& adapter : fs::directory_iterator(folder, none))
    for (const fs::directory_entry& port : fs::directory_iterator(adapter.path() / "ports", none))
      if (first_line(port.path() / "state").ends_with("ACTIVE"))
        ++ports[first_line(port.path() / "rate")];
  std::vector<std::string> found;
  for (const auto& [rate, count] : ports) found.push_back(fmt::format("{} x {}", count, rate));
  return found;
}

}  // namespace brume::profiler
