/// @file Published measurements as plans on machines that come with Brume.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "plan/plan.hpp"

namespace brume::perf {

/// A published measurement, and the plan of its layout.
struct Case {
  std::string id, source, machine, network, quantity, unit, recompute, differs;
  double value = 0.0;
  int gpus = 1;
  model::Config model;
  plan::Plan plan;
};

inline constexpr const char* unfused_attention = "no fused attention (its passes added)";
inline constexpr const char* first_flash_attention = "FlashAttention 1 (its rate counted)";

/// Share of an A100's peak that FlashAttention 1 reaches, forward and backward together. Their
/// FLOPs are 1 : 2.5.
/// @source Dao 2023, arXiv 2307.08691, section 1: 30-50 % forward, 25-35 % backward; the middles
inline constexpr double first_flash_attention_share = 3.5 / (1.0 / 0.40 + 2.5 / 0.30);

/// The machine that comes with Brume for a device; empty if none does.
std::string machine_for(const std::string& gpu);

/// Whether all that a source does otherwise is counted.
bool is_counted(const std::string& differs);

/// The model of an entry's sizes, gpt or llama.
model::Config model_of(const nlohmann::json& sizes, int seq_len, const std::string& precision);

/// @return none if no plan expresses the case, or no machine of Brume is its device
std::optional<Case> read(const nlohmann::json& entry);

/// Seconds an iteration; none where the quantity is no time.
std::optional<double> published_s(const Case& c);

bool is_state(const Case& c);

std::optional<double> published_bytes(const Case& c);

/// Weights, gradients and optimizer state of the first rank. Galvatron's FSDP keeps no weights of
/// 16 bits; its tensor parallelism (Megatron's) keeps the buffer that tokens are gathered in, in
/// its measurements of tp 4 and 8 of 4 bytes a token of the microbatch and hidden element.
double state_bytes(const Case& c);

/// The content of a published number of bytes.
std::string measure(const nlohmann::json& entry);

}  // namespace brume::perf
