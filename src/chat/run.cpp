#include "run.hpp"

#include <utility>

#include "base/error.hpp"
#include "budget.hpp"

namespace brume::chat {
namespace {
constexpr int deepest_call = 100;
constexpr std::size_t step_bytes = 256;  ///< the budget's loss by a step
}  // namespace

Run::~Run() {
  scope->clear();
  for (const auto& one : namespaces_) one->attributes.items.clear();
}

void Run::step(int line) {
  line_ = line;
  charge(step_bytes);
}

void Run::write(std::string_view text) {
  require_size(rendered.text.size() + text.size());
  charge(text.size());
  rendered.text += text;
}

/// A scope within others, until its end.
class Run::Inner {
 public:
  Inner(Run& run, std::shared_ptr<Scope> around)
      : run_(run), before_(std::exchange(run.scope, std::make_shared<Scope>(std::move(around)))) {
    ++run_.depth_;
  }
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;
  ~Inner() {
    --run_.depth_;
    run_.scope->clear();
    run_.scope = std::move(before_);
  }

 private:
  Run& run_;
  std::shared_ptr<Scope> before_;
};

void Run::within_scope(const std::function<void()>& body, std::shared_ptr<Scope> around) {
  require(depth_ < deepest_call, Failure::input, "blocks and macros are nested more than {} deep",
          deepest_call);
  const Inner inner(*this, around ? std::move(around) : scope);
  body();
}

std::string Run::captured(const std::function<void()>& body, std::shared_ptr<Scope> around) {
  std::string before = std::exchange(rendered.text, {});
  ++captures_;
  within_scope(body, std::move(around));
  --captures_;
  return std::exchange(rendered.text, std::move(before));
}

Value Run::call(const Value& callee, const Arguments& arguments) {
  callee.require_defined();
  require(callee.function() != nullptr, Failure::input, "'{}' cannot be called", callee.type());
  return callee.function()->call(*this, arguments);
}

Value Run::new_namespace(Dict attributes) {
  charge(sizeof(Object));
  return namespaces_.emplace_back(std::make_shared<Object>(Object{std::move(attributes), true}));
}

}  // namespace brume::chat
