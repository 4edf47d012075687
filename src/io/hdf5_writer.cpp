#include <algorithm>
#include <array>
#include <new>
#include <type_traits>

#include "hdf5_file.hpp"

namespace brume::io {
namespace {

std::mutex one_caller;

/// HDF5 crashes, or ends the process, where the C library has no memory for it: so it is called
/// only where there is as much as it may take. At most 37 MiB were seen, for some 7,000 datasets.
/// [bytes]
constexpr std::size_t most_memory = std::size_t{48} << 20;

void check(std::int64_t result, const std::string& what) {
  require(result >= 0, Failure::resource, "{} of an HDF5 image cannot be made: {}: {}", what,
          hdf5_message(), memory_ran_out);
}

Handle made(hid_t id, Handle::Close close, const std::string& what) {
  check(id, what);
  return {id, close};
}

Handle simple_space(const std::vector<hsize_t>& shape) {
  return made(H5Screate_simple(int(shape.size()), shape.data(), nullptr), H5Sclose, "a dataspace");
}

/// Texts are of variable length, because an attribute of fixed length ends at 64 KiB.
Handle text_type() {
  Handle type = made(H5Tcopy(H5T_C_S1), H5Tclose, "a text type");
  check(H5Tset_size(type.get(), H5T_VARIABLE), "a text type");
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "a text type");
  return type;
}

}  // namespace

std::string hdf5_message() {
  std::string message = "no reason given";
  const H5E_walk2_t innermost = [](unsigned n, const H5E_error2_t* error, void* out) -> herr_t {
    if (n == 0 && error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, &message);
  return message;
}

Hdf5Turn::Hdf5Turn() : lock_(one_caller) {
  ::operator delete(::operator new(most_memory));
  // It would tidy up at the end of the process, where nothing is left to do.
  [[maybe_unused]] static const herr_t told = H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5PLset_loading_state(0);
}

Hdf5Writer::Hdf5Writer() : file_(made(create_hdf5(memory_), H5Fclose, "the file")) {}

void Hdf5Writer::group(const std::string& path) {
  made(H5Gcreate2(file_.get(), path.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose,
       path);
}

Handle Hdf5Writer::make_dataset(const std::string& path, const std::vector<hsize_t>& shape,
                                hid_t file_type, const Handle& creation) {
  const Handle space = simple_space(shape);
  const Handle links = made(H5Pcreate(H5P_LINK_CREATE), H5Pclose, path);
  check(H5Pset_create_intermediate_group(links.get(), 1), path);
  // The same values give the same bytes, which times would spoil.
  check(H5Pset_obj_track_times(creation.get(), false), path);
  return made(H5Dcreate2(file_.get(), path.c_str(), file_type, space.get(), links.get(),
                         creation.get(), H5P_DEFAULT),
              H5Dclose, path);
}

template <typename T>
void Hdf5Writer::concatenation(const std::string& path, const std::vector<Source>& sources) {
  std::vector<hsize_t> shape(sources[0].shape.size(), 0);
  for (const Source& source : sources) {
    shape[0] += source.shape[0];
    if (shape.size() > 1) shape[1] = std::max(shape[1], source.shape[1]);
  }
  const Handle creation = made(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path);
  const Handle whole = simple_space(shape);
  std::vector<hsize_t> first(shape.size(), 0);
  for (const Source& source : sources) {
    if (source.shape[0] == 0 || source.shape.back() == 0) continue;
    check(H5Sselect_hyperslab(whole.get(), H5S_SELECT_SET, first.data(), nullptr,
                              source.shape.data(), nullptr),
          path);
    check(H5Pset_virtual(creation.get(), whole.get(), source.file.c_str(), source.dataset.c_str(),
                         simple_space(source.shape).get()),
          path);
    first[0] += source.shape[0];
  }
  make_dataset(path, shape, std::is_same_v<T, double> ? H5T_IEEE_F64LE : H5T_STD_I64LE, creation);
}

template void Hdf5Writer::concatenation<double>(const std::string&, const std::vector<Source>&);
template void Hdf5Writer::concatenation<std::int64_t>(const std::string&,
                                                      const std::vector<Source>&);

void Hdf5Writer::write_dataset(const std::string& path, const void* values,
                               const std::vector<hsize_t>& shape, hid_t file_type,
                               hid_t memory_type) {
  const Handle creation = made(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path);
  const Handle set = make_dataset(path, shape, file_type, creation);
  check(H5Dwrite(set.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), path);
}

Handle type_of(model::Precision storage) {
  Handle type = made(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "a type");
  if (model::weight_bytes(storage) == sizeof(float)) return type;
  const bool half = storage == model::Precision::fp16;
  const std::size_t fraction = half ? 10 : 7;
  check(H5Tset_fields(type.get(), 15, fraction, 15 - fraction, 0, fraction), "a type");
  check(H5Tset_size(type.get(), 2), "a type");
  check(H5Tset_ebias(type.get(), half ? 15 : 127), "a type");
  return type;
}

std::int64_t Hdf5Writer::hole(const std::string& path, std::int64_t elements,
                              model::Precision storage) {
  const Handle creation = made(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path);
  check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), path);
  check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), path);
  const Handle set = make_dataset(path, {hsize_t(elements)}, type_of(storage).get(), creation);
  const haddr_t first = H5Dget_offset(set.get());
  check(first == HADDR_UNDEF ? -1 : 0, path);
  return std::int64_t(first);
}

