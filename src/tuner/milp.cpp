/// @file The inter-stage mixed-integer program, and the one door to GLPK.
#include <glpk.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <map>
#include <tuple>
#include <utility>

#include "pipeline.hpp"

namespace brume::tuner {
namespace {

/// A row: bounds and coefficients by column (from 1, as GLPK counts).
struct Row {
  int type = GLP_FX;  ///< or GLP_LO, GLP_UP
  double bound = 0.0;
  // GLPK reads both from index 1.
  std::vector<int> columns{0};
  std::vector<double> values{0.0};

  Row& add(int column, double value) {
    columns.push_back(column);
    values.push_back(value);
    return *this;
  }
};

/// The program as plain data, made before GLPK is entered and read after it was left.
struct Program {
  std::vector<double> cost;  ///< [column - 1]
  std::vector<char> binary;  ///< [column - 1]
  std::vector<Row> rows;
  int time_limit_ms = 0;

  int add_column(double column_cost, bool is_binary) {
    cost.push_back(column_cost);
    binary.push_back(is_binary ? 1 : 0);
    return int(cost.size());
  }
};

// --- GLPK ---------------------------------------------------------------------------------------

void leave(void* where) { std::longjmp(*static_cast<std::jmp_buf*>(where), 1); }

void note_bound(glp_tree* tree, void* bound) {
  if (const int node = glp_ios_best_node(tree); node != 0)
    *static_cast<double*>(bound) = glp_ios_node_bound(tree, node);
}

glp_prob* load(const Program& program) {
  glp_prob* problem = glp_create_prob();
  glp_set_obj_dir(problem, GLP_MIN);
  glp_add_cols(problem, int(program.cost.size()));
  for (int c = 1; c <= int(program.cost.size()); ++c) {
    glp_set_obj_coef(problem, c, program.cost[std::size_t(c) - 1]);
    if (program.binary[std::size_t(c) - 1])
      glp_set_col_kind(problem, c, GLP_BV);
    else
      glp_set_col_bnds(problem, c, GLP_LO, 0.0, 0.0);
  }
  glp_add_rows(problem, int(program.rows.size()));
  for (int r = 1; r <= int(program.rows.size()); ++r) {
    const Row& row = program.rows[std::size_t(r) - 1];
    glp_set_row_bnds(problem, r, row.type, row.bound, row.bound);
    glp_set_mat_row(problem, r, int(row.columns.size()) - 1, row.columns.data(), row.values.data());
  }
  return problem;
}

/// Only pointers and numbers live here: an abort jumps over this configuration without destructors.
void run(const Program& program, double* bound) {
  glp_term_out(GLP_OFF);
  glp_prob* problem = load(program);
  glp_iocp parameters;
  glp_init_iocp(&parameters);
  parameters.presolve = GLP_ON;
  parameters.msg_lev = GLP_MSG_OFF;
  parameters.tm_lim = program.time_limit_ms;
  parameters.mip_gap = 1e-7;
  parameters.cb_func = note_bound;
  parameters.cb_info = bound;
  if (glp_intopt(problem, &parameters) == 0 && glp_mip_status(problem) == GLP_OPT)
    *bound = glp_mip_obj_val(problem);
  glp_delete_prob(problem);
}

/// The least objective that is possible, as far as GLPK has proven it.
double solve(const Program& program) {
  double bound = -infinity;
  std::jmp_buf here;
  if (setjmp(here) == 0) {
    glp_error_hook(leave, &here);
    run(program, &bound);
  } else {
    bound = -infinity;
  }
  // Frees what an abort left half-made, and forgets the hook into this configuration.
  glp_free_env();
  return bound;
}

// --- the program --------------------------------------------------------------------------------

/// Binaries: one for each (stage, mesh size and number of layers) and one for each point. The other
/// columns are the time of an iteration, and by how much the stream between two stages is slower
/// than the fastest one. Times are in units of `unit_s`, so numbers lie near one.
class Formulation {
 public:
  Formulation(const Pipeline& pipeline, double unit_s) : pipeline_(pipeline), unit_s_(unit_s) {
    iteration_ = program_.add_column(1.0, false);
    for (auto cells = pipeline.cells.rbegin(); cells != pipeline.cells.rend(); ++cells) {
      std::vector<Chosen>& stage = chosen_.emplace_back();
      for (const Cell& cell : *cells)
        for (const Point& point : cell.points)
          stage.push_back({program_.add_column(0.0, true), &point});
    }
    add_sum_rows();
    for (std::size_t stage = 0; stage + 1 < chosen_.size(); ++stage) add_message_rows(stage);
    for (std::size_t stage = 0; stage < chosen_.size(); ++stage) add_time_rows(stage);
  }

