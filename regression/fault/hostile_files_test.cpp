/// @file Files that others made, damaged in ways that keep them close to right: each is read, or
/// refused by an Error, in little time and memory. BRUME_MUTANTS says how many of each kind are
/// tried.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <string_view>

#include "file_kinds.hpp"
#include "own_folder.hpp"

namespace brume {
namespace {

constexpr double most_s = 1.0;                    // of the processor, for one file
constexpr unsigned most_wall_s = 60;              // ... also on a loaded machine
constexpr rlim_t most_bytes = rlim_t{512} << 20;  // beside what the process has before

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

/// Memory that the limit of the system counts. [bytes]
rlim_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmData:")) return rlim_t(std::stoull(line.substr(7))) << 10;
  return 0;
}

/// What the processor has given this process. [s]
double processor_s() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
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
  }

  void read_mutants(const test::FileKind& kind, int mutants) {
    for (const std::string& seed : kind.seeds) ASSERT_NO_THROW(kind.read(seed)) << kind.name;
#ifndef __SANITIZE_ADDRESS__
    const rlimit limit{data_bytes() + most_bytes, RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
#endif
    int accepted = 0, refused = 0;
    double longest_s = 0.0;
    for (int number = 0; number < mutants; ++number) {
      const std::string bytes =
          Mutator(unsigned(number))(kind.seeds[std::size_t(number) % kind.seeds.size()]);
      const auto end = fmt::format_to_n(reading.data(), reading.size() - 2, "mutant {} of {}\n",
                                        number, kind.name);
      *end.out = '\0';
      ::alarm(most_wall_s);
      const double begin_s = processor_s();
      (is_accepted(kind, bytes) ? accepted : refused) += 1;
      longest_s = std::max(longest_s, processor_s() - begin_s);
      ::alarm(0);
    }
    EXPECT_GT(refused, mutants / 20) << kind.name;
    EXPECT_LT(longest_s, most_s) << kind.name;
    std::cout << fmt::format("{}: {} read, {} refused, {:.3f} s at most\n", kind.name, accepted,
                             refused, longest_s);
  }

  static bool is_accepted(const test::FileKind& kind, const std::string& bytes) {
    try {
      kind.read(bytes);
      return true;
    } catch (const Error& error) {
      const std::string_view said = error.what();
      EXPECT_TRUE(error.failure() == Failure::input || error.failure() == Failure::storage)
          << reading.data() << said;
      EXPECT_LT(said.size(), 4000u) << reading.data() << said.substr(0, 300);
    } catch (const std::exception& error) {
      ADD_FAILURE() << reading.data() << error.what();
    }
    return false;
  }

  test::OwnFolder folder_;
};

TEST_F(HostileFiles, AreReadOrRefused) {
  const char* asked = std::getenv("BRUME_MUTANTS");
  for (const test::FileKind& kind : test::FileKinds(folder_.path()).all()) {
    // Tokenizers are long, so there are fewer of them.
    const int mutants = kind.seeds[0].size() > 20000 ? 60 : 300;
    read_mutants(kind, asked ? std::atoi(asked) : mutants);
  }
}

}  // namespace
}  // namespace brume
