/// @file The verb `chat`: a conversation with a model in a terminal.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "all_ranks.hpp"
#include "answering.hpp"
#include "answers.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "generation/answer.hpp"
#include "generation/scheduler.hpp"
#include "io/appended_file.hpp"
#include "prompts.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* help =
    "/reset      begin a new conversation\n"
    "/undo       forget the last message and its answer\n"
    "/save FILE  append the conversation to a file, as `brume import tokens` reads it\n"
    "/quit       leave; so does the end of the input\n"
    "A message that begins with '/' is written with '//'.\n"
    "An answer that ends with ' ...' was cut off by --max-tokens or --context.\n";

/// Lines of standard input, without waiting for long.
class Lines {
 public:
  /// The next line; none: none has come yet, or the input has ended.
  std::optional<std::string> next() {
    constexpr int wait_ms = 500;
    constexpr std::size_t longest_bytes = std::size_t{4} << 20;
    if (ended()) return std::nullopt;
    const std::size_t end = read_.find('\n');
    if (end == read_.npos && !ended_) {
      ::pollfd input{STDIN_FILENO, POLLIN, 0};
      if (::poll(&input, 1, wait_ms) <= 0) return std::nullopt;
      char bytes[4096];
      const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof(bytes));
      if (got <= 0)
        ended_ = true;
      else
        read_.append(bytes, std::size_t(got));
      require(read_.size() <= longest_bytes, Failure::input, "a line has more than {} bytes",
              longest_bytes);
      return std::nullopt;
    }
    std::string line = read_.substr(0, end);
    read_.erase(0, end == read_.npos ? end : end + 1);
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }
  bool ended() const { return ended_ && read_.empty(); }

 private:
  std::string read_;
  bool ended_ = false;
};

/// The conversation. Rank 0 holds it, reads and writes; other ranks compute answers.
class Dialogue {
 public:
  Dialogue(const ChatOptions& options, comm::Session& session, comm::Communicator& job)
      : options_(options), job_(job), leader_(job.rank() == 0), answering_(options, session, job) {
    reset();
  }

  void run() {
    comm::together(job_, [&] { answering_.translator().read_conversations(); });
    const std::int64_t context =
        std::min<std::int64_t>(options_.context_tokens, answering_.model().seq_len);
    answering_.choose_plan(context, 1, Copies::widest);
    context_tokens_ = context;
    answering_.with_generators([&](const PhaseGenerators& generators) {
      engine::Generator& generator = generators.answers;
      if (leader_) {
        const plan::Stage& stage = answering_.plan().plan.stages.front();
        log::info("up to {} tokens, tp {} on {}; /help says what else there is", context_tokens_,
                  stage.tp, counted(job_.size(), "rank"));
      }
      converse(generator);
    });
  }

 private:
  /// Asks for messages and answers them until the input ends. Collective.
  void converse(engine::Generator& generator) {
    const model::Config& sizes = answering_.plan().model;
    generation::Scheduler scheduler(sizes.generation, sizes.blocks_per_sequence());
    for (;;) {
      std::string asked;  // tokens to answer; while there is no message, other ranks hear of that
      bool leaves = false;
      comm::together(job_, [&] {
        if (leader_) leaves = !next_message(asked);
      });
      if (comm::broadcast(job_, leaves ? std::string("leave") : std::string(), 0) == "leave") break;
      asked = comm::broadcast(job_, asked, 0);
      if (asked.empty()) continue;
      std::vector<std::int32_t> tokens(asked.size() / sizeof(std::int32_t));
      std::copy_n(asked.data(), asked.size(), reinterpret_cast<char*>(tokens.data()));
      if (generator.copy_index() == 0) answer(generator, scheduler, std::move(tokens));
    }
  }

  /// Takes a line, if one has come. @return whether the conversation goes on
  bool next_message(std::string& asked) {
    if (!std::exchange(prompted_, true) && terminal::watched(STDIN_FILENO)) {
      fmt::print("> ");
      std::fflush(stdout);
    }
    const std::optional<std::string> line = lines_.next();
    if (!line) return !lines_.ended();
    prompted_ = false;
    if (line->find_first_not_of(" \t") == line->npos) return true;
    if (line->starts_with('/') && !line->starts_with("//")) return command(*line);
    messages_.push_back(chat::message("user", line->starts_with("//") ? line->substr(1) : *line));
    try {
      const std::string text = answering_.translator().conversations().prompt(
          {{"messages", messages_}}, "the conversation");
      const std::vector<std::int32_t> tokens = answering_.translator().encode(text, true);
      const std::string refusal =
          app::refusal(std::ssize(tokens), context_tokens_, answering_.model().seq_len);
      require(refusal.empty(), Failure::input, "{}: /reset begins a new conversation", refusal);
      asked.assign(reinterpret_cast<const char*>(tokens.data()),
                   tokens.size() * sizeof(std::int32_t));
    } catch (const Error& error) {
      if (error.failure() != Failure::input) throw;
      messages_.erase(messages_.size() - 1);
      log::warn("{}", error.what());
    }
    return true;
  }

