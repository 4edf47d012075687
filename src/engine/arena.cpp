#include "arena.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "device/device.hpp"
#include "schedule/place.hpp"

namespace brume::engine {
namespace {

constexpr std::byte guard_pattern{0xA5};
constexpr std::byte poison{0xFF};  // as fp32: NaN
using Guard = std::array<std::byte, schedule::guard_bytes>;

using schedule::Tier;

}  // namespace

Arena::Arena(const std::array<std::int64_t, schedule::num_tiers>& bytes, const std::string& scratch)
    : device_(bytes[std::size_t(Tier::device)], device::Tier::device),
      host_(bytes[std::size_t(Tier::host)], device::Tier::host),
      at_{device_.data(), host_.data()},
      disk_(scratch, bytes[std::size_t(Tier::disk)]) {}

Arena::Arena(const LentMemory& lent) : at_(lent), disk_({}, 0) {}

LentMemory Arena::behind(const schedule::Arenas& bytes) const {
  return {at_.device + bytes[std::size_t(Tier::device)], at_.host + bytes[std::size_t(Tier::host)]};
}

GuardCheck::GuardCheck(const schedule::Program& program, const Arena& arena)
    : program_(program), arena_(arena), born_(program.tasks.size()) {
  Guard intact;
  intact.fill(guard_pattern);
  for (std::size_t id = 0; id < program.buffers.size(); ++id) {
    const schedule::Buffer& buffer = program.buffers[id];
    if (buffer.tier == Tier::disk) continue;
    if (buffer.persistent)
      device::copy_now(arena.at(buffer) + buffer.bytes, intact.data(), schedule::guard_bytes);
    else if (buffer.first_task >= 0)
      born_[buffer.first_task].push_back(schedule::BufferId(id));
  }
}

void GuardCheck::before(int task) const {
  for (schedule::BufferId id : born_[task]) {
    const schedule::Buffer& buffer = program_.buffer(id);
    device::fill(arena_.at(buffer), poison, buffer.bytes);
    device::fill(arena_.at(buffer) + buffer.bytes, guard_pattern, schedule::guard_bytes);
  }
}

void GuardCheck::after(int task) const {
  for (const schedule::Operand& operand : program_.task(task).operands) {
    const schedule::Buffer& buffer = program_.buffer(operand);
    if (buffer.tier == Tier::disk || operand.first_byte + operand.bytes != buffer.bytes) continue;
    Guard guard;
    device::copy(guard.data(), arena_.at(buffer) + buffer.bytes, schedule::guard_bytes);
    device::finish();
    if (!std::ranges::all_of(guard, [](std::byte b) { return b == guard_pattern; }))
      throw Error(Failure::bug, "'{}' wrote behind buffer {}", schedule::label(program_.task(task)),
                  buffer.name);
  }
}

}  // namespace brume::engine
