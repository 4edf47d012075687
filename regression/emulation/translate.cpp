/// @file Translates the PTX of nvcc into C++: translate IN.ptx OUT.cpp
///
/// A kernel becomes a function of one thread, a register a variable, a label a label, and an
/// instruction the call of a function under its name, `fma.rn.f32 %f1, %f2, %f3, %f4` becomes
/// `s.f1 = fma_rn_f32(s.f2, s.f3, s.f4)`. Where a thread waits for others the function returns, and
/// is called again to go on there; its registers are then kept outside of it. What the instructions
/// do stands in ptx.hpp; one that is missing there is an error of the C++ compiler, which names it.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(int line, const std::string& what) {
  std::cerr << "translate: line " << line << ": " << what << '\n';
  std::exit(1);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t");
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string replaced(std::string text, char from, char to) {
  for (char& letter : text)
    if (letter == from) letter = to;
  return text;
}

/// The C++ type of a PTX type.
std::string type_of(const std::string& type, int line) {
  static const std::map<std::string, std::string> types{
      {"pred", "bool"},        {"b8", "std::uint8_t"},   {"u8", "std::uint8_t"},
      {"s8", "std::int8_t"},   {"b16", "std::uint16_t"}, {"u16", "std::uint16_t"},
      {"s16", "std::int16_t"}, {"b32", "std::uint32_t"}, {"u32", "std::uint32_t"},
      {"s32", "std::int32_t"}, {"b64", "std::uint64_t"}, {"u64", "std::uint64_t"},
      {"s64", "std::int64_t"}, {"f32", "float"},         {"f64", "double"}};
  const auto found = types.find(type);
  if (found == types.end()) fail(line, "unknown type ." + type);
  return found->second;
}

int bytes_of(const std::string& type) { return type == "pred" ? 1 : std::stoi(type.substr(1)) / 8; }

/// A register, a number, or the name of a variable.
std::string operand(const std::string& text) {
  const std::string value = trimmed(text);
  if (value.rfind("0f", 0) == 0) return "float_of(0x" + value.substr(2) + "u)";
  if (value.rfind("0d", 0) == 0) return "double_of(0x" + value.substr(2) + "ull)";
  for (const char* special : {"%tid.", "%ntid.", "%ctaid.", "%nctaid."})
    if (value.rfind(special, 0) == 0) return "t." + value.substr(1);
  return value[0] == '%' ? "s." + value.substr(1) : value;
}

/// [%rd1+8] -> rd1+8
std::string address(const std::string& text, int line) {
  const std::string value = trimmed(text);
  if (value.front() != '[' || value.back() != ']') fail(line, "no address: " + value);
  std::string sum;
  for (const std::string& term : split(value.substr(1, value.size() - 2), '+'))
    sum += (sum.empty() ? "" : " + ") + operand(term);
  return sum;
}

/// Operands, between commas that stand in no braces.
std::vector<std::string> operands(const std::string& text) {
  std::vector<std::string> all(1);
  int depth = 0;
  for (char letter : text) {
    depth += letter == '{' ? 1 : letter == '}' ? -1 : 0;
    if (letter == ',' && depth == 0)
      all.emplace_back();
    else
      all.back() += letter;
  }
  for (std::string& one : all) one = trimmed(one);
  return all;
}

/// {%f1, %f2} -> f1 and f2; a scalar is itself.
std::vector<std::string> elements(const std::string& text) {
  std::vector<std::string> all;
  const bool is_vector = text.front() == '{';
  for (const std::string& one : split(is_vector ? text.substr(1, text.size() - 2) : text, ','))
    all.push_back(operand(one));
  return all;
}

struct Kernel {
  std::string name;
  std::string constants, registers, body;
  std::string parameter_sizes, site_lines;
  int parameter_bytes = 0, shared_bytes = 0, local_bytes = 0, sites = 0;
  int waits = 0;  ///< places where it waits for other threads
};

int aligned(int offset, int alignment) { return (offset + alignment - 1) / alignment * alignment; }

class Translator {
 public:
  void read(std::istream& in) {
    for (std::string text; std::getline(in, text);) {
      ++line_;
      text = trimmed(text.substr(0, text.find("//")));
      if (!text.empty()) take(text);
    }
    if (inside_) fail(line_, "the file ends within a kernel");
  }

  void write(std::ostream& out) const {
    out << "#include \"ptx.hpp\"\n\nnamespace {\nusing namespace brume::emulation;\n";
    for (std::size_t k = 0; k < kernels_.size(); ++k) {
      const Kernel& kernel = kernels_[k];
      const std::string registers = "Registers" + std::to_string(k);
      out << "\nstruct " << registers << " {\n" << kernel.registers << "};\n";
      out << "bool kernel_" << k << "(Thread& t) {\n" << kernel.constants;
      if (kernel.waits == 0) {
        out << registers << " s;\n";
      } else {
        out << registers << "& s = *reinterpret_cast<" << registers << "*>(t.registers);\n"
            << "switch (t.place) {\n";
        for (int place = 1; place <= kernel.waits; ++place)
          out << "case " << place << ": goto place_" << place << ";\n";
        out << "}\n";
      }
      out << kernel.body << "}\n"
          << "const Registered registered_" << k << "(\"" << kernel.name << "\", {kernel_" << k
          << ", {" << kernel.parameter_sizes << "}, " << kernel.shared_bytes << ", "
          << kernel.local_bytes << ", {" << kernel.site_lines << "}, "
          << (kernel.waits > 0 ? "sizeof(" + registers + ")" : "0") << "});\n";
    }
    out << "}  // namespace\n";
  }

