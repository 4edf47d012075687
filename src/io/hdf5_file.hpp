/// @file HDF5 files. The library makes them in memory and never holds a descriptor of a file that
/// is written, so a full disk or a kill cannot catch it half way.
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "files.hpp"
#include "model/model.hpp"
#include "sparse_file.hpp"

namespace brume::io {

/// An HDF5 handle that closes itself.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// The right to call HDF5, which is not safe for threads: one owner in the process at a time.
/// Makes the library silent and forbids it to load plugins.
///
/// @throws std::bad_alloc  where there may be too little memory for what HDF5 takes
class Hdf5Turn {
 public:
  Hdf5Turn();

 private:
  std::unique_lock<std::mutex> lock_;
};

/// Builds a file in memory. Holds the turn as long as it lives, so a thread must have one at a time
/// only.
///
/// @throws Error(resource)  when HDF5 fails, which in memory means that memory ran out
class Hdf5Writer {
 public:
  Hdf5Writer();

  void group(const std::string& path);
  /// A contiguous dataset, values slowest index first; groups on the way are made.
  void dataset(const std::string& path, std::span<const double> values,
               const std::vector<hsize_t>& shape);
  void dataset(const std::string& path, std::span<const std::int64_t> values,
               const std::vector<hsize_t>& shape);

  /// A contiguous dataset [elements] whose values the caller writes as `storage` keeps weights.
  /// @return  byte of the file at which they begin
  std::int64_t hole(const std::string& path, std::int64_t elements, model::Precision storage);

  /// A dataset of another file, or of this one.
  struct Source {
    std::string file;  ///< relative to this one's directory; ".": this one
    std::string dataset;
    std::vector<hsize_t> shape;
  };
  /// A virtual dataset of double or std::int64_t that shows the sources' rows one after the other;
  /// narrower rows end in zeros.
  template <typename T>
  void concatenation(const std::string& path, const std::vector<Source>& sources);

  void attribute(const std::string& object, const char* name, const std::string& text);
  void attribute(const std::string& object, const char* name, std::vector<const char*> texts);
  void attribute(const std::string& object, const char* name, double value);
  void attribute(const std::string& object, const char* name, std::span<const std::int64_t> values);

  SparseFile finish();  ///< the file, which is done
  Bytes image();        ///< the same as bytes

 private:
  Handle make_dataset(const std::string& path, const std::vector<hsize_t>& shape, hid_t file_type,
                      const Handle& creation);
  void write_dataset(const std::string& path, const void* values, const std::vector<hsize_t>& shape,
                     hid_t file_type, hid_t memory_type);
  void write_attribute(const std::string& object, const char* name, const void* values, hid_t space,
                       hid_t file_type, hid_t memory_type);

  Hdf5Turn turn_;
  SparseFile memory_;  ///< before file_, which must close first
  Handle file_;
};

/// How it is known that HDF5 may look at a file: the library crashes over damaged ones.
enum class Checked { by_caller, by_seal };

/// Reads a file of this program: links out of the file, external, virtual, chunked and filtered
/// data are refused. Holds the turn as long as it lives.
///
/// @throws Error(failure)  naming the file and the object, from every call
class Hdf5Reader {
 public:
  Hdf5Reader(const std::filesystem::path& path, Failure failure, Checked checked);
  /// @param file  which HDF5 opens once more, so that it may be closed
  Hdf5Reader(const Descriptor& file, std::string name, Failure failure, Checked checked);

  std::vector<hsize_t> shape(const std::string& dataset) const;
  /// Elements [first, first + values.size()) of a dataset of one dimension whose values are as
  /// `storage` keeps weights.
  void read(const std::string& dataset, std::int64_t first, std::span<float> values,
            model::Precision storage) const;
  void read(const std::string& dataset, std::vector<double>& values) const;
  void read(const std::string& dataset, std::vector<std::int64_t>& values) const;

  std::string text(const std::string& object, const char* attribute) const;
  double real(const std::string& object, const char* attribute) const;
  std::vector<std::int64_t> integers(const std::string& object, const char* attribute) const;

 private:
  void require_inside(const std::string& path) const;
  Handle open_dataset(const std::string& path) const;
  /// The same, of numbers of this kind and size.
  Handle open_typed(const std::string& path, H5T_class_t expected, std::size_t bytes) const;
  void read_part(const Handle& set, const std::string& dataset, hid_t memory_type,
                 std::int64_t first, std::size_t count, void* values) const;
  Handle open_attribute(const std::string& object, const char* attribute,
                        H5T_class_t expected) const;
  std::size_t points(const Handle& space, const std::string& what) const;
  template <typename T>
  void read_dataset(const std::string& path, std::vector<T>& values, hid_t memory_type,
                    H5T_class_t expected) const;
  Handle opened(hid_t id, Handle::Close close, const std::string& what) const;

  Hdf5Turn turn_;
  std::string name_;
  Failure failure_;
  std::int64_t bytes_;
  Handle file_;
};

/// The type of weights that are kept so: bits of sign, exponent and fraction as in memory.
Handle type_of(model::Precision storage);

/// What HDF5 says about its last failure: its innermost message.
std::string hdf5_message();

}  // namespace brume::io
