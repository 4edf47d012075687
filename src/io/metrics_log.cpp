#include "io/metrics_log.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "event_file.hpp"
#include "io/appended_file.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::int64_t max_line_bytes = 1 << 20;               ///< that a line of ours never has
constexpr std::array kinds{"start", "rollback", "straggler"};  ///< of events
constexpr const char* sample_kind = "sample";                  ///< and of samples

double now_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return double(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1e3;
}

ordered_json stamped(std::int64_t step) { return {{"step", step}, {"time", now_s()}}; }

std::string text(const ordered_json& line) {
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

/// The step of a line; below 0 where it is none of ours.
std::int64_t step_of_line(std::string_view line) {
  const auto object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object() || !object.contains("step")) return -1;
  return object["step"].is_number_unsigned() ? object["step"].get<std::int64_t>() : -1;
}

/// A text of an event, where its line has it.
std::string text_of(const nlohmann::json& object, const char* key = "text") {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>()
                                                         : std::string();
}

/// Calls each(object, step) for the lines of events, which name their kind.
template <typename Each>
void for_events(const fs::path& directory, const Each& each) {
  std::ifstream in(directory / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    if (line.find("\"event\"") == line.npos) continue;
    const auto object = nlohmann::json::parse(line, nullptr, false);
    const std::int64_t step = step_of_line(line);
    if (step >= 0 && object.contains("event") && object["event"].is_string()) each(object, step);
  }
}

/// A line of two such texts is shorter than the longest one.
std::string_view shortened(std::string_view text) { return beginning(text, 1 << 16); }

/// How many bytes lines of the first `steps` steps take: those before the first line of a later
/// step, or that is not whole.
std::int64_t bytes_until(const fs::path& path, std::int64_t steps) {
  const Descriptor file = open_regular(path, Failure::storage, Links::follow);
  Bytes room(std::size_t(2 * max_line_bytes));
  std::int64_t kept = 0;
  for (;;) {
    const std::size_t read = read_at(file, kept, room, path.string());
    const std::string_view text(reinterpret_cast<const char*>(room.data()), read);
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
      const std::int64_t step = step_of_line(text.substr(begin, end - begin));
      if (step < 0 || step > steps) return kept + std::int64_t(begin);
    }
    if (begin == 0) return kept;  // the end of the file, a cut line, or none of ours
    kept += std::int64_t(begin);
  }
}

}  // namespace

std::vector<Scalar> scalars(const Row& row, const Yardstick& yardstick) {
  const engine::StepMetrics& m = row.metrics;
  const double devices = yardstick.devices;
  std::vector<Scalar> values{
      {"loss", m.loss},
      {"grad_norm", m.grad_norm},
      {"lr", m.lr},
      {"loss_scale", m.loss_scale},
      {"iteration_s", m.iteration_s},
      {"data_s", m.data_s},
      {"tokens_per_s", row.tokens_per_s},
      {"tokens_per_s_per_device", row.tokens_per_s / devices},
      {"tflops_per_device", yardstick.flops_per_s(row.tokens_per_s) / devices / 1e12},
  };
  if (yardstick.peak_flops_per_s > 0.0) values.push_back({"mfu", yardstick.mfu(row.tokens_per_s)});
  if (m.accuracy >= 0.0)
    values.insert(values.end(), {{"accuracy", m.accuracy}, {"margin", m.margin}});
  if (m.load_factor > 0.0)
    values.insert(values.end(), {{"load_factor", m.load_factor}, {"idle_experts", m.idle_experts}});
  if (m.expert_rounds > 0.0) values.push_back({"expert_rounds", m.expert_rounds});
  if (!row.peak_bytes.empty())
    values.push_back({"peak_resident_bytes", double(*std::ranges::max_element(row.peak_bytes))});
  return values;
}

std::string json_line(const Row& row, const Yardstick& yardstick) {
  ordered_json line = stamped(row.metrics.step + 1);
  for (const Scalar& scalar : scalars(row, yardstick)) line[scalar.name] = scalar.value;
  if (row.metrics.skipped) line["skipped"] = true;
  return text(line);
}

std::vector<Scalar> scalars(const EvaluationRow& row) {
  std::vector<Scalar> values{{"valid_loss", row.loss}};
  if (row.accuracy >= 0.0)
    values.insert(values.end(), {{"valid_accuracy", row.accuracy}, {"valid_margin", row.margin}});
  return values;
}

std::string json_line(const EvaluationRow& row) {
  ordered_json line = stamped(row.step);
  for (const Scalar& scalar : scalars(row)) line[scalar.name] = scalar.value;
  return text(line);
}

