#include "interop/safetensors.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/bfloat16.hpp"
#include "base/float16.hpp"
#include "hugging_face_files.hpp"
#include "own_folder.hpp"
#include "refusal.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

using test::framed;
using test::OwnFolder;
using test::put;
using test::safetensors;

std::string bytes_of(const std::vector<std::uint16_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), 2 * values.size()};
}
std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), 4 * values.size()};
}

std::vector<float> all_of(const TensorFile& file, const std::string& tensor) {
  std::vector<float> values(std::size_t(file.tensors().at(tensor).elements));
  file.read(tensor, 0, values);
  return values;
}

TEST(Safetensors, TensorsOfEachDtypeAreReadToTheBit) {
  const OwnFolder folder;
  put(folder / "a",
      safetensors(
          {{"wide", "F32", {2, 3}, bytes_of(std::vector<float>{1, -2, 3e-40f, 4, 5, 6e30f})},
           {"brain", "BF16", {3}, bytes_of(std::vector<std::uint16_t>{0x3f80, 0xc049, 1})},
           {"none", "F16", {0, 7}, ""},
           {"half", "F16", {3}, bytes_of(std::vector<std::uint16_t>{0x3c00, 0xc200, 1})},
           {"count", "I64", {}, std::string(8, '\1')}}));
  const TensorFile file(folder / "a");
  EXPECT_EQ(all_of(file, "wide"), (std::vector<float>{1, -2, 3e-40f, 4, 5, 6e30f}));
  EXPECT_EQ(all_of(file, "brain"), (std::vector<float>{1, -3.140625f, 0x1p-133f}));
  EXPECT_EQ(all_of(file, "half"), (std::vector<float>{1, -3, 0x1p-24f}));
  EXPECT_EQ(all_of(file, "none"), std::vector<float>());
  EXPECT_EQ(file.tensors().at("wide").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.tensors().at("count").elements, 1);
  std::vector<float> part(2);
  file.read("wide", 3, part);
  EXPECT_EQ(part, (std::vector<float>{4, 5}));
  EXPECT_NE(test::refusal([&] { all_of(file, "count"); }).find("\"count\" has dtype I64: only F32"),
            std::string::npos);
}

TEST(Safetensors, SpacesAndMetadataAreNoTensors) {
  const OwnFolder folder;
  put(folder / "a", framed(R"({"__metadata__":{"format":"pt","a":"b"},"x":{"shape":[2],)"
                           R"("data_offsets":[0,8],"dtype":"F32"}}     )",
                           std::string(8, '\0')));
  EXPECT_EQ(TensorFile(folder / "a").tensors().size(), 1u);
}

TEST(Safetensors, TensorsHaveFormatsOfTheirOwn) {
  const OwnFolder folder;
  TensorWriter writer(folder / "out",
                      {{"a", {3}, Dtype::bf16}, {"b", {2}, Dtype::f32}, {"c", {1}, Dtype::f16}});
  const std::vector<float> values{1.0f, 2.0f, 3.0f, 1.00000012f, -1.0f, 0.5f};
  writer.write(std::span(values).first(4));
  writer.write(std::span(values).subspan(4));
  writer.commit();
  const TensorFile file(folder / "out");
  EXPECT_EQ(file.dtype("a"), Dtype::bf16);
  EXPECT_EQ(all_of(file, "a"), (std::vector<float>{1.0f, 2.0f, 3.0f}));
  EXPECT_EQ(all_of(file, "b"), (std::vector<float>{1.00000012f, -1.0f}));
  EXPECT_EQ(file.tensors().at("c").bytes, 2);
  EXPECT_EQ(all_of(file, "c"), (std::vector<float>{0.5f}));
}

TEST(Safetensors, WhatIsWrittenIsReadByTheFormatsRules) {
  const OwnFolder folder;
  const std::vector<float> values{1.0f, 1.00390625f, 1.01171875f, -0x1p-133f, 3.0f, INFINITY};
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    TensorWriter writer(folder / "out", {{"b", {2, 2}, dtype}, {"a", {2}, dtype}});
    writer.write(std::span(values).first(3));
    writer.write(std::span(values).subspan(3));
    writer.commit();
    const std::string bytes = test::content(folder / "out");
    const std::size_t length = std::size_t(static_cast<unsigned char>(bytes[0])) +
                               256 * std::size_t(static_cast<unsigned char>(bytes[1]));
    EXPECT_EQ(length % 8, 0u);
    std::string expected;
    for (const float value : values) {
      const std::uint16_t narrow =
          dtype == Dtype::bf16 ? bfloat16(value).bits : float16(value).bits;
      expected +=
          dtype == Dtype::f32 ? bytes_of(std::vector{value}) : bytes_of(std::vector{narrow});
    }
    EXPECT_EQ(bytes.substr(8 + length), expected);
    const TensorFile file(folder / "out");
    EXPECT_EQ(file.dtype("a"), dtype);
    EXPECT_EQ(file.tensors().at("b").shape, (std::vector<std::int64_t>{2, 2}));
    EXPECT_EQ(all_of(file, "a"), (std::vector<float>{3.0f, INFINITY}));
  }
}

