/// @file Checked TOML: one schema table gives keys, types, units, defaults, bounds and help.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace brume::deck {

namespace detail {
struct Fields;
}

/// A parsed TOML text that remembers where each value stood. toml++ stays behind this door.
class Document {
 public:
  /// @param text    at most 16 MiB, nested at most 64 deep
  /// @param origin  the file's name, for messages
  /// @throws Error(input) with origin, line and column when the text is not TOML
  static Document parse(std::string_view text, std::string origin);

  /// @throws Error(input) when the file cannot be read
  static Document load(const std::string& path);

  /// Replaces one value, as `--set training.steps=10` does; the right side is TOML, or a bare
  /// string.
  void set(std::string_view assignment);

  /// Gives keys under one of their aliases the present name; an assignment wins over the text.
  /// @return a line for each such key that names its place and its present name
  /// @throws Error(input) when a text has a key under two names
  std::vector<std::string> rename_aliases(const detail::Fields& fields);

  const std::string& origin() const { return origin_; }

  /// The place that gave "table.key" its value: "inputs/a.toml:3:14", or "--set table.key=1"; the
  /// origin alone when nothing gave it one.
  std::string where(std::string_view path) const;

  /// Whether something gave "table.key" a value.
  bool has(std::string_view path) const;

  /// The value of "table.key" where it is a word.
  std::optional<std::string> word(std::string_view path) const;

  /// Whether that was an assignment, and not the text.
  bool was_set(std::string_view path) const;

  struct Node;  ///< the parsed tree, private to the sources
  const Node& root() const { return *root_; }

 private:
  const Node* find(std::string_view path) const;

  std::string origin_;
  std::shared_ptr<Node> root_;
};

/// Everything about one key except its type.
struct Key {
  std::string unit = {};  ///< "tokens", "GiB", "s"; empty for a plain number or a name
  std::string help = {};  ///< one sentence
  bool required = false;
  double min = -std::numeric_limits<double>::infinity();  ///< bound of a number, or of each
                                                          ///< number of a list
  double max = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  ///< words that are allowed, also in each item of a list
  bool if_given = false;      ///< not written while it is empty, or a number out of its bounds
  bool if_not_least = false;  ///< not written while it is at its lower bound
  std::vector<std::string> aliases = {};  ///< former names, and the names of other programs
};

/// Description of a key for people.
struct KeyText {
  std::string key;    ///< "training.optimizer.lr"; of a list of tables "cluster.groups[].name"
  std::string type;   ///< "list of integers"
  std::string unit;   ///< empty: none
  std::string usual;  ///< its default as TOML has it, or "required"
  std::string help;   ///< help, with bounds or words
  std::string table;  ///< description of its table
};

namespace detail {
/// A member that is an enumeration: the number of a word, and how to set it.
struct Choice {
  std::shared_ptr<const std::vector<std::string>> words;
  std::size_t number;
  std::function<void(std::size_t)> set;

  const std::string& word() const { return words->at(number); }
  const Choice& operator*() const { return *this; }  ///< dereferences like the pointers next to it
  /// Compares the words: equal for one key.
  bool operator==(const Choice& other) const { return words == other.words; }
};
using Value = std::variant<bool*, int*, std::int64_t*, double*, std::string*, std::vector<int>*,
                           std::vector<std::int64_t>*, std::vector<double>*,
                           std::vector<std::string>*, Choice>;
/// A schema without its type: what the sources work on.
struct Fields {
  struct Field {
    std::string name;
    Key key;
    std::function<Value(void* object)> value = {};              ///< a plain key, or
    std::shared_ptr<const Fields> table = {};                   ///< a table, or a list of tables:
    std::function<void*(void* object)> member = {};             ///< the table's object
    std::function<void*(void* object)> append = {};             ///< a new last element of the list
    std::function<std::size_t(const void* object)> count = {};  ///< elements of the list
    std::function<const void*(const void* object, std::size_t)> at = {};  ///< one element
  };
  std::vector<Field> fields;
};
void read(const Fields& fields, const Document& document, void* object);
std::string refusal(const Fields& fields, std::string_view path, void* object);
std::string write(const Fields& fields, const void* object, bool with_help);
std::vector<KeyText> help(const Fields& fields, void* defaults);
}  // namespace detail

