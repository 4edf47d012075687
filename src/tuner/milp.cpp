/// @file The inter-stage mixed-integer program, and the one door to GLPK.
#include <glpk.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <map>

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

/// Binaries: one for each (stage, number of layers) and one for each point; continuous: the slowest
/// stage's time and the exposed delta. Times are in units of `unit_s`, so numbers lie near one.
class Formulation {
 public:
  Formulation(const Pipeline& pipeline, double unit_s) : pipeline_(pipeline), unit_s_(unit_s) {
    slowest_ = program_.add_column(pipeline.microbatches - 1, false);
    exposed_ = program_.add_column(1.0, false);
    for (const auto& points : pipeline.points) {
      std::vector<int>& columns = chosen_.emplace_back();
      for (const Point& point : points)
        columns.push_back(program_.add_column(point.stable_s / unit_s_, true));
    }
    add_layer_rows();
    for (int stage = 0; stage < pipeline.num_stages(); ++stage) add_time_rows(stage);
    if (pipeline.host_matters) add_host_rows();
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
    for (std::size_t stage = 0; stage < chosen_.size(); ++stage)
      for (std::size_t k = 0; k < chosen_[stage].size(); ++k)
        if (answer.values[std::size_t(chosen_[stage][k]) - 1] > 0.5)
          stages.push_back(pipeline_.points[stage][k]);
    return stages;
  }

 private:
  /// Each stage has one number of layers and one point of that number; layers add up.
  void add_layer_rows() {
    Row total{.type = GLP_FX, .bound = double(pipeline_.num_layers)};
    for (std::size_t stage = 0; stage < chosen_.size(); ++stage) {
      std::map<int, int> with_layers;  // column by number of layers
      Row one{.type = GLP_FX, .bound = 1.0};
      std::map<int, Row> points_of;
      for (std::size_t k = 0; k < chosen_[stage].size(); ++k) {
        const int layers = pipeline_.points[stage][k].layers;
        if (!with_layers.contains(layers)) {
          const int column = with_layers[layers] = program_.add_column(0.0, true);
          one.add(column, 1.0);
          total.add(column, layers);
          points_of[layers] = Row().add(column, -1.0);
        }
        points_of[layers].add(chosen_[stage][k], 1.0);
      }
      program_.rows.push_back(std::move(one));
      for (auto& [layers, row] : points_of) program_.rows.push_back(std::move(row));
    }
    program_.rows.push_back(std::move(total));
  }

  /// slowest >= t_i; exposed >= d_i - sum_{j<i} t_j.
  void add_time_rows(int stage) {
    const auto s = std::size_t(stage);
    Row slowest{.type = GLP_LO};
    slowest.add(slowest_, 1.0);
    Row exposed{.type = GLP_LO};
    exposed.add(exposed_, 1.0);
    for (std::size_t k = 0; k < chosen_[s].size(); ++k) {
      slowest.add(chosen_[s][k], -pipeline_.points[s][k].stable_s / unit_s_);
      exposed.add(chosen_[s][k], -pipeline_.points[s][k].delta_s / unit_s_);
    }
    for (std::size_t j = 0; j < s; ++j)
      for (std::size_t k = 0; k < chosen_[j].size(); ++k)
        exposed.add(chosen_[j][k], pipeline_.points[j][k].stable_s / unit_s_);
    program_.rows.push_back(std::move(slowest));
    program_.rows.push_back(std::move(exposed));
  }

  void add_host_rows() {
    const auto per_node = std::size_t(pipeline_.stages_per_node);
    for (std::size_t first = 0; first < chosen_.size(); first += per_node) {
      Row row{.type = GLP_UP, .bound = 1.0};
      for (std::size_t stage = first; stage < std::min(first + per_node, chosen_.size()); ++stage)
        for (std::size_t k = 0; k < chosen_[stage].size(); ++k)
          if (const double bytes = pipeline_.ranks_on_node * pipeline_.points[stage][k].host_bytes;
              bytes > 0.0)
            row.add(chosen_[stage][k], bytes / std::max(pipeline_.host_limit_bytes, 1.0));
      program_.rows.push_back(std::move(row));
    }
  }

  const Pipeline& pipeline_;
  double unit_s_;
  Program program_;
  int slowest_, exposed_;
  std::vector<std::vector<int>> chosen_;  ///< [stage][point] column
};

}  // namespace

Solution solve_milp(const Pipeline& pipeline, const Solution& known, double time_limit_s,
                    int& solves) {
  double unit_s = 0.0;
  for (const auto& points : pipeline.points)
    for (const Point& point : points) unit_s = std::max(unit_s, point.stable_s);
  Formulation formulation(pipeline, unit_s);
  // Faster by less than this is not told apart from as fast.
  const double least_gain_s = known.best ? 1e-7 * known.best->iteration_s : 0.0;
  if (known.best) formulation.cut(known.best->iteration_s - least_gain_s);
  formulation.program().time_limit_ms = int(std::clamp(time_limit_s * 1000.0, 1.0, 1e9));
  ++solves;
  const Answer answer = solve(formulation.program());

  Solution solution = known;
  if (answer.feasible) {
    const std::vector<Point> stages = formulation.read(answer);
    const double iteration_s = iteration_time(stages, pipeline.microbatches);
    if (int(stages.size()) == pipeline.num_stages() && fits_host(pipeline, stages) &&
        (!known.best || iteration_s < known.best->iteration_s))
      solution.best = Choice{stages, iteration_s};
  }
  const double proven_s =
      answer.proven && !answer.feasible && known.best ? known.best->iteration_s - least_gain_s
      : answer.proven && !answer.feasible             ? std::numeric_limits<double>::infinity()
                                                      : answer.bound * unit_s;
  solution.bound_s = std::max(known.bound_s, proven_s);
  if (solution.best) solution.bound_s = std::min(solution.bound_s, solution.best->iteration_s);
  return solution;
}

}  // namespace brume::tuner
