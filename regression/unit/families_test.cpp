/// @file Rows of families: names are unique, and each row is whole.
#include "families/families.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace brume::families {
namespace {

TEST(Families, AreFoundByName) {
  for (const Family& one : families()) EXPECT_EQ(&family(one.name), &one);
  EXPECT_THROW(family("bert"), Error);
  EXPECT_THROW(family(""), Error);
}

TEST(Families, EachArchitectureAndTypeIsOfOneFamily) {
  std::set<std::string> names, types;
  for (const Family& one : families()) {
    EXPECT_FALSE(one.architectures.empty()) << one.name;
    for (const Architecture& architecture : one.architectures) {
      EXPECT_TRUE(names.insert(architecture.name).second) << architecture.name;
      EXPECT_TRUE(types.insert(architecture.model_type).second) << architecture.model_type;
    }
  }
}

/// Exports use the first architecture for a model without the properties of any other one.
TEST(Families, OnlyLaterArchitecturesNeedAProperty) {
  for (const Family& one : families())
    for (std::size_t i = 1; i < one.architectures.size(); ++i) {
      const Architecture& architecture = one.architectures[i];
      EXPECT_TRUE(architecture.qkv_bias || architecture.qk_norm || architecture.window ||
                  architecture.experts)
          << architecture.name;
    }
}

/// A key that config.json may leave out has the value of the class.
TEST(Families, ClassesHaveTheKeysThatAreRead) {
  for (const Family& one : families())
    for (const Architecture& architecture : one.architectures) {
      const ConfigKeys& keys = architecture.keys;
      std::vector<std::string> all = keys.dropouts;
      all.insert(all.end(),
                 {keys.num_layers, keys.hidden_size, keys.num_heads, keys.seq_len, keys.ffn_size,
                  keys.norm_eps, keys.activation, keys.bias, keys.parallel_residual,
                  keys.query_scalar, keys.attention_cap, keys.logits_cap, keys.rotary_share});
      if (one.rotary) all.push_back(keys.rope_theta);
      for (const std::string& key : all)
        EXPECT_TRUE(key.empty() ||
                    architecture.class_keys.find('"' + key + "\":") != std::string::npos)
            << architecture.name << " " << key;
    }
}

TEST(Families, AreListedForPeople) {
  EXPECT_EQ(names(&Family::caps), "gemma");
  EXPECT_EQ(names(&Family::biased), "gpt, neox and gpt_oss");
  EXPECT_EQ(names([](const Family& one) { return one.norm == NormKind::layer; }),
            "gpt, falcon and neox");
  EXPECT_EQ(names([](const Family&) { return false; }), "");
}

}  // namespace
}  // namespace brume::families
