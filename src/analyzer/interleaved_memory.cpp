#include <algorithm>

#include "interleaved.hpp"
#include "plan/passes.hpp"

namespace brume::analyzer {

Peaks interleaved_peaks(const plan::Plan& plan, int first, const std::vector<ChunkBytes>& chunks) {
  const plan::Rounds rounds = plan::rounds(plan);
  const int ahead = plan::passes_in_flight(rounds, plan.run_ahead, first);
  double bytes = 0.0;  // of all that is kept
  for (const ChunkBytes& chunk : chunks) bytes += chunk.persistent;
  Peaks peaks;
  for (int forwards = 0, backwards = 0; backwards < rounds.passes();) {
    const plan::Pass pass = plan::next_pass(forwards, backwards, ahead, rounds);
    const ChunkBytes& chunk = chunks[std::size_t(pass.chunk)];
    if (!pass.forward) bytes -= chunk.kept;
    double& peak = pass.forward ? peaks.forward : peaks.backward;
    peak =
        std::max(peak, bytes + (pass.forward ? chunk.forward : chunk.backward) - chunk.persistent);
    if (pass.forward) bytes += chunk.kept;
    ++(pass.forward ? forwards : backwards);
  }
  return peaks;
}

}  // namespace brume::analyzer