 private:
  void take(const std::string& text) {
    if (!inside_) return header(text);
    if (text == "{") {
      if (++depth_ > 1) now().body += "{\n";
    } else if (text == "}") {
      if (--depth_ > 0)
        now().body += "}\n";
      else
        inside_ = false;
    } else if (text.back() == ':') {
      now().body += replaced(text, '$', '_') + ";\n";
    } else {
      if (text.front() == '{') fail(line_, "a block that begins on the line of an instruction");
      pending_ += text;
      if (text.back() != ';') return;  // goes on
      for (const std::string& one : split(pending_, ';')) statement(trimmed(one));
      pending_.clear();
    }
  }

  /// Between kernels, and a kernel's parameters.
  void header(const std::string& text) {
    if (text.rfind(".visible .entry ", 0) == 0) {
      kernels_.push_back(shared_);
      now().name = text.substr(16, text.find('(') - 16);
    } else if (text.rfind(".param", 0) == 0) {
      parameter(text);
    } else if (text.rfind(".shared", 0) == 0) {
      place(shared_, text.substr(7, text.size() - 8), shared_.shared_bytes);
    } else if (text == ")") {
      inside_ = true;
      depth_ = 0;
    } else if (text.rfind(".version", 0) != 0 && text.rfind(".target", 0) != 0 &&
               text.rfind(".address_size", 0) != 0) {
      fail(line_, "unknown: " + text);
    }
  }

  struct Variable {
    std::string name;
    int bytes, alignment;
  };

  /// .align 8 .b8 name[48]  or  .u64 name
  Variable variable(const std::string& text) const {
    std::istringstream words(text);
    Variable made{"", 0, 1};
    std::string word, type;
    while (words >> word)
      if (word == ".align")
        words >> made.alignment;
      else if (word[0] == '.')
        type = word.substr(1);
      else
        made.name = word;
    if (made.name.empty() || type.empty()) fail(line_, "no variable: " + text);
    if (made.name.back() == ',') made.name.pop_back();
    made.bytes = bytes_of(type);
    made.alignment = std::max(made.alignment, made.bytes);
    if (const auto bracket = made.name.find('['); bracket != std::string::npos) {
      made.bytes *= std::stoi(made.name.substr(bracket + 1));
      made.name.resize(bracket);
    }
    return made;
  }

  void parameter(const std::string& text) {
    const Variable one = variable(text.substr(6));
    Kernel& kernel = now();
    const int offset = aligned(kernel.parameter_bytes, one.alignment);
    constant(kernel, one.name, offset);
    kernel.parameter_bytes = offset + one.bytes;
    kernel.parameter_sizes +=
        "{" + std::to_string(offset) + ", " + std::to_string(one.bytes) + "}, ";
  }

  static void constant(Kernel& kernel, const std::string& name, int value) {
    kernel.constants += "constexpr std::uint64_t " + name + " = " + std::to_string(value) + ";\n";
  }

  /// A variable of the block or of the thread: its name is its place in that memory.
  void place(Kernel& kernel, const std::string& text, int& bytes) const {
    const Variable one = variable(text);
    bytes = aligned(bytes, one.alignment);
    constant(kernel, one.name, bytes);
    bytes += one.bytes;
  }

  /// .reg .b32 %r<96>
  void registers(const std::string& text) {
    std::istringstream words(text);
    std::string type, name;
    words >> type >> name;
    std::string& out = now().registers;
    const auto bracket = name.find('<');
    if (bracket == std::string::npos) {
      // Those of a block within the kernel have the same names in each.
      const std::string declared = type_of(type.substr(1), line_) + " " + name.substr(1) + ";\n";
      if (out.find(declared) == std::string::npos) out += declared;
      return;
    }
    out += type_of(type.substr(1), line_) + " ";
    const int count = std::stoi(name.substr(bracket + 1));
    for (int i = 0; i < count; ++i)
      out += (i ? ", " : "") + name.substr(1, bracket - 1) + std::to_string(i);
    out += ";\n";
  }

