#include "rank_file.hpp"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

#include "base/error.hpp"
#include "checkpoint_format.hpp"
#include "model/storage.hpp"

namespace brume::io {
namespace {

std::string dataset_name(std::size_t n) { return "/slabs/" + std::to_string(n); }

void describe_file(Hdf5Writer& writer, std::int64_t step, int rank) {
  const std::int64_t rank_value = rank;
  writer.attribute("/", "filetype", checkpoint_filetype);
  writer.attribute("/", "version", checkpoint_version);
  writer.attribute("/", "step", std::span(&step, 1));
  writer.attribute("/", "rank", std::span(&rank_value, 1));
  writer.attribute("/", "description",
                   "each dataset of /slabs is the flat range from `first` on of the slice [offset, "
                   "offset + shape) of a tensor of shape global_shape");
}

void describe_slab(Hdf5Writer& writer, const std::string& path, const engine::Slab& slab) {
  writer.attribute(path, "name", slab.name);
  writer.attribute(path, "kind", slab.kind);
  writer.attribute(path, "units", "1");
  writer.attribute(path, "global_shape", slab.global_shape);
  writer.attribute(path, "offset", slab.offset);
  writer.attribute(path, "shape", slab.shape);
  writer.attribute(path, "first", std::span(&slab.first, 1));
}

bool is_described(const Hdf5Reader& reader, const std::string& path, const engine::Slab& slab) {
  return reader.text(path, "name") == slab.name && reader.text(path, "kind") == slab.kind &&
         reader.integers(path, "global_shape") == slab.global_shape &&
         reader.integers(path, "offset") == slab.offset &&
         reader.integers(path, "shape") == slab.shape &&
         reader.integers(path, "first") == std::vector{slab.first};
}

/// A rank's file without values, and at which byte those of each slab belong.
struct Frame {
  SparseFile file;
  std::vector<std::int64_t> first_bytes;
};

Frame make_frame(std::int64_t step, int rank, const std::vector<engine::Slab>& slabs) {
  Hdf5Writer writer;
  describe_file(writer, step, rank);
  writer.group("/slabs");
  std::vector<std::int64_t> first_bytes;
  for (std::size_t n = 0; n < slabs.size(); ++n) {
    const std::string path = dataset_name(n);
    first_bytes.push_back(writer.hole(path, slabs[n].elements, slabs[n].storage));
    describe_slab(writer, path, slabs[n]);
  }
  return {writer.finish(), std::move(first_bytes)};
}

/// Appends bytes [first, end) of a frame.
void append_frame(NewFile& file, const Frame& frame, std::int64_t first, std::int64_t end) {
  Bytes bytes(std::size_t(end - first), std::byte{});
  frame.file.read(first, bytes);
  file.write(bytes);
}

void write_values(NewFile& file, std::span<const float> values, model::Precision storage) {
  model::with_storage(storage, [&]<class Storage>() {
    if constexpr (std::is_same_v<Storage, float>) {
      file.write(std::as_bytes(values));
    } else {
      const std::vector<Storage> narrow(values.begin(), values.end());
      file.write(std::as_bytes(std::span(narrow)));
    }
  });
}

}  // namespace

void write_rank_file(NewFile& file, std::int64_t step, int rank,
                     const std::vector<engine::Slab>& slabs, const GetValues& get_values) {
  const Frame frame = make_frame(step, rank, slabs);
  std::vector<std::size_t> order(slabs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t n) { return frame.first_bytes[n]; });

  std::vector<float> buffer;
  std::int64_t written = 0;  // bytes
  for (const std::size_t n : order) {
    append_frame(file, frame, written, frame.first_bytes[n]);
    for (std::int64_t first = 0; first < slabs[n].elements; first += piece_elements) {
      buffer.resize(std::size_t(std::min(piece_elements, slabs[n].elements - first)));
      write_values(file, get_values(n, first, buffer), slabs[n].storage);
    }
    written = frame.first_bytes[n] + slabs[n].elements * model::weight_bytes(slabs[n].storage);
  }
  append_frame(file, frame, written, frame.file.length());
}

RankFile::RankFile(const Descriptor& file, std::string name)
    : name_(std::move(name)), reader_(file, name_, Failure::storage, Checked::by_caller) {
  require(reader_.text("/", "filetype") == checkpoint_filetype &&
              reader_.integers("/", "version").at(0) == checkpoint_version[0],
          Failure::storage, "{}: is no checkpoint of version {}", name_, checkpoint_version[0]);
}

std::span<const float> RankFile::piece(std::size_t n, const engine::Slab& slab, std::int64_t first,
                                       std::int64_t end) {
  const std::string path = dataset_name(n);
  require(is_described(reader_, path, slab) &&
              reader_.shape(path) == std::vector{hsize_t(slab.elements)},
          Failure::storage, "{}: {} is not what the manifest says, {} of {}", name_, path,
          slab.kind, slab.name);
  buffer_.resize(std::size_t(std::min(piece_elements, end - first)));
  reader_.read(path, first, buffer_, slab.storage);
  return buffer_;
}

}  // namespace brume::io