  Program& program() { return program_; }

 private:
  struct Chosen {
    int column;
    const Point* point;
  };

  /// Each stage has one mesh size and number of layers and one point of these; both add up. Of
  /// several groups' devices some may stay unused.
  void add_sum_rows() {
    Row layers{.type = GLP_FX, .bound = double(pipeline_.num_layers)};
    std::vector<Row> devices;  // [group]
    for (const hardware::NodeGroup& group : pipeline_.cluster.groups)
      devices.push_back({.type = pipeline_.cluster.num_groups() == 1 ? GLP_FX : GLP_UP,
                         .bound = double(group.devices())});
    using Key = std::tuple<int, int, int>;  // devices, layers, group
    for (const auto& stage : chosen_) {
      std::map<Key, int> group;  // column
      std::map<Key, Row> points_of;
      Row one{.type = GLP_FX, .bound = 1.0};
      for (const Chosen& chosen : stage) {
        const Layout& mesh = pipeline_.layout(*chosen.point);
        const Key key{mesh.devices(), chosen.point->layers(), mesh.group};
        if (!group.contains(key)) {
          const int column = group[key] = program_.add_column(0.0, true);
          one.add(column, 1.0);
          layers.add(column, chosen.point->layers());
          devices[mesh.group].add(column, mesh.devices());
          points_of[key] = Row().add(column, -1.0);
        }
        points_of[key].add(chosen.column, 1.0);
      }
      program_.rows.push_back(std::move(one));
      for (auto& [key, row] : points_of) program_.rows.push_back(std::move(row));
    }
    program_.rows.push_back(std::move(layers));
    for (Row& row : devices) program_.rows.push_back(std::move(row));
  }

  /// slower >= (m(a, b) - least m) (x_a + y_b - 1) for layouts a of a stage and b of the next one,
  /// x and y telling whether they are chosen.
  void add_message_rows(std::size_t stage) {
    const int slower = program_.add_column(0.0, false);
    slower_.push_back(slower);
    const auto columns_of = [&](std::size_t of) {
      std::map<int, std::vector<int>> columns;  // by layout
      for (const Chosen& chosen : chosen_[of])
        columns[chosen.point->layout].push_back(chosen.column);
      return columns;
    };
    const auto next = columns_of(stage + 1);
    for (const auto& [from, these] : columns_of(stage))
      for (const auto& [to, those] : next) {
        const double by =
            (pipeline_.messages.stream_s(from, to) - pipeline_.messages.least_stream_s()) / unit_s_;
        if (by <= 0.0) continue;
        Row row{.type = GLP_LO, .bound = -by};
        row.add(slower, 1.0);
        for (const auto* columns : {&these, &those})
          for (const int column : *columns) row.add(column, -by);
        program_.rows.push_back(std::move(row));
      }
  }

  /// Lower bound on the iteration, without the stages before this one.
  struct Terms {
    double stable, less;  ///< this stage's stable time, and what its shortest trip is less
    double later;         ///< round trips through all later stages
    double next = 0.0;    ///< and through the next one alone
    bool whole = true;    ///< includes the extra time of its first and last pass
  };

