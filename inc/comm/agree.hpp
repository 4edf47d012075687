/// @file Failing together: ranks agree on an error between communications.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace brume::comm {

/// An error that all ranks hold alike: one of them prints it, all finalize and leave with its code.
class AgreedError : public Error {
 public:
  using Error::Error;
};

/// Ends a stage of the job: either every rank goes on, or every rank throws the same AgreedError.
///
/// Collective over `comm`. The lowest failing rank speaks for all, so the log holds one message.
///
/// @param mine            what failed on this rank, if anything
/// @throws AgreedError    on every rank, when any rank failed
/// @throws Error(network) when the transport itself fails
void agree(Communicator& comm, const std::optional<Error>& mine);

/// Runs `stage` on every rank and agrees on its end. `stage` itself must not communicate.
template <typename Stage>
void together(Communicator& comm, Stage&& stage) {
  std::optional<Error> mine;
  try {
    std::forward<Stage>(stage)();
  } catch (const std::exception& error) {
    mine = error_of(error);
  }
  agree(comm, mine);
}

/// Refuses ranks that were given different things, and would wait for each other for ever.
///
/// Collective over `comm`.
///
/// @param what  verb of the error's sentence: rank 2 `what` 'its text'
/// @throws AgreedError(input)  where a rank's text is not rank 0's
void require_same(Communicator& comm, const char* what, const std::string& mine);

}  // namespace brume::comm
