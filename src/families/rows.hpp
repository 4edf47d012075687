/// @file The row of each family, and rows that several families share.
#pragma once

#include <string>

#include "families/families.hpp"

namespace brume::families {

using Kind = Limit::Kind;

Family gpt();
Family llama();
Family falcon();
Family neox();
Family gemma();
Family gpt_oss();

/// Names of tensors in files of Llama and families with its parts.
TensorNames llama_tensors();

/// Adds Llama's architectures whose layers have experts.
void add_llama_experts(Family& made);

Limit one_rope_theta();

/// Ends messages about other biases of a llama.
inline constexpr const char* only_qkv_biases =
    ": a llama's only biases here are those of queries, keys and values";

}  // namespace brume::families
