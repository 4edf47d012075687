#include "chain.hpp"

#include <algorithm>

#include "device/device.hpp"
#include "passes.hpp"

namespace brume::profiler {
namespace {

constexpr int products = 0, transfers = 1;
constexpr int most_links = 8;
constexpr double chain_s = 10e-3;  ///< of transfers in a chain, about

}  // namespace

Work make_product(const Product& product, Operands& operands) {
  const Item item{model::OperatorKind::matmul,
                  {product.tokens, product.outputs, product.inputs},
                  product.tokens};
  return make_passes(item, {.precision = product.precision}, operands).forward;
}

std::vector<std::unique_ptr<device::Stream>> make_streams(int count) {
  std::vector<std::unique_ptr<device::Stream>> streams;
  for (int i = 0; i < count; ++i) streams.push_back(device::make_stream());
  return streams;
}

std::vector<hardware::WaitRow> measure_waits(Bench& bench, const Product& product,
                                             const std::vector<int>& groups, int ranks_per_node) {
  constexpr std::size_t calls = 100;
  comm::Communicator& world = bench.world();
  const device::BoundThread bound = bench.bound();
  Operands operands;
  Work work;
  if (!bench.prepared("product", [&] { work = make_product(product, operands); })) return {};
  std::vector<double> times_s(std::size_t(world.size()) * calls);  // [rank, call]
  for (std::size_t call = 0; call < calls; ++call) {
    world.barrier();
    const double start_s = now_s();
    work();
    device::finish();
    times_s[std::size_t(world.rank()) * calls + call] = now_s() - start_s;
  }
  world.all_reduce(times_s, comm::Reduction::sum);

  std::vector<hardware::WaitRow> rows;
  for (int ranks : groups) {
    if (ranks > ranks_per_node) continue;
    double slowest_s = 0.0, sum_s = 0.0;
    for (int first = 0; first + ranks <= world.size(); first += ranks)
      for (std::size_t call = 0; call < calls; ++call) {
        double most_s = 0.0;
        for (int rank = first; rank < first + ranks; ++rank) {
          const double time_s = times_s[std::size_t(rank) * calls + call];
          most_s = std::max(most_s, time_s);
          sum_s += time_s;
        }
        slowest_s += ranks * most_s;
      }
    rows.push_back({ranks, slowest_s / sum_s - 1.0});
  }
  return rows;
}

Chain::Chain(Bench& bench, const Product& product, double hand_over_s)
    : bench_(bench), hand_over_s_(hand_over_s) {
  prepared_ = bench.prepared("product between transfers",
                             [&] { product_ = make_product(product, operands_); });
  channels_.enqueue(products, [&bench] { bench.compute_here(); });
  channels_.synchronize();
}

void Chain::run(int links, const Work& transfer) {
  channels_.run([&] {
    for (int i = 0; i < links; ++i) {
      channels_.enqueue(products, product_);
      if (!transfer) continue;
      channels_.wait(transfers, channels_.record(products));
      channels_.enqueue(transfers, transfer);
      channels_.wait(products, channels_.record(transfers));
    }
  });
}

double Chain::seconds(const std::string& name, const Work& transfer, double alone_s) {
  if (!prepared_) return alone_s;
  const int links = std::clamp(int(chain_s / alone_s), 1, most_links);
  const auto products_s = bench_.seconds("products", [&] { run(links, {}); });
  const auto both_s = bench_.seconds(name, [&] { run(links, transfer); });
  if (!products_s || !both_s) return alone_s;
  return std::max(alone_s, (*both_s - *products_s) / links - 2.0 * hand_over_s_);
}

}  // namespace brume::profiler
