/// @file Files of the kind that BRUME_KIND names, made by libFuzzer: each is read, or refused by an
/// Error. Right files of the kind are put into the first corpus folder of the command line.
#include <cstdlib>
#include <iostream>

#include "file_kinds.hpp"
#include "own_folder.hpp"

namespace {

using namespace brume;

test::FileKind kind;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  static const test::OwnFolder folder;
  const char* asked = std::getenv("BRUME_KIND");
  for (test::FileKind& known : test::FileKinds(folder.path()).all())
    if (asked != nullptr && known.name == asked)
      kind = std::move(known);
    else if (asked == nullptr)
      std::cout << known.name << "\n";
  if (asked == nullptr) std::exit(0);  // the kinds have been named
  if (!kind.read) {
    std::cerr << "BRUME_KIND: no kind of file is named " << asked << "\n";
    std::exit(2);
  }
  for (int i = 1; i < *count; ++i)
    if ((*arguments)[i][0] != '-') {
      for (std::size_t n = 0; n < kind.seeds.size(); ++n)
        test::put(test::fs::path((*arguments)[i]) / ("seed-" + std::to_string(n)), kind.seeds[n]);
      break;
    }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  try {
    kind.read(std::string(reinterpret_cast<const char*>(bytes), size));
  } catch (const Error& error) {
    if (error.failure() != Failure::input && error.failure() != Failure::storage) throw;
  }
  return 0;
}
