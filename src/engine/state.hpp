/// @file What a rank holds between steps, by parameter: initial values, slabs for checkpoints.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "arena.hpp"
#include "engine/slab.hpp"

namespace brume::engine {

/// Slabs of all parameters and moments this rank holds; without an arena they have no memory.
std::vector<Slab> slabs(const schedule::Program& program, const plan::Plan& plan,
                        const model::Config& model, const Arena* arena);

/// Gives weights that this rank writes and `names` has a place in `disk` as they are in fp32.
/// @return bytes of it that they take
std::int64_t keep_exactly(std::vector<Slab>& slabs, const std::set<std::string>& names,
                          device::ScratchFile* disk);

/// The same of gradients as the last step left them, by parameter, of kind "grad".
std::vector<Slab> gradients(const schedule::Program& program, const plan::Plan& plan,
                            const model::Config& model, const Arena& arena);

/// Parameters of which a weight or a gradient among `slabs` is not finite, each once.
std::vector<std::string> nonfinite_parameters(const std::vector<Slab>& slabs);

/// Elements of a buffer through which values of slabs go: 32 MiB, or what the largest slab needs.
std::int64_t largest_piece(const std::vector<Slab>& slabs);

/// Sets weights from the seed by global parameter index, moments to zero.
/// @param threads  cores that make the values, which do not depend on it
void initialise(std::vector<Slab>& slabs, const model::Config& model, std::uint64_t seed,
                int threads);

}  // namespace brume::engine
