/// @file The input deck: everything a job is asked to do, typed and checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deck/schema.hpp"

namespace brume::deck {

/// How rotary angles are stretched for sequences longer than those of an earlier training.
struct RopeScalingKeys {
  std::string kind = "none";  ///< none | linear | llama3 | yarn
  double factor = 1.0;
  double low_freq_factor = 1.0;  ///< llama3 only, like the next one
  double high_freq_factor = 4.0;
  int original_seq_len = 8192;  ///< llama3 and yarn only
  double beta_fast = 32.0;      ///< yarn only, like all that follow
  double beta_slow = 1.0;
  bool truncate = true;
  double attention_factor = 0.0;  ///< 0: by factor and the two scales
  double mscale = 0.0;            ///< 0: not given, like the next one
  double mscale_all_dim = 0.0;
};

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

struct ModelKeys {
  std::string config;        ///< config.json of a Hugging Face model; the keys given beside it win
  std::string config_place;  ///< not a key itself: where `config` got its value
  std::string weights;       ///< directory that a new training takes its weights from; empty: none
  std::string family = "gpt";
  int num_layers = 0;  ///< may be 0, like the next ones, if `config` gives it
  int hidden_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;            ///< 0: num_heads
  int head_dim = 0;                ///< 0: hidden_size / num_heads
  int kv_lora_rank = 0;            ///< features that keys and values are made from; 0: the stream's
  int q_lora_rank = 0;             ///< features that queries are made from; 0: the stream's
  int v_head_dim = 0;              ///< features of a value; 0: head_dim
  int ffn_size = 0;                ///< 0: 4 hidden_size
  int num_experts = 0;             ///< a layer's, instead of an MLP; 0: none
  int first_dense_layers = 0;      ///< number of first layers with an MLP, not experts
  int experts_per_token = 2;       ///< experts that a token goes through
  int expert_ffn_size = 0;         ///< 0: ffn_size
  int shared_expert_ffn_size = 0;  ///< inner width; 0: no expert that every token passes
  bool shared_expert_gate = false;
  std::string router = "softmax";  ///< softmax | sigmoid
  bool normalize_topk = true;      ///< a token's gates sum to 1, before they are scaled
  double routed_scale = 1.0;       ///< factor of gates
  int expert_groups = 1;
  int groups_per_token = 1;
  std::string balance = "none";  ///< none | bias
  double balance_rate = 0.001;   ///< bias only
  double balance_loss = 0.0;
  double z_loss = 0.0;
  double rank_load_factor = 1.3;  ///< expected
  int seq_len = 0;                ///< tokens
  int vocab_size = 0;
  bool tied_head = true;          ///< the output head shares the token embedding's weights
  bool qkv_bias = true;           ///< but for gpt, neox and gpt_oss: false, unless given
  bool linear_bias = true;        ///< bias of the other linear layers
  int layer_norms = 0;            ///< norms a layer has; 0: 1 for falcon, else 2
  bool qk_norm = false;           ///< queries and keys are normalised, each head alone
  bool qk_norm_joint = false;     ///< ... instead all heads together
  bool parallel_residual = true;  ///< neox: attention and MLP read the same input
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  int rotary_dim = 0;  ///< features of a head that positions turn; 0: all
  int window = 0;      ///< keys that a query of a windowed layer sees, its own included; 0: all
  std::vector<std::string> layer_kinds;  ///< full | window, which layers take in turn; empty: all
                                         ///< window where that is given
  double window_rope_theta = 0.0;        ///< windowed layers, unscaled; 0: as the others
  RopeScalingKeys rope_scaling;
  double query_scalar = 0.0;   ///< scores are divided by its root; 0: head_dim
  double attention_cap = 0.0;  ///< c, scores become c tanh(score / c); 0: they stay
  double logits_cap = 0.0;     ///< the same of logits
  double dropout = 0.0;
  double init_std = 0.02;
  std::string quantization = "none";            ///< none | int8 | nf4
  bool isolated = false;                        ///< not a key itself: data.documents is "isolate"
  std::vector<ParameterGroupKeys> groups = {};  ///< not a key itself: training.optimizer.groups
  std::string optimizer = "adamw";              ///< not a key itself: training.optimizer.name
  std::string moments = "fp32";                 ///< ... training.optimizer.moments
  AdapterKeys adapter = {};                     ///< not a key itself: training.adapter
  bool pairs = false;                           ///< ... training.preference.beta is above 0
  std::vector<std::string> given;               ///< not a key itself: those the deck gave a value
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

struct DataKeys {
  std::string train;               ///< one file, or
  std::vector<std::string> files;  ///< several, whose samples are mixed
  std::vector<double> weights;     ///< mixture weights of the files; empty: their sizes
  std::string valid;               ///< empty: no validation
  std::string order = "shuffled";  ///< sequential | shuffled
  std::string documents = "join";  ///< join | isolate
  int begin_token = -1;  ///< first token of each document, for files without boundaries; -1: none
  int end_token = -1;    ///< the same
  int eval_every = 0;    ///< iterations; 0: at the end only
  int eval_sequences = 64;
};

inline constexpr std::size_t most_groups = 4;  ///< largest number of groups

/// A level of the network above nodes: rails, leaves, pods.
struct LevelKeys {
  int nodes = 1;  ///< number in each unit, one after the other
  double oversubscription =
      1.0;             ///< bandwidth of a unit's nodes together, over that to other units
  double hop_s = 0.0;  ///< time of a hop between units, beyond one between nodes

