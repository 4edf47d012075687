/// @file What a user sees of what is refused.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.hpp"

namespace brume::test {

/// The message of the refusal; every one must be an Error(expected) of one line.
template <typename Action>
std::string refusal(Action action, Failure expected = Failure::input) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), expected);
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    return what;
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

}  // namespace brume::test