  /// @return whether the conversation goes on
  bool command(const std::string& line) {
    const std::size_t end = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, end);
    const std::string rest = line.substr(std::min(line.find_first_not_of(' ', end), line.size()));
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/reset") {
      reset();
    } else if (name == "/undo") {
      const std::size_t first = options_.system.empty() ? 0 : 1;
      for (int i = 0; i < 2 && messages_.size() > first; ++i) messages_.erase(messages_.size() - 1);
    } else if (name == "/save") {
      save(rest);
    } else {
      if (name != "/help") log::warn("there is no {}", name);
      fmt::print("{}", help);
    }
    return true;
  }

  void reset() {
    messages_ = ordered_json::array();
    cut_ = false;
    if (!options_.system.empty()) messages_.push_back(chat::message("system", options_.system));
  }

  void save(const std::string& path) {
    try {
      require(!path.empty(), Failure::input, "/save needs the name of a file");
      const ordered_json line{{"messages", messages_}};
      io::AppendedFile(path).append(dump(line) + "\n");
      log::info("saved to {}", path);
      if (cut_) log::warn("{}: has an answer that was cut off", path);
    } catch (const Error& error) {
      log::warn("{}", error.what());
    }
  }

  /// Shows the answer to a prompt as it grows. Collective over the first copy of the model.
  /// @param scheduler  has the keys of the conversation so far
  void answer(engine::Generator& generator, generation::Scheduler& scheduler,
              std::vector<std::int32_t> tokens) {
    const std::int64_t number = turns_++;
    scheduler.add(number, std::move(tokens));
    generation::Answer made(options_.stops);
    const auto start = Clock::now();
    int count = 0;
    while (scheduler.open() > 0) {
      const generation::Scheduler::Pass pass = scheduler.next();
      const std::vector<generation::Choice> chosen =
          choose(generator, pass, scheduler, [&](std::int64_t id) {
            return Draw{options_.sampling, std::uint64_t(id)};
          });
      if (chosen.empty()) continue;
      const std::int32_t token = chosen.front().token;
      const std::size_t before = made.settled();
      ++count;
      const bool ended =
          answering_.translator().ends(token) || made.add(answering_.translator().bytes_of(token));
      const bool full = count == options_.max_tokens ||
                        std::ssize(scheduler.history(number).tokens) + 1 >= context_tokens_;
      show(made, before, ended || full);
      if (!ended && !full) {
        scheduler.append(number, token);
        continue;
      }
      scheduler.end(number);
      if (!leader_) continue;
      messages_.push_back(chat::message("assistant", made.text()));
      fmt::print("{}\n", ended ? "" : " ...");
      cut_ = cut_ || !ended;
      std::fflush(stdout);
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      log::debug("{} tokens in {}: {:.1f} tokens/s", count, format_seconds(seconds),
                 count / seconds);
    }
  }

  void show(const generation::Answer& made, std::size_t before, bool all) const {
    const std::size_t end = all ? made.text().size() : made.settled();
    if (!leader_ || end <= before) return;
    fmt::print("{}",
               terminal::printable(std::string_view(made.text()).substr(before, end - before)));
    std::fflush(stdout);
  }

  const ChatOptions& options_;
  comm::Communicator& job_;
  bool leader_;
  Answering answering_;
  // Rank 0 alone uses these:
  Lines lines_;
  bool prompted_ = false;
  bool cut_ = false;  ///< an answer of the conversation has no end
  ordered_json messages_;

  std::int64_t turns_ = 0;
  std::int64_t context_tokens_ = 0;
};

}  // namespace

int chat(const ChatOptions& options) {
  return on_all_ranks([&](comm::Session& session, comm::Communicator& job) {
    Dialogue(options, session, job).run();
    return 0;
  });
}

}  // namespace brume::app
