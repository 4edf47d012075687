#include "base/error.hpp"

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <system_error>

namespace brume {
namespace {

TEST(Error, AnErrorMeansItself) {
  const Error meant = error_of(Error(Failure::storage, "a full disk"));
  EXPECT_EQ(meant.failure(), Failure::storage);
  EXPECT_EQ(std::string(meant.what()), "a full disk");
}

TEST(Error, MemoryAndThreadsAreResources) {
  const Error memory = error_of(std::bad_alloc());
  EXPECT_EQ(memory.failure(), Failure::resource);
  EXPECT_EQ(std::string(memory.what()).find("memory ran out"), 0u);

  const Error thread =
      error_of(std::system_error(make_error_code(std::errc::resource_unavailable_try_again)));
  EXPECT_EQ(thread.failure(), Failure::resource);
  EXPECT_EQ(std::string(thread.what()).find("a thread could not be started"), 0u);
}

TEST(Error, AllElseIsABug) {
  const Error meant = error_of(std::logic_error("odd"));
  EXPECT_EQ(meant.failure(), Failure::bug);
  EXPECT_EQ(std::string(meant.what()), "odd");
  EXPECT_EQ(error_of(std::system_error(make_error_code(std::errc::io_error))).failure(),
            Failure::bug);
}

}  // namespace
}  // namespace brume
