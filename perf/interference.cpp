/// @file How well interference models predict co-runs measured on GPUs that they were not fitted
/// to: one table for all group shapes, one for each, and the 28 factors that Mist ships.
///
///   perf_interference [--tables]    the tables themselves, in the form of a profile
#include <fmt/format.h>

#include <chrono>
#include <string>

#include "base/text.hpp"
#include "co_runs.hpp"
#include "mist/counting.hpp"

namespace {

using namespace brume;

/// The factors that Mist ships for these machines.
const std::map<std::string, mist::Slowdowns> shipped{
    {"l4", {10.3312, 7.6785, 4.0921, 2.1695, 2.6942, 3.1015, 1.9612, 2.2752, 2.7452, 2.3535,
            6.6221,  2.5708, 2.8219, 4.4773, 2.7195, 3.0124, 1.2946, 1.0224, 1.973,  1.982,
            1.9532,  1.9653, 2.4663, 1.5854, 1.3876, 2.8578, 1.9576, 1.9656}},
    {"a100", {1.307,  2.6325, 2.4097, 2.5898, 1.2264, 2.8078, 1.466,  1.3202, 2.2295, 1.932,
              1.0309, 1.9929, 1.0438, 5.4986, 1.2915, 1.7303, 1.2856, 1.0393, 1.0081, 1.0099,
              1.0125, 1.0251, 1.5508, 1.0972, 1.1336, 1.2723, 1.5186, 1.2665}}};

std::string percent(double share) { return fmt::format("{:.2f} %", 100.0 * share); }

void compare(const std::string& machine, const test::Shapes& all, Table& table) {
  const auto [train, held_out] = test::halves(all, 0);
  const auto start = std::chrono::steady_clock::now();
  const test::Models pooled = test::fit_pooled(train);
  const std::chrono::duration<double> fit_time = std::chrono::steady_clock::now() - start;
  const test::Models each = test::fit_each(train), better = test::fit_better(train);
  const auto mist = [&slowdowns = shipped.at(machine)](const auto& alone_s) {
    return mist::overlapped_s(slowdowns, alone_s);
  };
  const auto one = [](const test::Models& models, const test::Shape& shape, const test::CoRuns& c) {
    return percent(test::mean_error(models.at(shape), c));
  };
  test::CoRuns together;
  for (const auto& [shape, c] : held_out) {
    together.insert(together.end(), c.begin(), c.end());
    table.add({fmt::format("{} {} x {}", machine, shape.first, shape.second),
               std::to_string(c.size()), one(pooled, shape, c), one(each, shape, c),
               one(better, shape, c), percent(test::mean_error(mist, c)), ""});
  }
  table.add({machine, std::to_string(together.size()), percent(test::mean_error(pooled, held_out)),
             percent(test::mean_error(each, held_out)), percent(test::mean_error(better, held_out)),
             percent(test::mean_error(mist, together)), format_seconds(fit_time.count())});
}

/// The tables of all co-runs, in the form of a profile.
void print_tables(const std::string& machine, const test::Shapes& all) {
  fmt::print("# {}\n", machine);
  for (const auto& [shape, model] : test::fit_better(all)) {
    std::string numbers;
    for (const auto& row : model.added)
      for (double added : row)
        numbers += fmt::format("{}{:.4f}", numbers.empty() ? "" : ", ", added);
    fmt::print(
        "[[group_interference]]\nnodes          = {}\nranks_per_node = {}\nadded          = "
        "[{}]\n\n",
        shape.first, shape.second, numbers);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--tables") {
    for (const auto& [machine, all] : test::read_co_runs(BRUME_CO_RUNS)) print_tables(machine, all);
    return 0;
  }
  fmt::print("Mean relative error of the time until all are done, over the half not fitted to:\n");
  Table table({"machine, group", "co-runs", "one table", "each shape", "the better", "Mist shipped",
               "time of fit"});
  for (const auto& [machine, all] : test::read_co_runs(BRUME_CO_RUNS)) compare(machine, all, table);
  fmt::print("{}", table.text());
}