  bool operator==(const LevelKeys&) const = default;
};

/// Nodes that are alike.
struct GroupKeys {
  std::string name;  ///< empty where there is one group only
  int nodes = 1;
  int devices_per_node = 1;
  double memory_gib = 0.0;        ///< per device, what a plan may use
  double host_memory_gib = -1.0;  ///< per node, for what is offloaded
  double disk_gib = 0.0;          ///< per node, for what host memory does not hold
  std::string scratch;            ///< directory of the disk; empty: $TMPDIR, else /tmp
  std::string profile;            ///< empty: measured when needed and cached
  std::string machine;  ///< gives the keys above that are left out, and times to plan with
  std::string network;  ///< network between nodes; empty: the machine's own
  std::vector<LevelKeys>
      levels;  ///< levels of that network, the smallest units first; empty: its own
};

/// How devices of two groups reach each other.
struct LinkKeys {
  std::vector<std::string> between;  ///< names of two groups
  double gib_per_s = 0.0;            ///< bandwidth of a message between two devices
  double latency_s = 0.0;
};

/// One group by the keys of GroupKeys, or a list of groups.
struct ClusterKeys : GroupKeys {
  std::vector<GroupKeys> groups;  ///< empty: one, by the keys above
  std::vector<LinkKeys> links;    ///< others take the slower of both groups' links between nodes

  std::vector<GroupKeys> all_groups() const {
    return groups.empty() ? std::vector<GroupKeys>{*this} : groups;
  }
};

/// Each list is searched whole; one entry fixes the choice; an empty list searches all that make
/// sense.
struct SearchKeys {
  std::string trainer = "";  ///< target trainer, which must be able to run the plan
  std::vector<int> stages = {};
  std::vector<int> dp = {};
  std::vector<int> cp = {};
  std::vector<int> gather_keys = {};
  std::vector<int> tp = {};
  std::vector<int> ep = {};
  std::vector<int> dispatch_tokens = {};
  std::vector<int> microbatch = {};
  std::vector<int> run_ahead = {1, 2};
  std::vector<int> chunks = {};  ///< virtual stages per device, besides one
  /// No key: ranks that share a sequence repeat no key head, and have two parts of it each.
  bool paired_contexts = false;
  bool whole_rounds = false;  ///< no key: chunks only run ahead, where stages divide microbatches
  bool zero_bubble = true;    ///< backwards may be in two parts
  std::vector<int> zero_levels = {0, 1, 2, 3};
  bool shard_within_node = true;  ///< ZeRO may shard within each node, with replicas between them
  bool recompute = true;
  bool store = true;           ///< layers may keep what selective recomputation makes again
  bool store_rest = false;     ///< no key: all layers that are not recomputed are stored
  bool recompute_all = false;  ///< conventions "mist": every layer in every plan
  std::vector<double> weight_offload = {0.0, 0.5, 1.0};
  std::vector<double> grad_offload = {0.0, 0.5, 1.0};
  std::vector<double> optim_offload = {0.0, 0.5, 1.0};
  std::vector<double> act_offload = {0.0, 0.5, 1.0};
  std::vector<double> optim_disk = {0.0, 1.0};  ///< shares of the offloaded part, like the next one
  std::vector<double> act_disk = {0.0, 1.0};
  std::vector<double> host_update = {0.0};  ///< shares of the offloaded optimizer state
  bool lone_ends = true;                    ///< the first and the last stage may have no layer
  bool unequal_stages = true;  ///< stages may differ in devices, microbatch, dp, cp and tp
  double gap = 1e-6;           ///< the search may stop when no plan is faster by more
  double time_limit_s = 60.0;
  int simulate_top = 5;  ///< plans re-ranked by simulation
};

/// How plans are counted. "mist" is for comparisons with Mist's analyzer and tuner only; the keys
/// below it belong to it.
struct AnalysisKeys {
  std::string conventions = "default";
  std::string ends = "last_stage";  ///< b, dp, tp of embedding and head: last_stage | dp
  bool plain_attention = false;     ///< attention keeps its matrix of scores

