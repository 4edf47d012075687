/// @file Files that others made, damaged in ways that keep them close to right: each is read, or
/// refused by an Error. BRUME_MUTANTS says how many of each kind are tried.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "data/token_file.hpp"
#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "hugging_face_files.hpp"
#include "interop/safetensors.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "tokenizer/tokenizer.hpp"

namespace brume {
namespace {

constexpr unsigned most_seconds = 60;           // of one file, also on a loaded machine
constexpr rlim_t most_bytes = rlim_t{4} << 30;  // of the whole process
const std::string here = BRUME_REGRESSION_DIR "/";

/// What is being read, for the last words of a process that a signal ends.
std::array<char, 120> reading{};

extern "C" void say_what_was_read(int signal) {
  constexpr std::string_view before = "ended by a signal while it read ";
  [[maybe_unused]] ssize_t said = ::write(STDERR_FILENO, before.data(), before.size());
  said = ::write(STDERR_FILENO, reading.data(), std::string_view(reading.data()).size());
  ::_exit(128 + signal);
}

/// Makes bytes that are nearly those given; the same ones for the same number.
class Mutator {
 public:
  explicit Mutator(unsigned number) : chooser_(number) {}

  std::string operator()(std::string bytes) {
    for (std::size_t left = 1 + below(2) * below(4); left > 0 && !bytes.empty(); --left)
      change(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t end) { return chooser_() % end; }

  void change(std::string& bytes) {
    const std::size_t at = below(bytes.size());
    switch (below(8)) {
      case 0: bytes[at] = char(bytes[at] ^ (1 << below(8))); break;
      case 1: bytes.resize(at); break;
      case 2: bytes.erase(at, 1 + below(100)); break;
      case 3: bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(200))); break;
      case 4: {  // brackets open by the ten thousand
        constexpr std::string_view opening = "[{(\"";
        bytes.insert(at, std::string(1 + below(20000), opening[below(opening.size())]));
        break;
      }
      case 5: {  // eight bytes that may be a length or an offset
        const std::uint64_t word = below(2) ? ~std::uint64_t{0} >> below(64) : chooser_();
        for (std::size_t i = 0; i < 8 && at + i < bytes.size(); ++i)
          bytes[at + i] = char(word >> (8 * i));
        break;
      }
      default: replace_number(bytes, at);
    }
  }

  /// Another number in place of the next one of a text.
  void replace_number(std::string& bytes, std::size_t from) {
    constexpr std::array<std::string_view, 16> numbers{"0",
                                                       "-1",
                                                       "1",
                                                       "3",
                                                       "64",
                                                       "65536",
                                                       "10000",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967296",
                                                       "9223372036854775807",
                                                       "-9223372036854775808",
                                                       "1e308",
                                                       "nan",
                                                       "\"x\"",
                                                       "[[]]"};
    const std::size_t begin = bytes.find_first_of("0123456789", from);
    if (begin == std::string::npos) return;
    const std::size_t end =
        std::min(bytes.find_first_not_of("0123456789.e-+", begin), bytes.size());
    bytes.replace(begin, end - begin, numbers[below(numbers.size())]);
  }

  std::mt19937 chooser_;
};

/// Reads so many damaged copies of the seeds, in turns. All seeds are right.
void read_mutants(const std::string& kind, const std::vector<std::string>& seeds,
                  const std::function<void(const std::string&)>& read, int mutants = 300) {
  if (const char* asked = std::getenv("BRUME_MUTANTS")) mutants = std::atoi(asked);
  int accepted = 0, refused = 0;
  for (const std::string& seed : seeds) ASSERT_NO_THROW(read(seed)) << kind;
  for (int number = 0; number < mutants; ++number) {
    const std::string text = Mutator(unsigned(number))(seeds[std::size_t(number) % seeds.size()]);
    const auto name =
        fmt::format_to_n(reading.data(), reading.size() - 2, "mutant {} of {}\n", number, kind);
    *name.out = '\0';
    ::alarm(most_seconds);
    try {
      read(text);
      ++accepted;
    } catch (const Error& error) {
      const std::string_view said = error.what();
      EXPECT_TRUE(error.failure() == Failure::input || error.failure() == Failure::storage)
          << reading.data() << error.what();
      EXPECT_LT(said.size(), 4000u) << reading.data() << said.substr(0, 300);
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << reading.data() << error.what();
    }
    ::alarm(0);
  }
  EXPECT_GT(refused, mutants / 20);
  std::cout << kind << ": " << accepted << " read, " << refused << " refused\n";
}

class HostileFiles : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static std::array<char, 1 << 16> stack;  // where the usual one is used up
    const stack_t other{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
    ::sigaltstack(&other, nullptr);
    struct sigaction action {};
    action.sa_handler = say_what_was_read;
    action.sa_flags = SA_ONSTACK;
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGALRM})
      ::sigaction(signal, &action, nullptr);
