#include "rank_file.hpp"

#include "checkpoint_format.hpp"
#include "hdf5_file.hpp"

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

}  // namespace

Bytes rank_image(std::int64_t step, int rank, const std::vector<engine::Slab>& slabs,
                 std::vector<std::vector<float>>& values) {
  std::size_t expected_bytes = 4096;
  for (const std::vector<float>& slab : values)
    expected_bytes += slab.size() * sizeof(float) + 4096;
  Hdf5Writer writer(expected_bytes);
  describe_file(writer, step, rank);
  writer.group("/slabs");
  for (std::size_t n = 0; n < slabs.size(); ++n) {
    const std::string path = dataset_name(n);
    writer.dataset(path, values[n], {values[n].size()});
    describe_slab(writer, path, slabs[n]);
    values[n] = {};
  }
  return writer.image();
}

void read_rank_image(Bytes image, const std::string& name, const std::vector<engine::Slab>& slabs,
                     const std::vector<std::size_t>& wanted,
                     const std::function<void(std::size_t, const std::vector<float>&)>& use) {
  const Hdf5Reader reader(std::move(image), name, Failure::storage);
  require(reader.text("/", "filetype") == checkpoint_filetype &&
              reader.integers("/", "version").at(0) == checkpoint_version[0],
          Failure::storage, "{}: is no checkpoint of version {}", name, checkpoint_version[0]);
  std::vector<float> values;
  for (const std::size_t n : wanted) {
    const std::string path = dataset_name(n);
    reader.read(path, values);
    require(
        is_described(reader, path, slabs[n]) && std::int64_t(values.size()) == slabs[n].elements,
        Failure::storage, "{}: {} is not what the manifest says, {} of {}", name, path,
        slabs[n].kind, slabs[n].name);
    use(n, values);
  }
}

}  // namespace brume::io
