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
  std::vector<double> cost;  ///< by column, from 0
  std::vector<char> binary;  ///< by column
  std::vector<Row> rows;
  int time_limit_ms = 0;

  int add_column(double column_cost, bool is_binary) {
    cost.push_back(column_cost);
    binary.push_back(is_binary ? 1 : 0);
    return int(cost.size());
  }
};

struct Answer {
  bool proven = false;  ///< optimal, or nothing feasible
  bool feasible = false;
  double bound;                ///< of the objective
  std::vector<double> values;  ///< by column, from 0
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

/// Only pointers and numbers live here: an abort jumps over this frame without destructors.
void run(const Program& program, Answer& answer, double* values, double* bound) {
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
  const int failure = glp_intopt(problem, &parameters);
  const int status = glp_mip_status(problem);
  answer.feasible = status == GLP_OPT || status == GLP_FEAS;
  answer.proven =
      (failure == 0 && (status == GLP_OPT || status == GLP_NOFEAS)) || failure == GLP_ENOPFS;
  if (answer.feasible)
    for (int c = 1; c <= int(program.cost.size()); ++c) values[c - 1] = glp_mip_col_val(problem, c);
  if (answer.proven && answer.feasible) *bound = glp_mip_obj_val(problem);
  glp_delete_prob(problem);
}

Answer solve(const Program& program) {
  Answer answer;
  answer.values.assign(program.cost.size(), 0.0);
  answer.bound = -std::numeric_limits<double>::infinity();
  std::jmp_buf here;
  if (setjmp(here) == 0) {
    glp_error_hook(leave, &here);
    run(program, answer, answer.values.data(), &answer.bound);
  } else {
    answer.feasible = answer.proven = false;
    answer.bound = -std::numeric_limits<double>::infinity();
  }
  // Frees what an abort left half-made, and forgets the hook into this frame.
  glp_free_env();
  return answer;
}

// --- the program --------------------------------------------------------------------------------

/// Binaries: one for each (stage, mesh size and number of layers) and one for each point;
/// continuous: the slowest stage's time and the exposed delta. Times are in units of `unit_s`, so
/// numbers lie near one.
class Formulation {
 public:
  Formulation(const Pipeline& pipeline, double unit_s) : pipeline_(pipeline), unit_s_(unit_s) {
    slowest_ = program_.add_column(pipeline.frame.microbatches - 1, false);
    exposed_ = program_.add_column(1.0, false);
    for (auto cells = pipeline.cells.rbegin(); cells != pipeline.cells.rend(); ++cells) {
      std::vector<Chosen>& stage = chosen_.emplace_back();
      for (const Cell& cell : *cells)
        for (const Point& point : cell.points)
          stage.push_back({program_.add_column(point.stable_s / unit_s_, true), &point, &cell});
    }
    add_sum_rows();
    if (pipeline.neighbours_matter) add_neighbour_rows();
    for (std::size_t stage = 0; stage < chosen_.size(); ++stage) add_time_rows(stage);
  }

  /// Only choices faster than this.
  void cut(double below_s) {
    Row row{.type = GLP_UP, .bound = below_s / unit_s_};
    for (std::size_t c = 0; c < program_.cost.size(); ++c)
      if (program_.cost[c] != 0.0) row.add(int(c) + 1, program_.cost[c]);
    program_.rows.push_back(std::move(row));
  }

  Program& program() { return program_; }

  std::vector<Point> read(const Answer& answer) const {
    std::vector<Point> stages;
    for (const auto& stage : chosen_)
      for (const Chosen& chosen : stage)
        if (answer.values[std::size_t(chosen.column) - 1] > 0.5) stages.push_back(*chosen.point);
    return stages;
  }

