/// @file Functions that all templates may call.
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "library.hpp"

namespace brume::chat {
namespace {

constexpr std::int64_t longest_range = 100'000;

}  // namespace

std::shared_ptr<Scope> functions() {
  auto scope = std::make_shared<Scope>();
  const auto put = [&](const char* name, Value (*call)(Run&, const Arguments&)) {
    scope->set(name, Function{name, call});
  };
  put("range", [](Run&, const Arguments& given) -> Value {
    const bool one = given.positional.size() == 1;
    const std::int64_t begin = one ? 0 : whole_of(given.need(0, "start"));
    const std::int64_t end = whole_of(given.need(one ? 0 : 1, "stop"));
    const std::int64_t step = whole_of(given.get(2, "step", 1));
    require(step != 0, Failure::input, "the step of a range is 0");
    std::vector<Value> all;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
      all.emplace_back(i);
      require(std::ssize(all) <= longest_range, Failure::input, "a range has more than {} items",
              longest_range);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value::list(std::move(all));
  });
  const auto dictionary = [](const Arguments& given) {
    Dict made;
    for (const Value& from : given.positional) {
      const Dict* items = from.object() ? &(*from.object())->attributes : from.dict();
      if (items != nullptr) {
        for (const auto& [key, value] : items->items) made.put(key, value);
        continue;
      }
      for (const Value& pair : from.items()) {
        const std::vector<Value> both = pair.items();
        require(both.size() == 2, Failure::input, "dict() needs pairs");
        made.put(both[0], both[1]);
      }
    }
    for (const auto& [key, value] : given.named) made.put(key, value);
    return made;
  };
  scope->set("dict", Function{"dict", [dictionary](Run&, const Arguments& given) -> Value {
                                return dictionary(given);
                              }});
  scope->set("namespace", Function{"namespace", [dictionary](Run& run, const Arguments& given) {
                                     return run.new_namespace(dictionary(given));
                                   }});
  put("joiner", [](Run&, const Arguments& given) -> Value {
    const Value between = given.get(0, "sep", ", ");
    const auto used = std::make_shared<bool>(false);
    return Function{"joiner",
                    [between, used](Run&, const Arguments&) {
                      return std::exchange(*used, true) ? between : Value("");
                    },
                    between.depth() + 1};
  });
  put("raise_exception", [](Run&, const Arguments& given) -> Value {
    throw Error(Failure::input, "the template refuses these messages: {}",
                given.get(0, "message", "").str());
  });
  put("strftime_now", [](Run&, const Arguments& given) -> Value {
    const std::string format = "x" + text_of(given.need(0, "format"));  // so that it is not empty
    require(format.size() < 256, Failure::input, "the format of a time is too long");
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    ::localtime_r(&now, &local);
    std::string made(4096, '\0');
    made.resize(std::strftime(made.data(), made.size(), format.c_str(), &local));
    return made.empty() ? made : made.substr(1);
  });
  return scope;
}

}  // namespace brume::chat