  void statement(const std::string& text) {
    if (text.empty() || text.rfind(".pragma", 0) == 0) return;
    if (text.rfind(".reg", 0) == 0) return registers(text.substr(4));
    if (text.rfind(".shared", 0) == 0) return place(now(), text.substr(7), now().shared_bytes);
    if (text.rfind(".local", 0) == 0) return place(now(), text.substr(6), now().local_bytes);
    if (text[0] == '.') fail(line_, "unknown directive: " + text);
    if (text[0] != '@') return instruction(text);
    const auto space = text.find_first_of(" \t");
    const bool negated = text[1] == '!';
    now().body += std::string("if (") + (negated ? "!" : "") +
                  operand(text.substr(negated ? 2 : 1, space - (negated ? 2 : 1))) + ") ";
    instruction(trimmed(text.substr(space)));
  }

  void instruction(const std::string& text) {
    const auto space = text.find_first_of(" \t");
    const std::string opcode = text.substr(0, space);
    const std::vector<std::string> parts = split(opcode, '.');
    const std::vector<std::string> of =
        space == std::string::npos ? std::vector<std::string>{} : operands(text.substr(space));
    std::string& out = now().body;
    if (parts[0] == "bra") {
      out += "goto " + replaced(of[0], '$', '_') + ";\n";
    } else if (parts[0] == "ret") {
      out += "return true;\n";
    } else if (parts[0] == "bar") {
      wait(call(parts) + "(t" + (of[0] == "0" ? "" : rest(of, 0)) + ")");
    } else if (parts[0] == "shfl") {
      const std::vector<std::string> to = split(of[0], '|');
      wait(call(parts) + "(t, " + std::to_string(line_) + rest(of) + ")",
           "take(t, " + operand(to[0]) + ", " + operand(to.at(1)) + "); ");
    } else if (parts[0] == "ld") {
      transfer(parts, of[0], of[1], true);
    } else if (parts[0] == "st") {
      transfer(parts, of[1], of[0], false);
    } else if (parts[0] == "mov") {
      // The same bits, whatever the registers' types; a vector's elements one by one.
      std::string all;
      for (const std::string& side : of)
        for (const std::string& one : elements(side)) all += ", " + one;
      out += (of[0][0] == '{'   ? "unpack("
              : of[1][0] == '{' ? "pack("
                                : "mov(") +
             all.substr(2) + ");\n";
    } else {
      out += operand(of[0]) + " = " + call(parts) + "(" +
             (of.size() > 1 ? rest(of).substr(2) : "") + ");\n";
    }
  }

  /// A place where the function may leave, and begin again when other threads have come: what
  /// `arrive` calls says whether they have already.
  void wait(const std::string& arrive, const std::string& after = "") {
    const std::string place = std::to_string(++now().waits);
    now().body += "{ if (!" + arrive + ") { t.place = " + place + "; return false; } place_" +
                  place + ": " + after + "; }\n";
  }

  static std::string call(const std::vector<std::string>& parts) {
    std::string name;
    for (const std::string& part : parts) name += (name.empty() ? "" : "_") + part;
    return name;
  }
  static std::string rest(const std::vector<std::string>& of, std::size_t first = 1) {
    std::string all;
    for (std::size_t i = first; i < of.size(); ++i) all += ", " + operand(of[i]);
    return all;
  }

  /// ld.global.v2.f32 {%f1, %f2}, [%rd1+8]: one element after another, aligned as all of them.
  void transfer(const std::vector<std::string>& parts, const std::string& values,
                const std::string& place, bool is_load) {
    const std::string type = type_of(parts.back(), line_);
    const std::vector<std::string> of = elements(values);
    if (parts.size() != (values[0] == '{' ? 4u : 3u))
      fail(line_, "unknown kind of memory access: " + call(parts));
    const int bytes = bytes_of(parts.back());
    std::string site;
    if (parts[1] == "global") {
      site = std::to_string(now().sites++) + ", ";
      now().site_lines += std::to_string(line_) + ", ";
    }
    std::string& out = now().body;
    out += "{ const std::uint64_t at = " + address(place, line_) + "; ";
    for (std::size_t i = 0; i < of.size(); ++i) {
      const std::string where = "t, " + site + "at + " + std::to_string(int(i) * bytes);
      const std::string alignment = i == 0 ? ", " + std::to_string(int(of.size()) * bytes) : "";
      out += is_load ? of[i] + " = ld_" + parts[1] + "<" + type + ">(" + where + alignment + "); "
                     : "st_" + parts[1] + "<" + type + ">(" + where + ", " + type + "(" + of[i] +
                           ")" + alignment + "); ";
    }
    out += "}\n";
  }

  Kernel& now() { return kernels_.back(); }

  std::vector<Kernel> kernels_;
  Kernel shared_;  ///< what all kernels begin with: variables of blocks that stand before them
  std::string pending_;
  int line_ = 0, depth_ = 0;
  bool inside_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: translate IN.ptx OUT.cpp\n";
    return 2;
  }
  std::ifstream in(argv[1]);
  if (!in) {
    std::cerr << "translate: " << argv[1] << " cannot be read\n";
    return 1;
  }
  Translator translator;
  translator.read(in);
  std::ofstream out(argv[2]);
  translator.write(out);
  return out.flush() ? 0 : 1;
}
