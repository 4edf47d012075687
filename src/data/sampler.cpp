/// @file Samples of token files: which window or pair each is, and its tokens and targets.
#include "data/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/mix.hpp"
#include "data/token_writer.hpp"
#include "mixture.hpp"

namespace brume::data {
namespace {

/// A folder that goes with what is in it.
struct Removed {
  std::filesystem::path folder;
  ~Removed() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
};

/// The documents of Sampler::documents(); an isolated one's answer begins behind its first token.
template <class First>
std::vector<Document> parts(const First& first, int seq_len, bool isolated) {
  const std::int64_t begin = first.token, end = begin + seq_len + 1;
  std::vector<Document> found =
      first.answer ? std::vector{*first.answer} : first.file.documents(begin, end);
  for (Document& part : found) {
    const bool alone = isolated && !part.continues;
    const std::int64_t answer = std::max(part.answer, part.first + (alone ? 1 : 0));
    part = {.first = std::max(part.first, begin) - begin,
            .answer = std::max(answer, begin + 1) - begin,
            .end = std::min(part.end, end) - begin,
            .continues = part.continues};
  }
  if (first.tokens <= seq_len) found.push_back({first.tokens, seq_len + 1, seq_len + 1});
  return found;
}

}  // namespace

Sampler::Sampler(TokenFile file, Order order, std::uint64_t seed, int seq_len, bool isolated)
    : Sampler(std::vector<WeightedFile>{{std::move(file)}}, order, seed, seq_len, isolated) {}

Sampler::Sampler(std::vector<WeightedFile> files, Order order, std::uint64_t seed, int seq_len,
                 bool isolated, int apart)
    : order_(order),
      seed_(seed),
      seq_len_(seq_len),
      isolated_(isolated),
      apart_(apart > 0 ? apart : seq_len) {
  require(seq_len >= 1 && !files.empty(), Failure::bug, "a window of {} tokens of {} files",
          seq_len, files.size());
  double sum = 0.0, least = files.front().weight;
  for (WeightedFile& of : files) {
    const std::int64_t count = of.file.size();
    const std::string name = of.file.path().string();
    require(of.file.has_pairs() == files.front().file.has_pairs(), Failure::input,
            "{}: {} pairs, unlike the file before it: mix either files with pairs or others", name,
            of.file.has_pairs() ? "holds" : "holds no");
    require(of.file.has_pairs() || count > seq_len, Failure::input,
            "{}: holds {} tokens, but one sequence takes {} (seq_len + 1)", name, count,
            std::int64_t{seq_len} + 1);
    require(!isolated || of.file.has_documents(), Failure::input,
            "{}: does not say where its documents end, so they cannot be isolated: say by which "
            "token they end (data.end_token) or begin (data.begin_token), or pack the text by "
            "`brume import tokens`",
            name);
    require(of.weight > 0.0, Failure::bug, "{}: the weight {}", name, of.weight);
    sum += of.weight;
    least = std::min(least, of.weight);
    if (of.file.has_pairs())
      keep_pairs(of.file);
    else
      windows_.push_back((count - 1 - seq_len) / apart_ + 1);
    num_windows_ += windows_.back();
    files_.push_back(std::move(of.file));
    shares_.push_back(of.weight);
  }
  for (double& share : shares_) share /= sum;
  if (files_.size() == 1) return;
  const auto block = std::bit_ceil(std::uint64_t(std::max(1024.0, std::ceil(2.0 * sum / least))));
  mixture_ = std::make_shared<const Mixture>(shares_, std::int64_t(block), seed);
}

/// Answers are cut at the end of a sequence, and pairs without any left are left out, as by TRL.
void Sampler::keep_pairs(const TokenFile& file) {
  std::vector<std::int32_t> kept;
  for (std::int64_t pair = 0; pair < file.num_pairs(); ++pair) {
    const std::array<Document, 2> answers = file.pair(pair);
    const bool fits = std::ranges::all_of(answers, [&](const Document& of) {
      return std::max(of.answer - of.first, std::int64_t{1}) <
             std::min<std::int64_t>(of.end - of.first, seq_len_ + 1);
    });
    if (fits) kept.push_back(std::int32_t(pair));
    for (const Document& of : answers) answers_cut_ += fits && of.end - of.first > seq_len_ + 1;
  }
  pairs_left_out_ += file.num_pairs() - std::ssize(kept);
  require(!kept.empty(), Failure::input,
          "{}: none of its {} pairs has room for an answer in a sequence of {} tokens "
          "(model.seq_len)",
          file.path().string(), file.num_pairs(), seq_len_);
  windows_.push_back(2 * std::ssize(kept));
  pairs_.push_back(std::make_shared<const std::vector<std::int32_t>>(std::move(kept)));
}

void Sampler::sample(std::int64_t index, const Window& window) const {
  const auto length = static_cast<std::size_t>(seq_len_);
  require(window.inputs.size() == length && window.targets.size() == length, Failure::bug,
          "a sample of {} tokens into {} inputs and {} targets", length, window.inputs.size(),
          window.targets.size());
  const First first = first_token(index);
  std::vector<std::int32_t> tokens(length + 1);
  first.file.read(first.token, std::span(tokens).first(std::size_t(first.tokens)));
  std::copy_n(tokens.begin(), length, window.inputs.begin());
  std::fill_n(window.targets.begin(), length, -1);
  std::int64_t begin = 0;
  for (const Document& part : parts(first, seq_len_, isolated_)) {
    for (std::int64_t i = part.answer; i < part.end; ++i) window.targets[i - 1] = tokens[i];
    if (isolated_ && !part.continues) begin = part.first;
    for (std::int64_t i = part.first; i < std::min(part.end, std::ssize(window.begins)); ++i)
      window.begins[i] = std::int32_t(begin);
  }
}

std::vector<Document> Sampler::documents(std::int64_t index) const {
  return parts(first_token(index), seq_len_, isolated_);
}

std::int64_t Sampler::num_targets(std::int64_t first, std::int64_t count) const {
  std::int64_t targets = 0;
  for (std::int64_t index = first; index < first + count; ++index)
    for (const Document& part : documents(index))
      targets += std::max<std::int64_t>(0, part.end - part.answer);
  return targets;
}

double Sampler::attention_pairs(std::int64_t index) const {
  double pairs = 0.0;
  std::int64_t begin = 0, end = 0;  // of the document so far
  const auto end_document = [&] {
    pairs += double(end - begin) * (double(end - begin) + 1.0) / 2.0;
  };
  for (const Document& part : documents(index)) {
    if (!part.continues) {
      end_document();
      begin = part.first;
    }
    end = std::min<std::int64_t>(part.end, seq_len_);
  }
  end_document();
  return pairs;
}

double Sampler::document_share() const {
  if (!isolated_) return 1.0;
  constexpr std::int64_t most = 4096;
  const std::int64_t count = std::min(num_windows_, most);
  double pairs = 0.0;
  for (std::int64_t index = 0; index < count; ++index) pairs += attention_pairs(index);
  return 2.0 * pairs / (double(count) * seq_len_ * (seq_len_ + 1.0));
}

std::vector<TokenFileIdentity> Sampler::identities() const {
  std::vector<TokenFileIdentity> all;
  for (const TokenFile& file : files_) all.push_back(file.identity());
  return all;
}

Sampler::Place Sampler::place(std::int64_t index) const {
  require(index >= 0, Failure::bug, "sample {}", index);
  if (by_number_) {
    std::size_t file = 0;
    std::int64_t window = index % num_windows_;
    while (window >= windows_[file]) window -= windows_[file++];
    return {file, window};
  }
  // Windows are put in an order, or pairs of them.
  const std::int64_t each = pairs() ? 2 : 1, number = index / each, rest = index % each;
  const auto [file, sample] = mixture_ ? mixture_->place(number) : Mixture::Place{0, number};
  const std::int64_t count = windows_[file] / each, within = sample % count;
  if (order_ == Order::sequential) return {file, within * each + rest};
  const auto epoch = static_cast<std::uint64_t>(sample / count);
  const std::uint64_t key = mix(mix(seed_ + golden_step) + epoch) + file;
  return {file, permute(within, count, key) * each + rest};
}

Sampler::First Sampler::first_token(std::int64_t index) const {
  const auto [file, window] = place(index);
  const std::int64_t most = seq_len_ + std::int64_t{1};
  if (!pairs()) return {files_[file], window * apart_, most};
  const std::int64_t pair = (*pairs_[file])[std::size_t(window / 2)];
  const Document answer = files_[file].pair(pair)[std::size_t(window % 2)];
  return {files_[file], answer.first, std::min(answer.end - answer.first, most), answer};
}

std::int64_t Sampler::window(std::int64_t index) const {
  const auto [file, window] = place(index);
  return std::accumulate(windows_.begin(), windows_.begin() + std::ptrdiff_t(file), window);
}

Sampler Sampler::by_number() const {
  Sampler all = *this;
  all.by_number_ = true;
  return all;
}

Sampler sampler_of(std::span<const std::int32_t> tokens, int vocab_size,
                   const DocumentEnds& documents, int seq_len, bool isolated) {
  // The file gets a folder of its own, because others may write to that of temporary files.
  std::string folder = (std::filesystem::temp_directory_path() / "brume-tokens-XXXXXX").string();
  const bool made = ::mkdtemp(folder.data()) != nullptr;
  require(made, Failure::storage, "{}: cannot be made: {}", folder, last_error());
  const Removed at_the_end{folder};
  const std::filesystem::path path = std::filesystem::path(folder) / "a.tok";
  write_token_file(path, tokens, vocab_size, documents);
  std::vector<WeightedFile> files{{TokenFile(path)}};  // which keeps it open
  return Sampler(std::move(files), Order::sequential, 1, seq_len, isolated, seq_len + 1);
}

Sampler random_tokens(int vocab_size, int seq_len, std::int64_t count) {
  std::mt19937 random(1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens) token = std::int32_t(random() % unsigned(vocab_size));
  return sampler_of(tokens, vocab_size, {}, seq_len);
}

}  // namespace brume::data
