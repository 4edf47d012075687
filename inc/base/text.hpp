/// @file Numbers with units, aligned tables and spelling help: text for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brume {

std::string format_bytes(double bytes);     ///< "1.50 GiB"
std::string format_seconds(double time_s);  ///< "12.3 ms"
std::string format_count(double count);     ///< "1.24 M"
std::string format_percent(double share);   ///< two digits, or all before the point: "0.012 %"
std::string counted(std::int64_t count, std::string_view what);  ///< "1 step", "2 steps"

/// The first bytes of a text, at most so many, that end no UTF-8 character in its middle.
std::string_view beginning(std::string_view text, std::size_t most_bytes);

/// Divides rounding up.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The next multiple of `step` at or above `value`.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return ceil_div(value, step) * step;
}

/// The candidate with the smallest edit distance to `word`; empty when none is near.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// Breaks lines of sentences that are longer than `columns` at spaces, and goes on below the
/// sentence: behind the word that such a line begins with. Lines of a table, in which there are
/// several spaces together, and words that are longer stay as they are.
std::string wrapped(std::string_view text, std::size_t columns);

/// Breaks lines whose last column is words: they go on below it, and where that leaves too little
/// room, below the line. Columns are two spaces apart.
std::string hanging(std::string_view text, std::size_t columns);

/// Width of what is written where no terminal says another one.
inline constexpr std::size_t usual_columns = 100;

/// A table with a header line; columns are as wide as their widest cell, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Lines of at most so many columns, as far as single cells allow. Of a wider table the words of
  /// the last column go on below themselves; where that one has numbers, the columns that are left
  /// stand below the others, behind the first column again.
  std::string text(std::size_t columns = usual_columns) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace brume
