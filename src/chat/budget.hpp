/// @file The work and memory that a template may take.
#pragma once

#include <cstddef>

namespace brume::chat {

/// Begins the budget of a template, on this thread.
void begin_budget();
/// Says that all that was taken so far is the template's input: a larger one may take more.
void end_input();

/// Takes bytes that are made, or looked at, from the budget; none are given back.
/// @throws Error(input) when it is used up
void charge(std::size_t bytes);

/// Requires that a text of so many bytes is not too large. @throws Error(input)
void require_size(std::size_t bytes);

}  // namespace brume::chat
