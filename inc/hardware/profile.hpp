/// @file Measured times of one machine: operators, links, copies, and how they slow each other
/// down.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "deck/schema.hpp"

namespace brume::hardware {

/// One measured operator. `kind` and `dims` as in model::Operator.
struct OperatorRow {
  std::string kind;
  std::vector<std::int64_t> dims;
  double forward_s = 0.0;
  double backward_s = 0.0;
};

/// One measured collective or message: `all_reduce`, `reduce_scatter`, `all_gather` or `send`.
struct LinkRow {
  std::string kind;
  int nodes = 1;           ///< nodes the group spans
  int ranks_per_node = 1;  ///< ranks of the group on each
  std::int64_t bytes = 0;  ///< of the whole buffer
  double time_s = 0.0;
};

/// One measured copy; `copy_in` host to device, `copy_out` device to host, all ranks of a node at
/// once.
struct CopyRow {
  std::string kind;
  std::int64_t bytes = 0;
  double time_s = 0.0;
};

/// What a profile is valid for; a cached one is used again only under an equal key.
struct ProfileKey {
  std::string processor;  ///< CPU or GPU
  std::string packages;   ///< versions that matter for speed
  int ranks_per_node = 1;
  int threads_per_rank = 1;
  std::string binding;  ///< how ranks are pinned, in words
  std::string model;    ///< the shapes that were measured
};

/// The four resources that work at once: compute, communication, host-to-device, device-to-host.
inline constexpr int num_resources = 4;

/// a[q][j]: how much slower resource q runs while j runs beside it; slowdown of q = 1 + sum_j
/// a[q][j].
struct Interference {
  std::array<std::array<double, num_resources>, num_resources> added{};

  /// Time until all four are done when started together [s].
  ///
  /// While the set Q is unfinished, each q in Q runs at 1 / (1 + sum_{j in Q} a[q][j]) of its
  /// speed.
  /// @param alone_s  time each would take by itself; 0: absent
  /// @source         Mist (EuroSys'25), interference model; pairwise-additive form
  double overlapped_s(const std::array<double, num_resources>& alone_s) const;

  /// The same, until each is done; 0 for absent ones.
  std::array<double, num_resources> done_s(const std::array<double, num_resources>& alone_s) const;
};

struct Profile {
  ProfileKey key;
  std::string origin;            ///< who measured what, when
  double flops_per_s = 0.0;      ///< measured large matrix product, per rank
  double bytes_per_s = 0.0;      ///< measured memory bandwidth, per rank
  double task_overhead_s = 0.0;  ///< per task: hand-over between channels
  std::vector<OperatorRow> operators;
  std::vector<LinkRow> links;
  std::vector<CopyRow> copies;
  std::vector<double> interference =
      std::vector<double>(num_resources * num_resources, 0.0);  ///< a, row by row

  Interference interference_model() const;
};

enum class Source { measured, interpolated, roofline };

struct Time {
  double seconds;
  Source source;
};

/// Looks an operator up: its row, else interpolated between rows of its kind that differ in one
/// dimension only, else flops / flops_per_s + bytes / bytes_per_s scaled by the efficiency that the
/// nearest row of its kind reached.
Time operator_time(const Profile& profile, const std::string& kind,
                   std::span<const std::int64_t> dims, bool backward, double flops, double bytes);

/// Time of a collective over a group, or of a message: linear between measured sizes, latency below
/// the smallest, bandwidth of the last two above the largest; a group shape that was not measured
/// takes the ring formula from the nearest one. 0 for a group of one.
double link_time(const Profile& profile, const std::string& kind, int nodes, int ranks_per_node,
                 double bytes);

double copy_time(const Profile& profile, const std::string& kind, double bytes);

const deck::Schema<Profile>& profile_schema();
Profile load_profile(const std::string& path);
/// Written under a temporary name and renamed: jobs that share a folder never see half a file.
void save_profile(const Profile& profile, const std::string& path);

}  // namespace brume::hardware