 private:
  struct Chosen {
    int column;
    const Point* point;
    const Cell* cell;
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
        const Key key{mesh.devices(), chosen.point->layers, mesh.group};
        if (!group.contains(key)) {
          const int column = group[key] = program_.add_column(0.0, true);
          one.add(column, 1.0);
          layers.add(column, chosen.point->layers);
          devices[std::size_t(mesh.group)].add(column, mesh.devices());
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

  /// A stage has the neighbours that its point counts on.
  void add_neighbour_rows() {
    const int groups = pipeline_.cluster.num_groups();
    for (std::size_t stage = 0; stage + 1 < chosen_.size(); ++stage)
      for (int group = 0; group < groups; ++group)
        for (int next = 0; next < groups; ++next) {
          Row row{.type = GLP_FX, .bound = 0.0};
          for (const Chosen& c : chosen_[stage])
            if (pipeline_.layout(*c.cell).group == group && c.cell->after == next)
              row.add(c.column, 1.0);
          for (const Chosen& c : chosen_[stage + 1])
            if (pipeline_.layout(*c.cell).group == next && c.cell->before == group)
              row.add(c.column, -1.0);
          program_.rows.push_back(std::move(row));
        }
  }

  /// slowest >= t_i; exposed >= d_i - sum_{j<i} t_j.
  void add_time_rows(std::size_t stage) {
    Row slowest{.type = GLP_LO};
    slowest.add(slowest_, 1.0);
    Row exposed{.type = GLP_LO};
    exposed.add(exposed_, 1.0);
    for (const Chosen& chosen : chosen_[stage]) {
      slowest.add(chosen.column, -chosen.point->stable_s / unit_s_);
      exposed.add(chosen.column, -chosen.point->delta_s / unit_s_);
    }
    for (std::size_t j = 0; j < stage; ++j)
      for (const Chosen& chosen : chosen_[j])
        exposed.add(chosen.column, chosen.point->stable_s / unit_s_);
    program_.rows.push_back(std::move(slowest));
    program_.rows.push_back(std::move(exposed));
  }

  const Pipeline& pipeline_;
  double unit_s_;
  Program program_;
  int slowest_, exposed_;
  std::vector<std::vector<Chosen>> chosen_;  ///< [stage]
};

/// Whether every mesh lies within a node or begins at one, and no node is used in part.
bool packs(const Pipeline& pipeline, const std::vector<Point>& stages) {
  const auto& groups = pipeline.cluster.groups;
  std::vector<int> first(groups.size(), 0);
  for (const Point& point : stages) {
    const Layout& mesh = pipeline.layout(point);
    const auto g = std::size_t(mesh.group);
    if (!may_begin(first[g], mesh.devices(), groups[g].devices_per_node)) return false;
    first[g] += mesh.devices();
  }
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (first[g] % groups[g].devices_per_node != 0) return false;
  return true;
}

}  // namespace

Proof solve_milp(const Pipeline& pipeline, double known_s, double time_limit_s) {
  double unit_s = 0.0;
  for (const auto& cells : pipeline.cells)
    for (const Cell& cell : cells)
      for (const Point& point : cell.points) unit_s = std::max(unit_s, point.stable_s);
  if (unit_s == 0.0) return {};
  Formulation formulation(pipeline, unit_s);
  // Faster by less than this is not told apart from as fast.
  const double least_gain_s = 1e-7 * known_s;
  formulation.cut(known_s - least_gain_s);
  formulation.program().time_limit_ms = int(std::clamp(time_limit_s * 1000.0, 1.0, 1e9));
  const Answer answer = solve(formulation.program());

  Proof proof;
  proof.bound_s =
      answer.proven && !answer.feasible ? known_s - least_gain_s : answer.bound * unit_s;
  if (!answer.feasible) return proof;
  std::vector<Point> stages = formulation.read(answer);
  if (int(stages.size()) != pipeline.frame.num_stages || !packs(pipeline, stages) ||
      !fits_host(pipeline, stages))
    return proof;
  const double iteration_s = iteration_time(stages, pipeline.frame.microbatches);
  if (iteration_s < known_s) proof.better = Choice{std::move(stages), iteration_s};
  return proof;
}

}  // namespace brume::tuner