/// Everything that a 16-bit format can hold, not-a-numbers apart, comes back with its bits.
TEST(Safetensors, EveryNarrowNumberSurvivesFp32) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    bfloat16 brain;
    float16 half;
    brain.bits = half.bits = std::uint16_t(i);
    EXPECT_TRUE(std::isnan(float(brain)) || bfloat16(float(brain)).bits == i) << i;
    EXPECT_TRUE(std::isnan(float(half)) || float16(float(half)).bits == i) << i;
  }
}

struct Broken {
  const char* what;
  std::string bytes;
  const char* says;
};

std::string x(const std::string& entry, std::size_t data_bytes = 8) {
  return framed("{\"x\":" + entry + "}", std::string(data_bytes, '\0'));
}
std::string two(const std::string& a, const std::string& b, std::size_t data_bytes) {
  return framed(R"({"a":{"dtype":"U8","shape":)" + a + R"(},"b":{"dtype":"U8","shape":)" + b + "}}",
                std::string(data_bytes, '\0'));
}

const std::vector<Broken>& broken_files() {
  static const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  static const std::vector<Broken> files{
      {"nothing", "", "has 0 bytes, a header's length takes 8"},
      {"half a length", "\x10\0\0", "bytes, a header's length takes 8"},
      {"a length beyond all bounds", std::string(8, '\xff') + "{}",
       "would have 18446744073709551615 bytes, at most 100000000 are read"},
      {"a length beyond the file", framed("{}", "").replace(0, 1, "\x03"),
       "would have 3 bytes, 2 follow its length: it was cut off"},
      {"text", "version https://git-lfs.github.com/spec/v1", "at most 100000000 are read"},
      {"no object", framed("[]", ""), "does not begin with '{'"},
      {"an empty header", framed("", ""), "does not begin with '{'"},
      {"half of JSON", framed("{\"x\":", ""), "is not JSON from byte"},
      {"two texts", framed("{}{}", ""), "is not JSON from byte"},
      {"bytes that are no UTF-8", framed("{\"\xff\":1}", ""), "is not JSON from byte"},
      {"a number for a tensor", x("3"), "\"x\" is not described by an object, but by a number"},
      {"a list for a tensor", x("[]"), "\"x\" is not described by an object, but by a list"},
      {"deep lists", x("{\"shape\":" + std::string(100000, '[')), "has a list where its shape"},
      {"deep objects", x("{\"shape\":{\"a\":" + std::string(1000, '{')),
       "has an object where its shape"},
      {"no dtype", x(R"({"shape":[2],"data_offsets":[0,8]})"), "\"x\" has no dtype"},
      {"no shape", x(R"({"dtype":"F32","data_offsets":[0,8]})"), "\"x\" has no shape"},
      {"no offsets", x(R"({"dtype":"F32","shape":[2]})"), "\"x\" has no data_offsets"},
      {"an unknown key", x(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":"y"})"),
       "\"x\" has the unknown key \"more\""},
      {"an unknown dtype", x(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})"),
       "\"x\" has the unknown dtype \"F31\""},
      {"a dtype that is a list", x(R"({"dtype":["F32"],"shape":[2],"data_offsets":[0,8]})"),
       "\"x\" has a list where its dtype"},
      {"a negative size", x(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
       "\"x\" has a negative number where its shape"},
      {"a size that is not whole", x(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
       "where its shape"},
      {"a size of 65 bits",
       x(R"({"dtype":"F32","shape":[36893488147419103232],"data_offsets":[0,8]})"),
       "where its shape"},
      {"a size of 64 bits",
       x(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"),
       "in its shape is too large"},
      {"sizes whose product overflows",
       x(R"({"dtype":"F32","shape":[4294967296,4294967296,4294967298],"data_offsets":[0,8]})"),
       "cannot be counted"},
      {"many dimensions",
       x(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})"),
       "its shape has more than 16 numbers"},
      {"three offsets", x(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})"),
       "its data_offsets has more than 2 numbers"},
      {"one offset", x(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"),
       "its data_offsets are not a beginning and an end"},
      {"offsets that go back", x(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
       "its data_offsets are not a beginning and an end"},
      {"too few bytes for the shape", x(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
       "\"x\" of dtype F32 and shape [3] has 8 bytes"},
      {"an end beyond the file", x(good, 7), "\"x\" ends at byte 8 of the data, the file has 7"},
      {"bytes of no tensor", x(good, 9), "its tensors end at byte 8 of the data, the file has 9"},
      {"a tensor twice", framed("{\"x\":" + good + ",\"x\":" + good + "}", std::string(8, '\0')),
       "has tensor \"x\" twice"},
      {"a key twice", x(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"),
       "\"x\" has \"dtype\" twice"},
      {"a hole", two(R"([2],"data_offsets":[0,2])", R"([2],"data_offsets":[3,5])", 5),
       "\"b\" begins at byte 3 of the data, which leaves a hole from byte 2"},
      {"a hole at the start", two(R"([2],"data_offsets":[1,3])", R"([2],"data_offsets":[3,5])", 5),
       "\"a\" begins at byte 1 of the data, which leaves a hole from byte 0"},
      {"an overlap", two(R"([4],"data_offsets":[0,4])", R"([2],"data_offsets":[2,4])", 4),
       "\"b\" begins at byte 2 of the data, before the end of another at 4"},
      {"offsets near the end of 64 bits",
       two(R"([9223372036854775807],"data_offsets":[0,9223372036854775807])",
           R"([2],"data_offsets":[0,2])", 4),
       "cannot be counted"},
      {"metadata of numbers", framed(R"({"__metadata__":{"a":1}})", ""),
       "__metadata__ has a number as \"a\", not a text"},
      {"metadata twice", framed(R"({"__metadata__":{},"__metadata__":{}})", ""), "twice"},
      {"a name with a line break", x(R"({"dt\ny":"F32"})"), "the unknown key \"dt\\ny\""},
  };
  return files;
}

TEST(Safetensors, EachKindOfBrokenFileIsRefusedInOneLine) {
  const OwnFolder folder;
  for (const Broken& file : broken_files()) {
    put(folder / "bad.safetensors", file.bytes);
    const std::string said = test::refusal([&] { TensorFile(folder / "bad.safetensors"); });
    EXPECT_NE(said.find(file.says), std::string::npos) << file.what << ": " << said;
    EXPECT_TRUE(said.starts_with((folder / "bad.safetensors").string())) << file.what;
    EXPECT_LT(said.size(), 400u) << file.what;
  }
}

TEST(Safetensors, AGoodFileCutAnywhereIsRefused) {
  const OwnFolder folder;
  const std::string whole =
      safetensors({{"x", "F32", {2}, std::string(8, 'x')}, {"y", "F16", {3}, std::string(6, 'y')}});
  put(folder / "whole", whole);
  EXPECT_NO_THROW(TensorFile(folder / "whole"));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    put(folder / "cut", whole.substr(0, bytes));
    EXPECT_THROW(TensorFile(folder / "cut"), Error) << bytes;
  }
}

/// Whatever becomes of a header, it is read or refused, and what is read lies within the file.
TEST(Safetensors, NoDamagedHeaderDoesMoreThanFail) {
  const OwnFolder folder;
  const std::string whole = safetensors({{"x", "F32", {2}, std::string(8, 'x')},
                                         {"y", "F16", {3, 1}, std::string(6, 'y')},
                                         {"z", "BF16", {0}, ""}});
  std::mt19937 random(3);
  const std::string characters = "0123456789{}[]\":,-.eE\\ \n\xff" + std::string(1, '\0');
  int read = 0, refused = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::string damaged = whole;
    for (std::uint32_t changes = 1 + random() % 3; changes > 0; --changes)
      damaged[8 + random() % (damaged.size() - 8 - 14)] = characters[random() % characters.size()];
    put(folder / "a", damaged);
    try {
      const TensorFile file(folder / "a");
      for (const auto& [name, entry] : file.tensors())
        EXPECT_TRUE(entry.first_byte >= 8 && entry.bytes >= 0 &&
                    entry.first_byte + entry.bytes <= std::int64_t(damaged.size()));
      ++read;
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      ++refused;
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 500);
}

TEST(Safetensors, AFileThatBecomesShorterIsNoticed) {
  const OwnFolder folder;
  put(folder / "a", safetensors({{"x", "F32", {2}, std::string(8, 'x')}}));
  const TensorFile file(folder / "a");
  fs::resize_file(folder / "a", fs::file_size(folder / "a") - 1);
  EXPECT_NE(test::refusal([&] { all_of(file, "x"); }).find("has become shorter"),
            std::string::npos);
}

TEST(Safetensors, FoldersAndMissingFilesAreNamed) {
  const OwnFolder folder;
  EXPECT_NE(test::refusal([&] { TensorFile(folder / "none"); }).find("none: cannot be opened"),
            std::string::npos);
  EXPECT_NE(test::refusal([&] { TensorFile{folder.path()}; }).find("is not a regular file"),
            std::string::npos);
}

}  // namespace
}  // namespace brume::interop