#ifndef __SANITIZE_ADDRESS__
    const rlimit limit{most_bytes, most_bytes};
    ::setrlimit(RLIMIT_DATA, &limit);
#endif
  }

  /// Reads by what opens a file of this name.
  std::function<void(const std::string&)> as_file(
      const std::string& name, std::function<void(const std::string&)> open) const {
    return [path = (folder_ / name).string(), open = std::move(open)](const std::string& bytes) {
      test::put(path, bytes);
      open(path);
    };
  }

  test::Folder folder_;
};

TEST_F(HostileFiles, Decks) {
  read_mutants("a deck", {test::content(here + "decks/tiny.toml")}, [](const std::string& text) {
    const deck::Deck deck = deck::parse(text, "deck.toml");
    model::config(deck.model, deck.training.precision);
    hardware::cluster(deck.cluster);
  });
}

TEST_F(HostileFiles, Plans) {
  const deck::Deck deck = deck::load(here + "decks/tiny.toml");
  const model::Config model = model::config(deck.model, deck.training.precision);
  const hardware::Cluster cluster = hardware::cluster(deck.cluster);
  plan::Plan plan{.global_batch = 8, .microbatches = 2, .stages = {}};
  for (int stage = 0; stage < 2; ++stage) {
    plan::Stage& s = plan.stages.emplace_back();
    s.first_layer = 2 * stage;
    s.layers = 2;
    s.nodes = 1;
    s.devices_per_node = 2;
    s.dp = 2;
    s.tp = 1;
    s.microbatch = 2;
  }
  read_mutants("a plan", {plan::text(plan)}, [&](const std::string& text) {
    plan::check(plan::parse(text, "plan.toml"), model, cluster);
  });
}

TEST_F(HostileFiles, Profiles) {
  const deck::Deck deck = deck::load(here + "decks/tiny.toml");
  read_mutants("a profile", {test::content(here + "decks/profile.toml")},
               [&](const std::string& text) {
                 hardware::parse_machine(text, "profile.toml", deck.cluster);
               });
}

TEST_F(HostileFiles, ConfigurationsOfHuggingFace) {
  std::vector<std::string> seeds;
  for (const char* model : {"llama_grouped", "mistral_window", "falcon_grouped"})
    seeds.push_back(test::content(here + "data/hugging_face/" + model + "/config.json"));
  read_mutants("a config.json", seeds, as_file("config.json", [](const std::string& path) {
                 deck::ModelKeys keys;
                 keys.config = path;
                 keys.seq_len = 16;
                 keys.given = {"seq_len"};
                 model::config(model::resolved(keys), "fp32");
               }));
}

TEST_F(HostileFiles, Tokenizers) {
  for (const char* name : {"gpt2.json", "llama2.json", "gemma.json", "bpe.model", "unigram.model"})
    read_mutants(name, {test::content(here + "data/tokenizers/" + name)},
                 as_file(name,
                         [](const std::string& path) {
                           std::vector<std::int32_t> tokens;
                           tokenizer::Tokenizer(path).encode(
                               "A cloud of 10 drops\n\n lies \xe2\x82\xac over it.", tokens);
                         }),
                 60);
}

TEST_F(HostileFiles, Safetensors) {
  const std::string matrix(24, '\1'), vector(4, '\2');
  read_mutants("a safetensors file",
               {test::safetensors({{"a", "F32", {2, 3}, matrix}, {"b", "BF16", {2}, vector}})},
               as_file("model.safetensors", [](const std::string& path) {
                 const interop::TensorFile file(path);
                 for (const auto& [name, entry] : file.tensors()) {
                   std::vector<float> values(std::size_t(entry.elements));
                   file.read(name, 0, values);
                 }
               }));
}

TEST_F(HostileFiles, TokenFiles) {
  const std::filesystem::path path = folder_ / "seed.tok";
  std::vector<std::int32_t> tokens(500);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = int(i * i % 251);
  data::write_token_file(path, tokens, 256);
  read_mutants(
      "a token file", {test::content(path)}, as_file("train.tok", [](const std::string& path) {
        const data::TokenFile file(path);
        std::vector<std::int32_t> read(std::size_t(std::min<std::int64_t>(file.size(), 1000)));
        file.read(0, read);
        file.documents(0, file.size());
      }));
}

}  // namespace
}  // namespace brume
