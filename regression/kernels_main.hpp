/// @file The main of test programs whose process computes on one thread.
#pragma once

#include <gtest/gtest.h>

#include "kernels/types.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const brume::kernels::Runtime runtime(1);
  return RUN_ALL_TESTS();
}
