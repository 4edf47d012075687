/// @file Expressions over plan variables: built once, printed as formulas, evaluated for many
/// candidates.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brume::symbolic {

/// A named function of numbers, for what no formula gives: a measured table, the interference
/// model.
struct Function {
  std::string name;
  std::function<double(std::span<const double>)> value;
};

enum class Op { constant, variable, add, subtract, multiply, divide, max, min, floor, less, call };

/// An immutable expression; copies share their nodes.
class Expr {
 public:
  Expr(double constant = 0.0);
  static Expr variable(std::string name);
  static Expr call(std::shared_ptr<const Function> function, std::vector<Expr> arguments);

  /// Operations fold constants and drop neutral elements, so printed formulas stay short.
  friend Expr operator+(const Expr& a, const Expr& b);
  friend Expr operator-(const Expr& a, const Expr& b);
  friend Expr operator*(const Expr& a, const Expr& b);
  friend Expr operator/(const Expr& a, const Expr& b);
  friend Expr max(const Expr& a, const Expr& b);
  friend Expr min(const Expr& a, const Expr& b);
  friend Expr floor(const Expr& a);
  friend Expr less(const Expr& a, const Expr& b);  ///< 1 where a < b, else 0
  Expr& operator+=(const Expr& b) { return *this = *this + b; }

  std::string text() const;  ///< the formula, with as few brackets as needed

  /// @throws Error(bug) when a variable has no value
  double evaluate(const std::map<std::string, double, std::less<>>& values) const;

  struct Node;
  const Node& node() const { return *node_; }

 private:
  explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

struct Expr::Node {
  Op op;
  double constant = 0.0;
  std::string name;                          ///< name of a variable
  std::shared_ptr<const Function> function;  ///< function of a call
  std::vector<Expr> arguments;
};

Expr ceil(const Expr& a);                                             ///< -floor(-a)
Expr select(const Expr& condition, const Expr& yes, const Expr& no);  ///< condition is 0 or 1

/// Several expressions compiled to one list of steps; what they share is computed once.
class Tape {
 public:
  /// @param outputs    [O]
  /// @param variables  [V] the order in which `evaluate` gets their columns
  /// @throws Error(bug) when an output uses another variable
  Tape(std::span<const Expr> outputs, std::vector<std::string> variables);

  /// Evaluates all outputs for `count` candidates, in blocks that stay in cache.
  ///
  /// @param inputs   [V] columns of `count` numbers
  /// @param outputs  [O] columns of `count` numbers, written
  void evaluate(std::span<const double* const> inputs, std::span<double* const> outputs,
                std::size_t count) const;

  std::size_t steps() const { return steps_.size(); }

  /// Step i writes register i.
  struct Step {
    Op op;
    std::vector<int> arguments;  ///< registers
    double constant = 0.0;
    int variable = -1;
    std::shared_ptr<const Function> function;

    bool operator==(const Step&) const = default;
    std::size_t hash() const;
  };

 private:
  friend class BatchTape;
  std::vector<Step> steps_;
  std::vector<int> outputs_;
  std::size_t num_variables_ = 0;
};

}  // namespace brume::symbolic