  /// The terms of pipeline.hpp's maximum that stand for one stage: iteration >= each of them.
  void add_time_rows(std::size_t stage) {
    const PipelineConfig& config = pipeline_.config;
    const int after = config.num_stages - 1 - int(stage), in_flight = int(config.in_flight(after));
    const double trips = tuner::trips(config, after), all = config.microbatches;
    add_time_row(stage, {.stable = all, .less = 0.0, .later = 0.0});
    add_time_row(stage, {.stable = all - in_flight, .less = 0.0, .later = 1.0});
    if (in_flight + 1 < config.microbatches)
      add_time_row(stage, {.stable = all - in_flight, .less = 1.0, .later = 2.0});
    add_time_row(stage, {.stable = trips, .less = trips - 1.0, .later = trips});
    if (after > 0) {
      const Turns turns(config, after);
      const double own = turns.count + turns.later_flight;
      add_time_row(
          stage,
          {.stable = own, .less = own, .later = 0.0, .next = double(turns.count), .whole = false});
    }
    add_alone_row(stage);
  }

  /// iteration >= sum_{j<i} (w_j + 2 m_j) + stable t_i - less (t_i - r_i) + (w_i - t_i if whole)
  ///              + later sum_{j>i} (2 m_{j-1} + r_j) + next (2 m_i + r_{i+1})
  void add_time_row(std::size_t stage, const Terms& terms) {
    const double way_s = 2.0 * pipeline_.messages.least_stream_s();
    Row row{.type = GLP_LO};
    row.add(iteration_, 1.0);
    for (std::size_t j = 0; j < chosen_.size(); ++j) {
      const double trips = terms.later + (j == stage + 1 ? terms.next : 0.0);
      if (j > 0) {  // the messages before stage j
        const double ways = j <= stage ? 1.0 : trips;
        row.bound += ways * way_s / unit_s_;
        if (ways != 0.0) row.add(slower_[j - 1], -2.0 * ways);
      }
      for (const Chosen& chosen : chosen_[j]) {
        const Point& point = *chosen.point;
        const double seconds = j < stage    ? point.fill_s()
                               : j == stage ? terms.stable * point.stable_s -
                                                  terms.less * point.early_send_s +
                                                  (terms.whole ? point.delta_s : 0.0)
                                            : trips * point.shortest_s();
        if (seconds != 0.0) row.add(chosen.column, -seconds / unit_s_);
      }
    }
    program_.rows.push_back(std::move(row));
  }

  /// iteration >= (G - 1) t_i + what the stage takes once alone, or the last one a tied table's way
  void add_alone_row(std::size_t stage) {
    const bool sends_table = stage > 0 && stage + 1 == chosen_.size();
    Row row{.type = GLP_LO};
    row.add(iteration_, 1.0);
    for (const Chosen& chosen : chosen_[stage]) {
      const Point& point = *chosen.point;
      double seconds = point.standalone_s();
      if (sends_table)
        seconds = std::max(seconds, pipeline_.messages.tied_gradient_s(point.layout));
      seconds += (pipeline_.config.microbatches - 1) * point.stable_s;
      row.add(chosen.column, -seconds / unit_s_);
    }
    program_.rows.push_back(std::move(row));
  }

  const Pipeline& pipeline_;
  double unit_s_;
  Program program_;
  int iteration_;
  std::vector<int> slower_;                  ///< [stage] column of the messages behind it
  std::vector<std::vector<Chosen>> chosen_;  ///< [stage]
};

}  // namespace

double milp_bound_s(const Pipeline& pipeline, double time_limit_s) {
  double unit_s = 0.0;
  for (const auto& cells : pipeline.cells)
    for (const Cell& cell : cells)
      for (const Point& point : cell.points)
        unit_s = std::max(unit_s, pipeline.config.microbatches * point.stable_s);
  if (unit_s == 0.0) return -infinity;
  Formulation formulation(pipeline, unit_s);
  formulation.program().time_limit_ms = int(std::clamp(time_limit_s * 1000.0, 1.0, 1e9));
  return solve(formulation.program()) * unit_s;
}

}  // namespace brume::tuner
