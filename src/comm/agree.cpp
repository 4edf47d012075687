#include "comm/agree.hpp"

#include <string>
#include <vector>

namespace brume::comm {

void agree(Communicator& comm, const std::optional<Error>& mine) {
  // A rank without failure offers `size`, so the minimum is the first failing rank, if any.
  double first = mine ? comm.rank() : comm.size();
  comm.all_reduce(std::span(&first, 1), Reduction::min);
  const int speaker = static_cast<int>(first);
  if (speaker == comm.size()) return;

  int failure = 0;
  std::string said;
  if (comm.rank() == speaker) {
    failure = static_cast<int>(mine->failure());
    said = comm.size() == 1 ? mine->what() : fmt::format("rank {}: {}", speaker, mine->what());
  }
  comm.broadcast(std::as_writable_bytes(std::span(&failure, 1)), speaker);
  said = broadcast(comm, std::move(said), speaker);
  throw AgreedError(static_cast<Failure>(failure), said);
}

void require_same(Communicator& comm, const char* what, const std::string& mine) {
  const std::vector<std::string> all = comm.gather(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw AgreedError(Failure::input, "rank {} {} '{}', rank 0 '{}': start all alike", rank, what,
                        all[rank], all[0]);
}

}  // namespace brume::comm
