#include <algorithm>
#include <type_traits>
#include <utility>

#include "hdf5_file.hpp"
#include "model/storage.hpp"

namespace brume::io {
namespace {

/// Opens a file by its descriptor, so that it is the one whose hash was checked, and without locks,
/// which some network file systems lack. Of HDF5's drivers this one does not ask for the file's
/// name, which it may have lost.
hid_t open_hdf5(const Descriptor& file) {
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (H5Pset_fapl_stdio(access.get()) < 0 || H5Pset_file_locking(access.get(), false, true) < 0)
    return -1;
  return H5Fopen(fmt::format("/proc/self/fd/{}", file.get()).c_str(), H5F_ACC_RDONLY, access.get());
}

}  // namespace

Handle Hdf5Reader::opened(hid_t id, Handle::Close close, const std::string& what) const {
  require(id >= 0, failure_, "{}: {} cannot be read: {}", name_, what, hdf5_message());
  return {id, close};
}

Hdf5Reader::Hdf5Reader(const std::filesystem::path& path, Failure failure, Checked checked)
    : Hdf5Reader(
          open_regular(path, failure, checked == Checked::by_seal ? Links::follow : Links::refuse),
          path.string(), failure, checked) {}

Hdf5Reader::Hdf5Reader(const Descriptor& file, std::string name, Failure failure, Checked checked)
    : name_(std::move(name)),
      failure_(failure),
      bytes_(checked == Checked::by_seal ? check_seal(file, name_, failure) : length(file)),
      file_(opened(open_hdf5(file), H5Fclose, "the file")) {}

/// Refuses names that lead out of the file. Only names that are used are looked at, because a file
/// may have more and deeper ones than the library can walk over.
void Hdf5Reader::require_inside(const std::string& path) const {
  for (std::size_t end = 0; end < path.size() - 1;) {
    end = std::min(path.find('/', end + 1), path.size());
    const std::string name = path.substr(0, end);
    H5L_info_t link = {};
    require(H5Lget_info(file_.get(), name.c_str(), &link, H5P_DEFAULT) >= 0, failure_,
            "{}: {} cannot be read: {}", name_, name, hdf5_message());
    require(link.type == H5L_TYPE_HARD, failure_,
            "{}: {} is a link that may lead elsewhere; refused", name_, name);
  }
}

/// Elements of a dataspace. A file cannot hold more than it has bytes, whatever it claims.
std::size_t Hdf5Reader::points(const Handle& space, const std::string& what) const {
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  require(count >= 0 && count <= bytes_, failure_,
          "{}: {} claims {} elements in a file of {} bytes", name_, what, count, bytes_);
  return std::size_t(count);
}

Handle Hdf5Reader::open_dataset(const std::string& path) const {
  require_inside(path);
  Handle set = opened(H5Dopen2(file_.get(), path.c_str(), H5P_DEFAULT), H5Dclose, path);
  const Handle creation = opened(H5Dget_create_plist(set.get()), H5Pclose, path);
  const H5D_layout_t layout = H5Pget_layout(creation.get());
  const bool plain = (layout == H5D_CONTIGUOUS || layout == H5D_COMPACT) &&
                     H5Pget_external_count(creation.get()) == 0 &&
                     H5Pget_nfilters(creation.get()) == 0;
  require(plain, failure_, "{}: {} is external, virtual, chunked or filtered; refused", name_,
          path);
  return set;
}

std::vector<hsize_t> Hdf5Reader::shape(const std::string& dataset) const {
  const Handle set = open_dataset(dataset);
  const Handle space = opened(H5Dget_space(set.get()), H5Sclose, dataset);
  points(space, dataset);
  const int dims = H5Sget_simple_extent_ndims(space.get());
  require(dims >= 0, failure_, "{}: {} has no shape", name_, dataset);
  std::vector<hsize_t> result(std::size_t(dims), 0);
  H5Sget_simple_extent_dims(space.get(), result.data(), nullptr);
  return result;
}

Handle Hdf5Reader::open_typed(const std::string& path, H5T_class_t expected,
                              std::size_t bytes) const {
  Handle set = open_dataset(path);
  const Handle type = opened(H5Dget_type(set.get()), H5Tclose, path);
  require(H5Tget_class(type.get()) == expected && H5Tget_size(type.get()) == bytes, failure_,
          "{}: {} is of another type than expected", name_, path);
  return set;
}

template <typename T>
void Hdf5Reader::read_dataset(const std::string& path, std::vector<T>& values, hid_t memory_type,
                              H5T_class_t expected) const {
  const Handle set = open_typed(path, expected, sizeof(T));
  const Handle space = opened(H5Dget_space(set.get()), H5Sclose, path);
  values.resize(points(space, path));
  require(H5Dread(set.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0,
          failure_, "{}: {} cannot be read: {}", name_, path, hdf5_message());
}

void Hdf5Reader::read_part(const Handle& set, const std::string& dataset, hid_t memory_type,
                           std::int64_t first, std::size_t size, void* values) const {
  const Handle space = opened(H5Dget_space(set.get()), H5Sclose, dataset);
  const hsize_t begin = hsize_t(first), count = size;
  require(H5Sget_simple_extent_ndims(space.get()) == 1 &&
              std::uint64_t(first) + size <= points(space, dataset),
          failure_, "{}: {} is shorter than {} elements", name_, dataset, begin + count);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &begin, nullptr, &count, nullptr);
  const Handle memory = opened(H5Screate_simple(1, &count, nullptr), H5Sclose, dataset);
  require(H5Dread(set.get(), memory_type, memory.get(), space.get(), H5P_DEFAULT, values) >= 0,
          failure_, "{}: {} cannot be read: {}", name_, dataset, hdf5_message());
}

/// The library's own conversion of 16 bits takes them one by one, so they are read as they are.
void Hdf5Reader::read(const std::string& dataset, std::int64_t first, std::span<float> values,
                      model::Precision storage) const {
  const Handle set = open_typed(dataset, H5T_FLOAT, std::size_t(model::weight_bytes(storage)));
  const Handle type = type_of(storage);
  const Handle stored = opened(H5Dget_type(set.get()), H5Tclose, dataset);
  require(H5Tequal(stored.get(), type.get()) > 0, failure_,
          "{}: {} is of another type than expected", name_, dataset);
  model::with_storage(storage, [&]<class Storage>() {
    if constexpr (std::is_same_v<Storage, float>) {
      read_part(set, dataset, type.get(), first, values.size(), values.data());
    } else {
      std::vector<Storage> narrow(values.size());
      read_part(set, dataset, type.get(), first, narrow.size(), narrow.data());
      std::ranges::copy(narrow, values.begin());
    }
  });
}

void Hdf5Reader::read(const std::string& dataset, std::vector<double>& values) const {
  read_dataset(dataset, values, H5T_NATIVE_DOUBLE, H5T_FLOAT);
}

void Hdf5Reader::read(const std::string& dataset, std::vector<std::int64_t>& values) const {
  read_dataset(dataset, values, H5T_NATIVE_INT64, H5T_INTEGER);
}

Handle Hdf5Reader::open_attribute(const std::string& object, const char* attribute,
                                  H5T_class_t expected) const {
  const std::string what = object + " " + attribute;
  require_inside(object);
  Handle found =
      opened(H5Aopen_by_name(file_.get(), object.c_str(), attribute, H5P_DEFAULT, H5P_DEFAULT),
             H5Aclose, "attribute " + what);
  const Handle type = opened(H5Aget_type(found.get()), H5Tclose, what);
  require(H5Tget_class(type.get()) == expected, failure_,
          "{}: attribute {} is of another type than expected", name_, what);
  return found;
}

std::string Hdf5Reader::text(const std::string& object, const char* attribute) const {
  const Handle found = open_attribute(object, attribute, H5T_STRING);
  const Handle type = opened(H5Aget_type(found.get()), H5Tclose, attribute);
  const Handle space = opened(H5Aget_space(found.get()), H5Sclose, attribute);
  require(H5Tis_variable_str(type.get()) > 0 && points(space, attribute) == 1, failure_,
          "{}: attribute {} {} is no single text", name_, object, attribute);
  char* first = nullptr;
  require(H5Aread(found.get(), type.get(), &first) >= 0, failure_,
          "{}: attribute {} {} cannot be read: {}", name_, object, attribute, hdf5_message());
  std::string result = first == nullptr ? "" : first;
  H5free_memory(first);
  return result;
}

double Hdf5Reader::real(const std::string& object, const char* attribute) const {
  const Handle found = open_attribute(object, attribute, H5T_FLOAT);
  const Handle space = opened(H5Aget_space(found.get()), H5Sclose, attribute);
  double value = 0.0;
  require(points(space, attribute) == 1 && H5Aread(found.get(), H5T_NATIVE_DOUBLE, &value) >= 0,
          failure_, "{}: attribute {} {} is no single number", name_, object, attribute);
  return value;
}

std::vector<std::int64_t> Hdf5Reader::integers(const std::string& object,
                                               const char* attribute) const {
  const Handle found = open_attribute(object, attribute, H5T_INTEGER);
  const Handle space = opened(H5Aget_space(found.get()), H5Sclose, attribute);
  std::vector<std::int64_t> values(points(space, attribute), 0);
  require(H5Aread(found.get(), H5T_NATIVE_INT64, values.data()) >= 0, failure_,
          "{}: attribute {} {} cannot be read: {}", name_, object, attribute, hdf5_message());
  return values;
}

}  // namespace brume::io
