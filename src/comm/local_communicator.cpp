#include "comm/communicator.hpp"

#include <pthread.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/error.hpp"
#include "comm/local_group.hpp"
#include "comm/parts.hpp"

namespace brume::comm {

namespace {

template <typename T>
void require_equal_sizes(const std::vector<std::span<T>*>& all) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    require(all[r]->size() == all[0]->size(), Failure::bug,
            "rank 0 of the group gives {} values, rank {} gives {}", all[0]->size(), r,
            all[r]->size());
  }
}

/// all[0][i] op all[1][i] op ..., always in rank order, in the type `Sum`
template <typename Sum, typename T, typename Operation>
Sum combine(const std::vector<std::span<T>*>& all, std::size_t i, Operation operation) {
  Sum total = (*all[0])[i];
  for (std::size_t r = 1; r < all.size(); ++r) total = operation(total, (*all[r])[i]);
  return total;
}

/// A rank of a group of threads.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalJob> job, std::shared_ptr<LocalGroup> group, int rank,
                    int job_rank)
      : job_(std::move(job)), group_(std::move(group)), rank_(rank), job_rank_(job_rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  std::string transport() const override { return "threads"; }

  void barrier() override {
    group_->meet("barrier", rank_, *this, [](const auto&) {});
  }

  void all_reduce(Values values) override {
    std::visit([&](auto all) { reduce_to_all(all, std::plus<float>()); }, values);
  }

  void all_reduce(std::span<double> values, Reduction reduction) override {
    switch (reduction) {
      case Reduction::sum: return reduce_to_all(values, std::plus<>());
      case Reduction::min:
        return reduce_to_all(values, [](double a, double b) { return std::min(a, b); });
      case Reduction::max:
        return reduce_to_all(values, [](double a, double b) { return std::max(a, b); });
    }
  }

  void reduce_scatter(Values values) override {
    std::visit([&](auto all) { scatter_sums(all); }, values);
  }
  void all_gather(Values values) override {
    std::visit([&](auto all) { gather_parts(all); }, values);
  }

  void all_to_all(std::span<const std::byte> out, std::span<const std::size_t> out_bytes,
                  std::span<std::byte> in, std::span<const std::size_t> in_bytes) override {
    auto outgoing = parts_of(out, out_bytes, size());
    const auto incoming = parts_of(in, in_bytes, size());
    group_->meet("all_to_all", rank_, outgoing, [&](const auto& all) {
      for (std::size_t r = 0; r < all.size(); ++r) {
        const std::span<const std::byte> part = (*all[r])[static_cast<std::size_t>(rank_)];
        require_part(part.size(), incoming[r].size(), r);
        std::copy(part.begin(), part.end(), incoming[r].begin());
      }
    });
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    require(root >= 0 && root < size(), Failure::bug, "a broadcast from rank {} of {}", root,
            size());
    group_->meet("broadcast", rank_, bytes, [&](const auto& all) {
      require_equal_sizes(all);
      const std::span<std::byte> source = *all[static_cast<std::size_t>(root)];
      if (rank_ != root) std::copy(source.begin(), source.end(), bytes.begin());
    });
  }

  std::vector<std::string> gather(const std::string& mine) override {
    return gather_at(mine, rank_);
  }

  std::vector<std::string> gather_at(const std::string& mine, int root) override {
    std::vector<std::string> texts;
    std::string_view shown = mine;
    group_->meet("gather", rank_, shown, [&](const auto& all) {
      for (const std::string_view* text : all)
        if (rank_ == root) texts.emplace_back(*text);
    });
    return texts;
  }

  void send(ConstValues values, int peer) override {
    std::visit([&](auto out) { group_->send(std::as_bytes(out), rank_, peer); }, values);
  }
  void recv(Values values, int peer) override {
    std::visit([&](auto in) { group_->recv(std::as_writable_bytes(in), peer, rank_); }, values);
  }

  std::unique_ptr<Communicator> split(int colour, int key) override;

  void abort(int exit_code) override { job_->abort(job_rank_, exit_code); }

 private:
  // Each rank reduces its share of the values, on all ranks' copies.
  template <typename T, typename Operation>
  void reduce_to_all(std::span<T> values, Operation operation) {
    group_->meet("all_reduce", rank_, values, [&](const auto& all) {
      require_equal_sizes(all);
      const std::size_t begin = values.size() * static_cast<std::size_t>(rank_) / all.size();
      const std::size_t end = values.size() * static_cast<std::size_t>(rank_ + 1) / all.size();
      for (std::size_t i = begin; i < end; ++i) {
        const T total = combine<std::invoke_result_t<Operation, T, T>>(all, i, operation);
        for (std::span<T>* copy : all) (*copy)[i] = total;
      }
    });
  }

  template <typename T>
  void scatter_sums(std::span<T> values) {
    const std::size_t part = part_size(values.size(), size());
    const std::size_t begin = part * static_cast<std::size_t>(rank_);
    group_->meet("reduce_scatter", rank_, values, [&](const auto& all) {
      require_equal_sizes(all);
      for (std::size_t i = begin; i < begin + part; ++i)
        values[i] = combine<float>(all, i, std::plus<float>());
    });
  }

  template <typename T>
  void gather_parts(std::span<T> values) {
    const std::size_t part = part_size(values.size(), size());
    group_->meet("all_gather", rank_, values, [&](const auto& all) {
      require_equal_sizes(all);
      for (std::size_t r = 0; r < all.size(); ++r) {
        if (static_cast<int>(r) == rank_) continue;
        std::copy_n(all[r]->data() + r * part, part, values.data() + r * part);
      }
    });
  }

  std::shared_ptr<LocalJob> job_;
  std::shared_ptr<LocalGroup> group_;
  int rank_;
  int job_rank_;
};

