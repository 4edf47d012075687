#include "comm/communicator.hpp"

#include <cstdint>

namespace brume::comm {

std::string broadcast(Communicator& comm, std::string text, int root) {
  std::uint64_t length = text.size();
  comm.broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  text.resize(length);
  if (length > 0) comm.broadcast(std::as_writable_bytes(std::span(text)), root);
  return text;
}

}  // namespace brume::comm
