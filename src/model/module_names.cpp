/// @file Names of modules and of their parameters.
#include "model/layer.hpp"

namespace brume::model {
namespace {

struct ModuleNames {
  Module module;
  const char *weight, *bias;
};
/// A row per module, ordered as they are.
constexpr ModuleNames modules[] = {
    {Module::token, "token", ""},
    {Module::position, "position", ""},
    {Module::norm1, "norm1.gain", "norm1.bias"},
    {Module::norm2, "norm2.gain", "norm2.bias"},
    {Module::post_norm1, "post_norm1.gain", "post_norm1.bias"},
    {Module::post_norm2, "post_norm2.gain", "post_norm2.bias"},
    {Module::q_norm, "attention.q_norm.gain", "attention.q_norm.bias"},
    {Module::k_norm, "attention.k_norm.gain", "attention.k_norm.bias"},
    {Module::sinks, "attention.sinks.bias", ""},
    {Module::qkv, "attention.qkv.weight", "attention.qkv.bias"},
    {Module::q, "attention.q.weight", "attention.q.bias"},
    {Module::kv, "attention.kv.weight", "attention.kv.bias"},
    {Module::k, "attention.k.weight", ""},
    {Module::v, "attention.v.weight", ""},
    {Module::q_down, "attention.q_down.weight", ""},
    {Module::q_down_norm, "attention.q_down_norm.gain", ""},
    {Module::kv_down, "attention.kv_down.weight", ""},
    {Module::kv_down_norm, "attention.kv_down_norm.gain", ""},
    {Module::kv_up, "attention.kv_up.weight", ""},
    {Module::k_turned, "attention.k_turned.weight", ""},
    {Module::attention_out, "attention.out.weight", "attention.out.bias"},
    {Module::mlp_in, "mlp.in.weight", "mlp.in.bias"},
    {Module::mlp_gate, "mlp.gate.weight", ""},
    {Module::mlp_up, "mlp.up.weight", ""},
    {Module::mlp_out, "mlp.out.weight", "mlp.out.bias"},
    {Module::router, "mlp.router.weight", "mlp.router.bias"},
    {Module::experts_in, "mlp.experts.in.weight", "mlp.experts.in.bias"},
    {Module::experts_out, "mlp.experts.out.weight", "mlp.experts.out.bias"},
    {Module::shared_in, "mlp.shared.in.weight", ""},
    {Module::shared_gate, "mlp.shared.gate.weight", ""},
    {Module::shared_up, "mlp.shared.up.weight", ""},
    {Module::shared_out, "mlp.shared.out.weight", ""},
    {Module::shared_expert_gate, "mlp.shared_expert_gate.weight", ""},
    {Module::head_norm, "norm.gain", "norm.bias"},
    {Module::head, "weight", ""},
};

static_assert(in_order(modules, &ModuleNames::module));

}  // namespace

std::string name(ParameterId id) {
  const ModuleNames& names = modules[std::size_t(id.module)];
  switch (id.part) {
    case Part::weight: return names.weight;
    case Part::bias: return names.bias;
    case Part::correction: return module_name(id.module) + ".correction";
    case Part::lora_a: return module_name(id.module) + ".lora_a";
    case Part::lora_b: return module_name(id.module) + ".lora_b";
  }
  return "";
}

std::string module_name(Module module) {
  switch (module) {
    case Module::token:
    case Module::position: return "embedding." + name({module});
    case Module::head_norm: return "head.norm";
    case Module::head: return "head";
    default: break;
  }
  const std::string weight = name({module});
  return weight.substr(0, weight.rfind('.'));
}

}  // namespace brume::model
