/// @file What both communicators of device memory leave to one of host memory.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"

namespace brume::comm {

class HostHalf : public Communicator {
 public:
  explicit HostHalf(std::unique_ptr<Communicator> host) : host_(std::move(host)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string transport() const override { return host_->transport(); }
  void barrier() override { host_->barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) override { host_->broadcast(bytes, root); }
  std::vector<std::string> gather(const std::string& mine) override { return host_->gather(mine); }
  std::vector<std::string> gather_at(const std::string& mine, int root) override {
    return host_->gather_at(mine, root);
  }
  void abort(int exit_code) override { host_->abort(exit_code); }

 protected:
  std::unique_ptr<Communicator> host_;
};

}  // namespace brume::comm
