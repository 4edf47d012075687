#include "sparse_file.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>  // drivers, from 1.13 on
#endif

namespace brume::io {
namespace {

constexpr std::int64_t block_bytes = 1 << 16;

/// Calls use(block number, first byte in it, part) for the part of `bytes` in each block.
template <typename Bytes, typename Use>
void for_each_block(std::int64_t first, Bytes bytes, Use&& use) {
  while (!bytes.empty()) {
    const std::int64_t at = first % block_bytes;
    const auto part = bytes.first(std::min(bytes.size(), std::size_t(block_bytes - at)));
    use(first / block_bytes, at, part);
    bytes = bytes.subspan(part.size());
    first += std::int64_t(part.size());
  }
}

// --- a driver of HDF5: its calls, on a SparseFile ---

struct OpenFile {
  H5FD_t base;  // HDF5's own; first, as its calls pass a pointer to it
  SparseFile* file;
  haddr_t allocated;  // bytes, the end of what HDF5 has given to objects
};

OpenFile& open_file(H5FD_t* file) { return *reinterpret_cast<OpenFile*>(file); }
const OpenFile& open_file(const H5FD_t* file) { return *reinterpret_cast<const OpenFile*>(file); }

H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
  const void* info = H5Pget_driver_info(access);  // a copy of the pointer that create_hdf5 gave
  if (info == nullptr) return nullptr;
  auto opened = std::make_unique<OpenFile>();
  opened->file = *static_cast<SparseFile* const*>(info);
  return &opened.release()->base;
}

herr_t close(H5FD_t* file) {
  delete &open_file(file);
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* features) {
  *features = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA;
  return 0;
}

haddr_t end_of_allocated(const H5FD_t* file, H5FD_mem_t) { return open_file(file).allocated; }

herr_t set_end_of_allocated(H5FD_t* file, H5FD_mem_t, haddr_t bytes) {
  open_file(file).allocated = bytes;
  return 0;
}

haddr_t end_of_file(const H5FD_t* file, H5FD_mem_t) {
  return haddr_t(open_file(file).file->length());
}

herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t first, size_t bytes, void* to) {
  open_file(file).file->read(std::int64_t(first), {static_cast<std::byte*>(to), bytes});
  return 0;
}

herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t first, size_t bytes, const void* from) {
  try {
    open_file(file).file->write(std::int64_t(first), {static_cast<const std::byte*>(from), bytes});
    return 0;
  } catch (const std::exception&) {
    return -1;  // no memory; HDF5 is C and must not see it fly
  }
}

herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
  open_file(file).file->set_length(std::int64_t(open_file(file).allocated));
  return 0;
}

hid_t driver() {
  static const H5FD_class_t calls = [] {
    H5FD_class_t c{};
#if H5_VERSION_GE(1, 13, 2)
    c.version = H5FD_CLASS_VERSION;
    c.value = H5FD_class_value_t(0x4252);  // any number that HDF5 and its registry do not use
#endif
    c.name = "brume sparse file";
    c.maxaddr = (haddr_t{1} << 62) - 1;
    c.fc_degree = H5F_CLOSE_WEAK;
    c.fapl_size = sizeof(SparseFile*);
    c.open = open;
    c.close = close;
    c.query = query;
    c.get_eoa = end_of_allocated;
    c.set_eoa = set_end_of_allocated;
    c.get_eof = end_of_file;
    c.read = read;
    c.write = write;
    c.truncate = truncate;
    std::ranges::fill(c.fl_map, H5FD_MEM_SUPER);
    return c;
  }();
  static const hid_t id = H5FDregister(&calls);
  return id;
}

}  // namespace

void SparseFile::write(std::int64_t first, std::span<const std::byte> bytes) {
  for_each_block(first, bytes,
                 [&](std::int64_t number, std::int64_t at, std::span<const std::byte> part) {
                   std::vector<std::byte>& block = blocks_[number];
                   block.resize(block_bytes);
                   std::ranges::copy(part, block.begin() + at);
                 });
  length_ = std::max(length_, first + std::int64_t(bytes.size()));
}

void SparseFile::read(std::int64_t first, std::span<std::byte> bytes) const {
  for_each_block(first, bytes,
                 [&](std::int64_t number, std::int64_t at, std::span<std::byte> part) {
                   const auto block = blocks_.find(number);
                   if (block == blocks_.end())
                     std::ranges::fill(part, std::byte{});
                   else
                     std::copy_n(block->second.begin() + at, part.size(), part.begin());
                 });
}

hid_t create_hdf5(SparseFile& file) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  SparseFile* const info = &file;
  const hid_t created = H5Pset_driver(access, driver(), static_cast<const void*>(&info)) < 0
                            ? -1
                            : H5Fcreate("in memory", H5F_ACC_TRUNC, H5P_DEFAULT, access);
  H5Pclose(access);
  return created;
}

}  // namespace brume::io
