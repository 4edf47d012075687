/// @file Pieces of parameters and of optimizer state on a rank, and their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/quantization.hpp"
#include "device/scratch_file.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/program.hpp"

namespace brume::engine {

/// Blocks of quantized values of which some have come.
struct OpenBlocks;

/// A piece of a parameter or of its optimizer state on this rank. It is the flat range
/// [first, first + elements) of the slice [offset, offset + shape) of the whole tensor. Below fp32
/// a weight is its fp32 master, kept with the moments; of what layers compute with there are slabs
/// with `rounded` in the place of `data`, so that a checkpoint's masters fill both; these are owned
/// only where a parameter has no master, because it is not trained and not in Settings::exact.
/// Either may be memory of a device, and what lies on disk has neither: these functions
/// reach all of them.
struct Slab {
  std::string name;  ///< name of the parameter
  std::string kind;  ///< "weight", or the name of one of model::state_fields
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> shape;
  std::int64_t first = 0;
  std::int64_t elements = 0;
  float* data = nullptr;
  std::byte* rounded = nullptr;
  /// Storage of `rounded` values, on disk, and in a checkpoint's file; fp32 if they are not
  /// rounded.
  model::Precision storage = model::Precision::fp32;
  device::ScratchFile* disk = nullptr;
  std::int64_t disk_byte = 0;  ///< start in the file
  /// Memory holds blocks of its values in this format, which `storage` is in a checkpoint only.
  Quantization quantization = Quantization::none;
  std::shared_ptr<OpenBlocks> open_blocks = {};
  bool owned = false;  ///< this rank writes it to a checkpoint; others hold a copy
  bool dense = true;   ///< not of experts, which data-parallel ranks may divide
};

/// Place of element `index` of a slab's slice in the whole tensor.
std::int64_t global_index(const Slab& slab, std::int64_t index);

/// A slab's values: all [elements], getting and setting those from `first` on; not while a step
/// runs.
std::vector<float> values(const Slab& slab);
void get_values(const Slab& slab, std::int64_t first, std::span<float> values);
void set_values(const Slab& slab, std::int64_t first, std::span<const float> values);

/// Slabs of which an engine with this Program makes checkpoints, without memory.
std::vector<Slab> slabs_of(const schedule::Program& program, const plan::Plan& plan,
                           const model::Config& model);

}  // namespace brume::engine