std::unique_ptr<Communicator> LocalCommunicator::split(int colour, int key) {
  struct Wish {
    int colour;
    int key;
    std::shared_ptr<LocalGroup> group;
  };
  Wish mine{colour, key, nullptr};
  std::vector<std::size_t> members;  // ranks of this one's colour, in the order of the new group
  const auto me = static_cast<std::size_t>(rank_);

  group_->meet("split", rank_, mine, [&](const std::vector<Wish*>& all) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r]->colour == colour) members.push_back(r);
    }
    std::stable_sort(members.begin(), members.end(),
                     [&](std::size_t a, std::size_t b) { return all[a]->key < all[b]->key; });
    if (members.front() == me) mine.group = job_->make_group(static_cast<int>(members.size()));
  });
  std::shared_ptr<LocalGroup> group;
  group_->meet("split", rank_, mine,
               [&](const std::vector<Wish*>& all) { group = all[members.front()]->group; });

  if (colour < 0) return nullptr;
  const auto place = std::find(members.begin(), members.end(), me) - members.begin();
  return std::make_unique<LocalCommunicator>(job_, std::move(group), static_cast<int>(place),
                                             job_rank_);
}

}  // namespace

void run_local(int size, const std::function<void(Communicator&)>& body) {
  require(size >= 1, Failure::bug, "a run on {} ranks", size);
  const auto job = std::make_shared<LocalJob>();
  const auto world = job->make_group(size);
  std::vector<std::thread> ranks;
  const auto rank = [&](int r) {
    pthread_setname_np(pthread_self(), fmt::format("rank {}", r).c_str());
    try {
      LocalCommunicator comm(job, world, r, r);
      body(comm);
    } catch (...) {
      job->fail(r, std::current_exception());
    }
  };
  for (int r = 0; r < size; ++r) try {
      ranks.emplace_back(rank, r);
    } catch (...) {
      // No thread could be had: those that run wait for it in vain.
      job->fail(r, std::current_exception());
      break;
    }
  for (std::thread& thread : ranks) thread.join();
  job->rethrow();
}

}  // namespace brume::comm
