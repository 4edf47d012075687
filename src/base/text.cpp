#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace brume {
namespace {

std::string scaled(double value, double step, std::span<const char* const> units) {
  std::size_t unit = 0;
  while (unit + 1 < units.size() && std::abs(value) >= step) {
    value /= step;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.4g} {}", value, units[0])
                   : fmt::format("{:.2f} {}", value, units[unit]);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

bool is_number(std::string_view cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) || cell[0] == '-' ||
                           cell[0] == '+' || cell[0] == '.');
}

}  // namespace

std::string format_bytes(double bytes) {
  static constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return scaled(bytes, 1024.0, units);
}

std::string format_count(double count) {
  static constexpr std::array units{"", "k", "M", "G", "T", "P"};
  std::string text = scaled(count, 1000.0, units);
  if (text.back() == ' ') text.pop_back();
  return text;
}

std::string format_percent(double share) {
  const double percent = 100.0 * share;
  return std::abs(percent) < 9.5 ? fmt::format("{:.2g} %", percent)
                                 : fmt::format("{:.0f} %", percent);
}

std::string format_seconds(double time_s) {
  const double size_s = std::abs(time_s);
  if (size_s < 5e-8) return "0 s";  // what rounding leaves of nothing, too
  if (size_s < 1e-3) return fmt::format("{:.1f} us", time_s * 1e6);
  if (size_s < 1.0) return fmt::format("{:.2f} ms", time_s * 1e3);
  if (size_s < 120.0) return fmt::format("{:.2f} s", time_s);
  if (size_s < 7200.0) return fmt::format("{:.1f} min", time_s / 60.0);
  return fmt::format("{:.1f} hours", time_s / 3600.0);
}

std::string wrapped(std::string_view text, std::size_t columns) {
  constexpr std::size_t indent = 8;
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    const bool sentences = !line.starts_with(' ') && line.find("  ", indent) == line.npos;
    std::size_t room = columns, least = indent;
    while (sentences && line.size() > room) {
      const std::size_t space = line.rfind(' ', room);
      if (space == line.npos || space < least) break;
      out.append(line.substr(0, space)).append("\n").append(indent, ' ');
      line.remove_prefix(space + 1);
      room = columns - std::min(columns, indent);
      least = 1;
    }
    out += line;
    if (text.empty()) break;
    out += '\n';
    text.remove_prefix(1);
  }
  return out;
}

std::string hanging(std::string_view text, std::size_t columns) {
  constexpr std::size_t usual_indent = 8, least_room = 24;
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t gap = line.rfind("  ");
    std::size_t indent = gap == line.npos ? 0 : gap + 2;
    if (indent == 0 || indent + least_room > columns) indent = usual_indent;
    std::size_t room = columns, least = line.find_first_not_of(' ');
    while (line.size() > room) {
      const std::size_t space = line.rfind(' ', room);
      if (space == line.npos || space <= least) break;
      out.append(line.substr(0, line.find_last_not_of(' ', space) + 1));
      out.append("\n").append(indent, ' ');
      line.remove_prefix(space + 1);
      room = columns - std::min(columns, indent);
      least = 0;
    }
    out.append(line).append("\n");
  }
  return out;
}

std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string_view beginning(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return text;
  while (most_bytes > 0 && (static_cast<unsigned char>(text[most_bytes]) & 0xC0) == 0x80)
    --most_bytes;
  return text.substr(0, most_bytes);
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::size_t best = std::max<std::size_t>(2, word.size() / 3) + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    if (const std::size_t distance = edit_distance(word, candidate); distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

namespace {

using Rows = std::vector<std::vector<std::string>>;
constexpr std::size_t gap = 2;  ///< between columns

std::vector<std::size_t> widths(const Rows& rows) {
  std::vector<std::size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  return width;
}

std::string lines(const Rows& rows) {
  const std::vector<std::size_t> width = widths(rows);
  std::string out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      const std::string& cell = rows[r][c];
      // A header stands over its column as the first row below it does.
      const std::string& model =
          r == 0 && rows.size() > 1 && c < rows[1].size() ? rows[1][c] : cell;
      line += is_number(model) ? fmt::format("{:>{}}", cell, width[c])
                               : fmt::format("{:<{}}", cell, width[c]);
      line.append(gap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

/// The same rows, the words of whose last column go on below themselves.
Rows broken(const Rows& rows, std::size_t room) {
  Rows all;
  for (const std::vector<std::string>& row : rows) {
    std::vector<std::string> next = row;
    std::string_view words = row.back();
    while (words.size() > room) {
      std::size_t space = words.rfind("  ", room);  // between what belongs together
      if (space == words.npos || space == 0) space = words.rfind(' ', room);
      if (space == words.npos) space = words.find(' ', room);
      if (space == words.npos) break;
      next.back() = words.substr(0, space);
      next.back().erase(next.back().find_last_not_of(' ') + 1);
      all.push_back(std::move(next));
      next.assign(row.size(), "");
      words.remove_prefix(std::min(words.find_first_not_of(' ', space), words.size()));
    }
    next.back() = words;
    all.push_back(std::move(next));
  }
  return all;
}

}  // namespace

std::string Table::text(std::size_t columns) const {
  constexpr std::size_t least_room = 20;  // for words
  const std::vector<std::size_t> width = widths(rows_);
  std::size_t before_last = 0;
  for (std::size_t c = 0; c + 1 < width.size(); ++c) before_last += width[c] + gap;
  if (before_last + width.back() <= columns || width.size() < 3) return lines(rows_);
  const bool words =
      rows_.size() > 1 && rows_[1].size() == width.size() && !is_number(rows_[1].back());
  if (words && before_last + least_room <= columns)
    return lines(broken(rows_, columns - before_last));
  std::string out;
  for (std::size_t begin = 1, end; begin < width.size(); begin = end) {
    std::size_t taken = width[0];
    for (end = begin; end < width.size(); ++end) {
      if (end > begin && taken + gap + width[end] > columns) break;
      taken += gap + width[end];
    }
    Rows part;
    for (const std::vector<std::string>& row : rows_) {
      part.push_back({row.front()});
      for (std::size_t c = begin; c < std::min(end, row.size()); ++c) part.back().push_back(row[c]);
    }
    out += lines(part);
  }
  return out;
}

}  // namespace brume
