/// @file A template that is rendered: its variables and its output.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "chat/template.hpp"
#include "value.hpp"

namespace brume::chat {

/// Variables of a block, and those around it.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> around = nullptr) : around_(std::move(around)) {}

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->around_.get())
      if (const auto found = scope->names_.find(name); found != scope->names_.end())
        return &found->second;
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    names_.insert_or_assign(name, std::move(value));
  }
  /// Forgets all variables, so that macros among them do not keep the scope alive.
  void clear() { names_.clear(); }

 private:
  std::map<std::string, Value> names_;
  std::shared_ptr<Scope> around_;
};

class Run {
 public:
  /// @param variables  the outermost scope
  explicit Run(std::shared_ptr<Scope> variables) : scope(std::move(variables)) {}
  /// Empties scopes and namespaces, which may refer to each other in circles.
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Begins a step of the template at a line.
  void step(int line);
  int line() const { return line_; }  ///< of the last step
  /// Appends to the output.
  void write(std::string_view text);

  /// Calls `body` in a scope within the present one, or within `around`.
  void within_scope(const std::function<void()>& body, std::shared_ptr<Scope> around = nullptr);
  /// The output of `body`, in a scope of its own.
  std::string captured(const std::function<void()>& body, std::shared_ptr<Scope> around = nullptr);
  bool captures() const { return captures_ > 0; }  ///< whether the output is kept as a value

  Value call(const Value& callee, const Arguments& arguments);
  Value new_namespace(Dict attributes);

  std::shared_ptr<Scope> scope;
  Rendered rendered;       ///< `text` is the output
  bool generates = false;  ///< within a `generation` block

 private:
  class Inner;
  int line_ = 1, depth_ = 0, captures_ = 0;
  std::vector<std::shared_ptr<Object>> namespaces_;
};

using Expression = std::function<Value(Run&)>;

/// A statement leads on to the next one, leaves its loop, or begins the loop's next turn.
enum class Flow { on, leave, again };
using Statement = std::function<Flow(Run&)>;

}  // namespace brume::chat
