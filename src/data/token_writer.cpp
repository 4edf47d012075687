#include "data/token_writer.hpp"

#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "token_format.hpp"

namespace brume::data {
namespace {
constexpr std::size_t piece_bytes = std::size_t{1} << 20;
static_assert(piece_bytes % Checksum::step == 0);
}  // namespace

/// Numbers that wait for the end of the tokens: of many, most wait in a file without a name.
class WaitingNumbers {
 public:
  explicit WaitingNumbers(const std::filesystem::path& beside)
      : name_(beside.string()), directory_(beside.parent_path()) {}

  std::int64_t size() const { return in_file_ + std::ssize(last_); }

  void add(std::int64_t number) {
    last_.push_back(number);
    if (last_.size() < piece_numbers) return;
    if (!file_) file_.emplace(unnamed_file(directory_.empty() ? "." : directory_));
    require(file_->get() >= 0, Failure::storage, "{}: no file can be made beside it: {}", name_,
            last_error());
    write_all(*file_, std::as_bytes(std::span(last_)), name_);
    in_file_ += std::ssize(last_);
    last_.clear();
  }

  /// Hands all numbers out in order, piece by piece.
  template <class Use>
  void take(const Use& use) const {
    std::vector<std::int64_t> piece(piece_numbers);
    for (std::int64_t first = 0; first < in_file_; first += std::ssize(piece)) {
      const auto room = std::as_writable_bytes(std::span(piece));
      const std::int64_t byte = first * std::int64_t(sizeof(std::int64_t));
      const std::size_t got = read_at(*file_, byte, room, name_);
      require(got == room.size(), Failure::storage, "{}: the file beside it was cut", name_);
      use(std::as_bytes(std::span(piece)));
    }
    use(std::as_bytes(std::span(last_)));
  }

 private:
  static constexpr std::size_t piece_numbers = piece_bytes / sizeof(std::int64_t);
  std::string name_;
  std::filesystem::path directory_;
  std::optional<Descriptor> file_;
  std::int64_t in_file_ = 0;  ///< numbers, a multiple of a piece
  std::vector<std::int64_t> last_;
};

struct TokenFileWriter::Making {
  Making(const std::filesystem::path& path, int vocab)
      : name(path.string()), vocab_size(vocab), file(path), ends(path), answers(path) {
    require(vocab >= 1, Failure::bug, "{}: a vocabulary of {}", name, vocab);
    const Header none{};
    file.write(std::as_bytes(std::span(&none, 1)));
  }

  /// Bytes behind the header; each piece that is written has whole steps of the checksum.
  void put(std::span<const std::byte> bytes) {
    piece.insert(piece.end(), bytes.begin(), bytes.end());
    if (piece.size() < piece_bytes) return;
    const std::size_t whole = piece.size() / Checksum::step * Checksum::step;
    flush(whole);
    piece.erase(piece.begin(), piece.begin() + std::ptrdiff_t(whole));
  }

  void flush(std::size_t bytes) {
    const auto first = std::span(piece).first(bytes);
    sum.add(first);
    file.write(first);
  }

  std::string name;
  int vocab_size;
  OutputFile file;
  Checksum sum;
  Bytes piece;
  WaitingNumbers ends, answers;
  bool any_continues = false;
  std::int64_t count = 0;
};

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, int vocab_size)
    : making_(std::make_unique<Making>(path, vocab_size)) {}

TokenFileWriter::~TokenFileWriter() = default;

std::int64_t TokenFileWriter::size() const { return making_->count; }

void TokenFileWriter::add(std::span<const std::int32_t> tokens) {
  Making& made = *making_;
  for (const std::int32_t token : tokens)
    require(token >= 0 && token < made.vocab_size, Failure::bug,
            "{}: token {} outside the vocabulary of {}", made.name, token, made.vocab_size);
  made.count += std::ssize(tokens);
  if (made.vocab_size > max_vocab_16_bits) return made.put(std::as_bytes(tokens));
  const std::vector<std::uint16_t> narrow(tokens.begin(), tokens.end());
  made.put(std::as_bytes(std::span(narrow)));
}

void TokenFileWriter::add_document(std::int64_t end, std::int64_t answer, bool continues) {
  making_->ends.add(end);
  making_->answers.add(continues ? answer | continues_mark : answer);
  making_->any_continues = making_->any_continues || continues;
}

void TokenFileWriter::commit(bool with_answers, bool pairs) {
  Making& made = *making_;
  const std::int64_t documents = made.ends.size();
  pairs = pairs && documents > 0;
  require(!pairs || (documents % 2 == 0 && !made.any_continues), Failure::bug,
          "{}: pairs of {} documents", made.name, documents);
  with_answers = with_answers || made.any_continues || pairs;
  Header header = header_for(made.count, made.vocab_size, documents, with_answers ? documents : 0,
                             made.any_continues, pairs);
  if (documents > 0) {
    const std::size_t over = made.piece.size() % Checksum::step;
    if (over > 0) made.piece.resize(made.piece.size() + Checksum::step - over);
    const auto put = [&](std::span<const std::byte> numbers) { made.put(numbers); };
    made.ends.take(put);
    if (with_answers) made.answers.take(put);
  }
  made.flush(made.piece.size());
  header.checksum = made.sum.of(header);
  made.file.write_at(0, std::as_bytes(std::span(&header, 1)));
  made.file.commit();
}

void write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                      int vocab_size, const DocumentEnds& documents, bool pairs) {
  const bool answers = !documents.answers.empty();
  require(!answers || documents.answers.size() == documents.ends.size(), Failure::bug,
          "{}: {} documents with {} answers", path.string(), documents.ends.size(),
          documents.answers.size());
  const std::vector<bool>& continued = documents.continued;
  require(continued.empty() || (answers && continued.size() == documents.ends.size()), Failure::bug,
          "{}: {} documents, {} that may continue others", path.string(), documents.ends.size(),
          continued.size());
  TokenFileWriter writer(path, vocab_size);
  writer.add(tokens);
  for (std::size_t i = 0; i < documents.ends.size(); ++i)
    writer.add_document(documents.ends[i], answers ? documents.answers[i] : 0,
                        !continued.empty() && continued[i]);
  writer.commit(answers, pairs);
}

}  // namespace brume::data