void Hdf5Writer::dataset(const std::string& path, std::span<const double> values,
                         const std::vector<hsize_t>& shape) {
  write_dataset(path, values.data(), shape, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE);
}

void Hdf5Writer::dataset(const std::string& path, std::span<const std::int64_t> values,
                         const std::vector<hsize_t>& shape) {
  write_dataset(path, values.data(), shape, H5T_STD_I64LE, H5T_NATIVE_INT64);
}

void Hdf5Writer::write_attribute(const std::string& object, const char* name, const void* values,
                                 hid_t space, hid_t file_type, hid_t memory_type) {
  const std::string what = object + " " + name;
  const Handle attribute = made(H5Acreate_by_name(file_.get(), object.c_str(), name, file_type,
                                                  space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                H5Aclose, what);
  check(H5Awrite(attribute.get(), memory_type, values), what);
}

void Hdf5Writer::attribute(const std::string& object, const char* name, const std::string& text) {
  const Handle type = text_type();
  const Handle space = made(H5Screate(H5S_SCALAR), H5Sclose, "a dataspace");
  const char* first = text.c_str();
  write_attribute(object, name, &first, space.get(), type.get(), type.get());
}

void Hdf5Writer::attribute(const std::string& object, const char* name,
                           std::vector<const char*> texts) {
  const Handle type = text_type();
  const Handle space = simple_space({texts.size()});
  write_attribute(object, name, texts.data(), space.get(), type.get(), type.get());
}

void Hdf5Writer::attribute(const std::string& object, const char* name, double value) {
  const Handle space = made(H5Screate(H5S_SCALAR), H5Sclose, "a dataspace");
  write_attribute(object, name, &value, space.get(), H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE);
}

void Hdf5Writer::attribute(const std::string& object, const char* name,
                           std::span<const std::int64_t> values) {
  const Handle space = simple_space({values.size()});
  write_attribute(object, name, values.data(), space.get(), H5T_STD_I64LE, H5T_NATIVE_INT64);
}

SparseFile Hdf5Writer::finish() {
  check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), "the file");
  file_ = Handle();
  return std::move(memory_);
}

Bytes Hdf5Writer::image() {
  const SparseFile file = finish();
  Bytes bytes(std::size_t(file.length()), std::byte{});
  file.read(0, bytes);
  return bytes;
}

}  // namespace brume::io