  bool mist() const { return conventions == "mist"; }
};

struct OutputKeys {
  std::string directory = "runs/run";
  bool checkpoints = true;
  int checkpoint_every = 0;         ///< iterations; 0: by time
  double checkpoint_minutes = 0.0;  ///< 0: by steps or, without these too, as it costs least
  double mtbf_hours = 24.0;         ///< mean time between failures of the job
  double node_mtbf_hours = 0.0;     ///< ... of a node, in place of the job's; 0: not known
  double restart_minutes = 10.0;    ///< time from a failure to the next step
  int keep_last = 2;                ///< checkpoints
  int keep_every = 0;               ///< iterations; 0: none for ever
  bool keep_best = false;           ///< keep the checkpoint with the lowest validation loss
  int log_every = 1;
  bool trace = false;        ///< trace.json of the last step
  bool tensorboard = false;  ///< event files

  double job_mtbf_hours(int nodes) const {
    return node_mtbf_hours > 0.0 ? node_mtbf_hours / nodes : mtbf_hours;
  }
};

/// The answers that `plan --for generation` plans for.
struct GenerationKeys {
  int prompts = 1000;
  int prompt_tokens = 0;       ///< mean; 0: a quarter of model.seq_len
  int answer_tokens = 0;       ///< the same
  double first_token_s = 0.0;  ///< longest mean time to an answer's first token; 0: any
  double token_s = 0.0;        ///< longest mean time between two tokens; 0: any
};

/// One input deck. `schema()` is the one table of its keys.
struct Deck {
  ModelKeys model;
  TrainingKeys training;
  DataKeys data;
  ClusterKeys cluster;
  SearchKeys search;
  GenerationKeys generation = {};
  AnalysisKeys analysis;
  OutputKeys output;
};

const Schema<Deck>& schema();
const Schema<ModelKeys>& model_schema();
const Schema<SearchKeys>& search_schema();

/// Memory of the machine at hand, for decks that leave it out [GiB]; 0: they must say it.
struct MemoryAtHand {
  double node_gib = 0.0;  ///< host_memory_gib; memory_gib is an equal part of as much once more
  /// memory_gib instead: each rank of a job has so much. Without it the deck must be for the
  /// machine at hand, that is, name neither a profile nor a machine.
  double device_gib = 0.0;
};

/// Reads a deck, applies overrides in order, checks what single keys cannot show (for example that
/// num_heads divides hidden_size).
///
/// model.config is looked for beside the deck, a profile there first and then in the working
/// directory. All other paths, and all that overrides name, are relative to the working directory.
///
/// @param overrides  "key=value", as after --set
/// @throws Error(input)
Deck load(const std::string& path, const std::vector<std::string>& overrides = {},
          const MemoryAtHand& memory = {});
Deck parse(const std::string& text, const std::string& origin,
           const std::vector<std::string>& overrides = {}, const MemoryAtHand& memory = {});

}  // namespace brume::deck
