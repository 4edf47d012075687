/// @file Keys of [training] and its tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace brume::deck {

/// Parameters that are updated in a way of their own.
struct ParameterGroupKeys {
  std::string pattern;         ///< pattern of parameter names
  double lr_scale = 1.0;       ///< factor of the learning rate
  double weight_decay = -1.0;  ///< negative: as without a group
  bool frozen = false;         ///< not trained: no gradient, no optimizer state
};

inline constexpr int largest_adapter_rank = 4096;

/// Targets whose terms have a rank or alpha of their own.
struct AdapterGroupKeys {
  std::string pattern;  ///< pattern of linear layers' names
  int rank = 0;         ///< 0: as without a group, like alpha
  double alpha = 0.0;
};

/// Trained terms of low rank, added to frozen linear layers.
struct AdapterKeys {
  int rank = 0;                           ///< 0: no adapter
  double alpha = 0.0;                     ///< 0: rank
  std::string scaling = "standard";       ///< standard: alpha / rank | rslora: alpha / sqrt(rank)
  std::vector<std::string> targets = {};  ///< patterns of linear layers' names; empty: all
  std::vector<int> layers = {};           ///< layers whose terms are trained; empty: all
  std::vector<std::string> modules_to_save = {};  ///< patterns of modules that are trained whole
  std::string weights = {};                       ///< directory of PEFT's files; empty: random
  std::vector<AdapterGroupKeys> groups = {};
};

/// Training on pairs of answers, of which one is preferred.
struct PreferenceKeys {
  double beta = 0.0;             ///< 0: no training on pairs
  std::string loss = "sigmoid";  ///< sigmoid | ipo
  double label_smoothing = 0.0;  ///< sigmoid only
};

/// Answers to prompts while a model is trained.
struct SamplesKeys {
  std::string prompts;        ///< file; empty: none
  int every = 100;            ///< steps; 0: only at the end
  int max_tokens = 64;        ///< longest answer
  double temperature = 0.0;   ///< 0: always the most likely token
  int top_k = 0;              ///< 0: all
  double top_p = 1.0;         ///< 1: all
  std::int64_t seed = 1;      ///< seed of drawn tokens
  std::string tokenizer;      ///< file or directory; empty: that which is kept with the weights
  std::string chat_template;  ///< file; empty: the tokenizer's own

  bool operator==(const SamplesKeys&) const = default;
};

struct OptimizerKeys {
  std::string name = "adamw";
  double lr = 3e-4;
  std::string schedule = "cosine";  ///< lr after warm-up: cosine | linear | constant | wsd
  double min_lr_ratio = 0.1;        ///< share of lr at the last step
  int warmup_steps = 0;
  int decay_steps = 0;  ///< wsd only; 0: a tenth of all
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;        ///< 0: no clipping
  std::string moments = "fp32";  ///< fp32 | bf16
  double momentum = 0.95;        ///< muon only, as the next two
  bool nesterov = true;
  std::string matrix_scale = "moonshot";  ///< moonshot | spectral | jordan | rms
  std::vector<ParameterGroupKeys> groups;
};

struct TrainingKeys {
  // The length, by one of these:
  int steps = 0;
  double tokens = 0.0;
  double epochs = 0.0;
  int global_batch = 0;  ///< sequences an iteration
  std::string precision = "fp32";
  bool tf32 = false;        ///< products of fp32 may round their factors to TF32
  double loss_scale = 0.0;  ///< a power of two; 0: dynamic in fp16, none else
  std::int64_t seed = 1;
  std::string on_nonfinite = "skip";  ///< skip | rollback | stop
  int max_skipped = 10;               ///< steps in a row
  int compare_replicas_every = 100;   ///< iterations; 0: never
  double silence_limit_s = 30.0;      ///< longest time without a heartbeat or a finished task
  OptimizerKeys optimizer;
  AdapterKeys adapter;
  PreferenceKeys preference = {};
  SamplesKeys samples = {};
};

}  // namespace brume::deck
