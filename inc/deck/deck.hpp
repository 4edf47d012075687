/// @file The input deck: everything a job is asked to do, typed and checked.
#pragma once

#include <string>
#include <vector>

#include "deck/model_keys.hpp"
#include "deck/schema.hpp"
#include "deck/training_keys.hpp"

namespace brume::deck {

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
  std::vector<int> mlp_tiles = {};
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