std::string quoted(std::string_view text, std::size_t columns) {
  const auto quote = [](std::string_view part) {
    std::string json =
        ordered_json(part).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    // JSON keeps U+0080 to U+009F, which terminals may obey.
    for (std::size_t at = json.find('\xC2'); at != std::string::npos;
         at = json.find('\xC2', at + 1))
      if (const auto code = std::uint8_t(json[at + 1]); code < 0xA0)
        json.replace(at, 2, fmt::format("\\u{:04x}", code));
    return json;
  };
  if (text.size() <= columns)
    if (std::string all = quote(text); all.size() <= columns) return all;
  constexpr std::string_view dots = "...";
  for (std::size_t bytes = columns;; --bytes)
    if (std::string part = quote(beginning(text, bytes));
        bytes == 0 || part.size() + dots.size() <= columns)
      return part.append(dots);
}

std::string json_line(const SampleRow& row) {
  ordered_json line = stamped(row.step);
  line["event"] = sample_kind;
  line["index"] = row.index;
  line["prompt"] = shortened(row.prompt);
  line["text"] = shortened(row.text);
  line["finish_reason"] = row.finish;
  line["tokens"] = row.tokens;
  return text(line);
}

std::vector<Event> events(const fs::path& directory) {
  std::vector<Event> all;
  for_events(directory, [&](const nlohmann::json& object, std::int64_t step) {
    for (std::size_t kind = 0; kind < kinds.size(); ++kind)
      if (object["event"] == kinds[kind])
        all.push_back({step, Event::Kind(int(kind)), text_of(object)});
  });
  return all;
}

std::vector<SampleRow> samples(const fs::path& directory) {
  std::vector<SampleRow> all;
  for_events(directory, [&](const nlohmann::json& object, std::int64_t step) {
    if (object["event"] != sample_kind) return;
    const auto number = [&](const char* key) {
      return object.contains(key) && object[key].is_number_integer()
                 ? object[key].get<std::int64_t>()
                 : std::int64_t{0};
    };
    all.push_back({.step = step,
                   .index = number("index"),
                   .prompt = text_of(object, "prompt"),
                   .text = text_of(object),
                   .finish = text_of(object, "finish_reason"),
                   .tokens = number("tokens")});
  });
  return all;
}

MetricsLog::MetricsLog(const fs::path& directory, const RunDescription& description,
                       const Yardstick& yardstick, std::int64_t resumed_step, bool tensorboard)
    : path_(directory / "metrics.jsonl"), yardstick_(yardstick) {
  open_at(resumed_step);
  ordered_json line = stamped(resumed_step);
  line["event"] = kinds[std::size_t(Event::Kind::start)];
  line["run"] = description.run;
  line["version"] = description.version;
  line["ranks"] = description.ranks;
  lines_->append(text(line));
  if (!tensorboard) return;
  make_directory(directory / "tensorboard");
  events_ = std::make_unique<EventFile>(directory / "tensorboard", resumed_step + 1);
}

MetricsLog::~MetricsLog() = default;

/// Opens the file that has the name now, behind the lines of so many steps.
void MetricsLog::open_at(std::int64_t steps) {
  lines_ = std::make_unique<AppendedFile>(path_);
  lines_->cut(bytes_until(path_, steps));
}

template <typename Write>
void MetricsLog::or_warn(Write&& write) {
  try {
    write();
    warned_ = false;
  } catch (const Error& failure) {
    if (!warned_) log::warn("metrics are only in run.h5 for now: {}", failure.what());
    warned_ = true;
  }
}

void MetricsLog::add(const Row& row) {
  or_warn([&] {
    lines_->append(json_line(row, yardstick_));
    if (events_) events_->add(row.metrics.step + 1, scalars(row, yardstick_));
  });
}

void MetricsLog::add(const EvaluationRow& row) {
  or_warn([&] {
    lines_->append(json_line(row));
    if (events_) events_->add(row.step, scalars(row));
  });
}

void MetricsLog::add(const SampleRow& row) {
  or_warn([&] { lines_->append(json_line(row)); });
}

void MetricsLog::add(const Event& event) {
  or_warn([&] {
    ordered_json line = stamped(event.step);
    line["event"] = kinds[std::size_t(event.kind)];
    line["text"] = event.text;
    lines_->append(text(line));
  });
}

void MetricsLog::rewind(std::int64_t steps) {
  or_warn([&] {
    open_at(steps);
    if (events_) events_->restart(steps + 1);
  });
}

}  // namespace brume::io
