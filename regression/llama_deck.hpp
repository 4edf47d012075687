/// @file A deck of a Llama that other trainers know, for tests of plans that go out to them.
#pragma once

namespace brume::test {

inline constexpr const char* llama_deck = R"([model]
family       = "llama"
num_layers   = 32
hidden_size  = 4096
num_heads    = 32
num_kv_heads = 8
ffn_size     = 14336
seq_len      = 8192
vocab_size   = 128256
tied_head    = false
[training]
steps        = 100
global_batch = 64
precision    = "bf16"
[data]
train = "t"
[cluster]
nodes            = 2
devices_per_node = 8
memory_gib       = 80
host_memory_gib  = 100
)";

}  // namespace brume::test