/// The keys of a struct. Defaults are what a default-made T holds.
///
/// A static schema is returned by a lambda: else Clang 16 destroys temporaries of its designated
/// initializers at the end of the function around it, in every call.
template <typename T>
class Schema {
 public:
  /// A plain key bound to a member: bool, int, int64_t, double, string, or a vector of these.
  template <typename V>
  Schema& key(std::string name, V T::*member, Key key) {
    fields_->fields.push_back(
        {.name = std::move(name), .key = std::move(key), .value = [member](void* object) {
           return detail::Value(&(static_cast<T*>(object)->*member));
         }});
    return *this;
  }

  /// A plain key bound to a member of a part.
  template <typename U, typename V>
  Schema& key(std::string name, U T::*part, V U::*member, Key key) {
    fields_->fields.push_back(
        {.name = std::move(name), .key = std::move(key), .value = [part, member](void* object) {
           return detail::Value(&(static_cast<T*>(object)->*part.*member));
         }});
    return *this;
  }

  /// A word bound to an enumeration, whose values are the numbers of the key's choices.
  template <typename E>
  requires std::is_enum_v<E> Schema& key(std::string name, E T::*member, Key key) {
    const auto words = std::make_shared<const std::vector<std::string>>(key.choices);
    fields_->fields.push_back(
        {.name = std::move(name), .key = std::move(key), .value = [member, words](void* object) {
           E& value = static_cast<T*>(object)->*member;
           return detail::Value(detail::Choice{
               words, std::size_t(value), [&value](std::size_t number) { value = E(number); }});
         }});
    return *this;
  }

  /// A table: `[name]`.
  template <typename U>
  Schema& table(std::string name, U T::*member, const Schema<U>& schema, std::string help) {
    fields_->fields.push_back({.name = std::move(name),
                               .key = {.help = std::move(help)},
                               .table = schema.fields(),
                               .member = [member](void* object) -> void* {
                                 return &(static_cast<T*>(object)->*member);
                               }});
    return *this;
  }

  /// A list of tables: `[[name]]`.
  template <typename U>
  Schema& tables(std::string name, std::vector<U> T::*member, const Schema<U>& schema,
                 std::string help) {
    fields_->fields.push_back({.name = std::move(name),
                               .key = {.help = std::move(help)},
                               .table = schema.fields(),
                               .append = [member](void* object) -> void* {
                                 return &(static_cast<T*>(object)->*member).emplace_back();
                               },
                               .count =
                                   [member](const void* object) {
                                     return (static_cast<const T*>(object)->*member).size();
                                   },
                               .at = [member](const void* object, std::size_t i) -> const void* {
                                 return &(static_cast<const T*>(object)->*member)[i];
                               }});
    return *this;
  }

  /// @throws Error(input) for an unknown, doubled, missing, ill-typed or out-of-range key: file,
  ///         line, key, what was expected and found, and the nearest known key
  T read(const Document& document) const {
    T value{};
    detail::read(*fields_, document, &value);
    return value;
  }

  /// The fault of a value of "table.key" that did not come from a document: "must be an integer in
  /// 1..10000, found 0"; empty: none.
  std::string refusal(std::string_view path, T value) const {
    return detail::refusal(*fields_, path, &value);
  }

  /// TOML that `read` gives the same value back from, floating-point numbers exactly.
  /// @param with_help  each key with its unit and help as a comment
  std::string write(const T& value, bool with_help = false) const {
    return detail::write(*fields_, &value, with_help);
  }

  /// All keys, those of a table one after the other.
  std::vector<KeyText> help() const {
    T defaults{};
    return detail::help(*fields_, &defaults);
  }

  std::shared_ptr<const detail::Fields> fields() const { return fields_; }

  /// The field that is bound to a member; null where none is.
  template <typename V>
  const detail::Fields::Field* field(V T::*member) const {
    T object{};
    for (const detail::Fields::Field& field : fields_->fields)
      if (field.value && field.value(&object) == detail::Value(&(object.*member))) return &field;
    return nullptr;
  }

 private:
  std::shared_ptr<detail::Fields> fields_ = std::make_shared<detail::Fields>();
};

}  // namespace brume::deck
