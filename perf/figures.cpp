/// @file Draws the pictures of benchmark results from the tables in perf/data.
///
///   perf_figures DIRECTORY
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "report/figure.hpp"

namespace {

using namespace brume;
using Cells = std::vector<std::string>;

/// The rows of a table whose first line names its columns.
std::vector<Cells> rows(const std::string& name) {
  const std::string path = std::string(BRUME_PERF_DATA) + "/" + name + ".csv";
  std::ifstream file(path);
  require(file.is_open(), Failure::input, "{}: cannot be opened", path);
  std::vector<Cells> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
    require(rows.back().size() == rows.front().size(), Failure::input,
            "{}:{}: {} cells, expected {}", path, rows.size(), rows.back().size(),
            rows.front().size());
  }
  return rows;
}

double number(const std::string& cell) { return cell == "-" ? std::nan("") : std::stod(cell); }

/// Bars of a table: a name, then a column per series.
std::string bars(const std::string& table, std::string title, std::string unit) {
  const std::vector<Cells> all = rows(table);
  report::BarChart chart{.title = std::move(title),
                         .unit = std::move(unit),
                         .series = {all[0].begin() + 1, all[0].end()},
                         .groups = {}};
  for (std::size_t i = 1; i < all.size(); ++i) {
    report::BarChart::Group& group = chart.groups.emplace_back();
    group.name = all[i][0];
    for (std::size_t c = 1; c < all[i].size(); ++c) group.values.push_back(number(all[i][c]));
  }
  return report::figure(chart);
}

std::string published() {
  report::RatioChart chart{.title = "Simulated against published step times",
                           .x_name = "published step time [s]",
                           .y_name = "simulated / published",
                           .series = {}};
  std::map<std::string, std::size_t> devices;
  const std::vector<Cells> all = rows("published");
  for (std::size_t i = 1; i < all.size(); ++i) {
    const auto [found, is_new] = devices.emplace(all[i][0], chart.series.size());
    if (is_new) chart.series.push_back({.name = all[i][0], .x = {}, .ratio = {}});
    report::RatioChart::Series& series = chart.series[found->second];
    series.x.push_back(number(all[i][1]));
    series.ratio.push_back(number(all[i][2]) / number(all[i][1]));
  }
  return report::figure(chart);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: perf_figures DIRECTORY\n";
    return 2;
  }
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file(std::string(argv[1]) + "/" + name + ".svg", text);
  };
  try {
    write("published", published());
    write("plans",
          bars("plans", "Step time of the best plan, free and narrowed searches (simulated)", "s"));
    write("step", bars("step", "Training step on two cores, GPT-2 124M, 4 x 64 tokens", "s"));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
