/// @file NCCL between processes of one node, through shared memory. A message waits until its peer
/// takes it, and sums are made in rank order.
#include <fcntl.h>
#include <mpi.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <set>

#include "base/narrow.hpp"
#include "handles.hpp"

namespace brume::emulation {
namespace {

constexpr std::size_t slot_bytes = 64 << 10;
constexpr int most_ranks = 16;

struct alignas(64) Slot {
  std::byte bytes[slot_bytes];
};

/// What the ranks of a communicator share; zero when it begins.
struct Common {
  std::atomic<int> joined, arrived, turns;
  Slot slots[most_ranks];  ///< of collectives
  struct alignas(64) Message {
    std::atomic<int> full;
    Slot slot;
  } messages[most_ranks][most_ranks];  ///< [from][to]
};

/// Thrown where a communicator is ended while its work waits for peers.
struct Aborted {};

struct Group {
  Group(const ncclUniqueId& id, int of_ranks, int of_rank)
      : ranks(of_ranks), rank(of_rank), name(id.internal) {
    const int file = ::shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0 || ::ftruncate(file, sizeof(Common)) != 0)
      report("no shared memory for a communicator");
    common = static_cast<Common*>(
        ::mmap(nullptr, sizeof(Common), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    ::close(file);
    if (common == MAP_FAILED) report("no shared memory for a communicator");
    if (++common->joined == ranks) ::shm_unlink(name.c_str());
  }
  ~Group() {
    if (common->joined < ranks) ::shm_unlink(name.c_str());
    ::munmap(common, sizeof(Common));
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  template <class Condition>
  void wait(const Condition& condition) const {
    for (int tries = 0; !condition(); ++tries) {
      if (aborted) throw Aborted();
      if (tries < 100)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  void barrier() {
    const int turn = common->turns;
    if (++common->arrived == ranks) {
      common->arrived = 0;
      ++common->turns;
    }
    wait([&] { return common->turns != turn; });
  }

  const int ranks, rank;
  const std::string name;
  Common* common;
  std::atomic<bool> aborted = false;
  int blocks = 32;                    ///< that a transfer takes
  std::set<std::string> connections;  ///< that transfers have needed so far
};

/// A communicator's handle; its work keeps the group.
struct Handle {
  std::shared_ptr<Group> group;
};
const std::shared_ptr<Group>& group_of(ncclComm_t handle) {
  return reinterpret_cast<Handle*>(handle)->group;
}

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat: return 4;
    case ncclDouble: return 8;
    case ncclBfloat16:
    case ncclHalf: return 2;
    case ncclUint8: return 1;
    default: report(fmt::format("elements of NCCL's type {} are not emulated", int(type)));
  }
}

/// out[i] = what all ranks' slots have there, joined in rank order and rounded once.
template <class Element, class Sum>
void reduce(const Group& group, ncclRedOp_t operation, std::byte* out, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += sizeof(Element)) {
    Sum sum{};
    for (int rank = 0; rank < group.ranks; ++rank) {
      Element value;
      std::memcpy(&value, group.common->slots[rank].bytes + at, sizeof value);
      const Sum next = Sum(value);
      if (rank == 0)
        sum = next;
      else
        sum = operation == ncclSum   ? sum + next
              : operation == ncclMin ? std::min(sum, next)
                                     : std::max(sum, next);
    }
    const Element joined = Element(sum);
    std::memcpy(out + at, &joined, sizeof joined);
  }
}
void reduce(const Group& group, ncclDataType_t type, ncclRedOp_t operation, std::byte* out,
            std::size_t bytes) {
  switch (type) {
    case ncclFloat: return reduce<float, float>(group, operation, out, bytes);
    case ncclDouble: return reduce<double, double>(group, operation, out, bytes);
    case ncclBfloat16: return reduce<bfloat16, float>(group, operation, out, bytes);
    default: return reduce<float16, float>(group, operation, out, bytes);
  }
}

Range device_range(const void* address, std::size_t bytes, Access access, const char* what) {
  Range made = range(address, bytes, access, what);
  if (!made.known && bytes > 0) report(fmt::format("{} of the host's own memory", what));
  return made;
}

/// A kernel that meets other ranks holds its part of the device until they come. So the kernels of
/// all streams must find room side by side. A connection of ranks may wait for the whole device, so
/// no other stream may wait for peers then.
void check_room(Stream& stream, Group& group, const std::string& connection) {
  stream.most_blocks = std::max(stream.most_blocks, group.blocks);
  const bool connects = group.connections.insert(connection).second;
  int blocks = 0;
  for (const Stream* other : Stream::all()) {
    if (other->device() != stream.device()) continue;
    blocks += other->most_blocks;
    if (connects && other != &stream && other->meetings > 0)
      report(
          fmt::format("ranks are connected for {} while other streams wait for peers", connection));
  }
  if (blocks > multiprocessors)
    report(fmt::format("transfers of several streams take {} blocks of {} multiprocessors", blocks,
                       multiprocessors));
}

/// Puts into a stream what meets other ranks, body(group).
/// @param peer  of a message
template <class Body>
ncclResult_t meet(Locked& locked, Stream& stream, ncclComm_t handle, const char* what,
                  std::vector<Interval> touched, Body body, int peer = -1) {
  const std::shared_ptr<Group>& group = group_of(handle);
  check_room(stream, *group, peer < 0 ? what : fmt::format("{} with {}", what, peer));
  ++stream.meetings;
  put(locked, stream, what, [group, &stream, touched = std::move(touched), body] {
    try {
      body(*group);
    } catch (const Aborted&) {
    }
    --stream.meetings;
    return touched;
  });
  return ncclSuccess;
}

/// A send or a receive.
struct Message {
  bool sends;
  Range range;
  std::size_t bytes;
  int peer;
  std::size_t moved = 0;
};

/// Moves pieces of messages that may move now. @return whether any piece has
bool advance(Group& group, std::vector<Message>& messages) {
  bool any = false;
  for (Message& m : messages) {
    auto& [full, slot] =
        group.common->messages[m.sends ? group.rank : m.peer][m.sends ? m.peer : group.rank];
    if (m.moved == m.bytes || full != (m.sends ? 0 : 1)) continue;
    const std::size_t some = std::min(slot_bytes, m.bytes - m.moved);
    if (m.sends)
      std::memcpy(slot.bytes, m.range.host + m.moved, some);
    else
      std::memcpy(m.range.host + m.moved, slot.bytes, some);
    full = m.sends ? 1 : 0;
    m.moved += some;
    any = true;
  }
  return any;
}

/// Moves messages side by side: none waits for another one. A send waits until its peer has all.
void exchange(Group& group, std::vector<Message> messages) {
  const auto moved = [](const Message& m) { return m.moved == m.bytes; };
  while (!std::ranges::all_of(messages, moved))
    group.wait([&] { return advance(group, messages); });
  for (const Message& m : messages)
    if (m.sends) group.wait([&] { return group.common->messages[group.rank][m.peer].full == 0; });
}

/// Messages between ncclGroupStart and ncclGroupEnd.
struct Grouped {
  int depth = 0;
  Stream* stream = nullptr;
  ncclComm_t comm = nullptr;
  std::vector<Message> messages;
};
thread_local Grouped grouped;

ncclResult_t add(bool sends, const void* address, std::size_t bytes, int peer, ncclComm_t comm,
                 cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  Locked locked;
  const char* const what = sends ? "a send" : "a receive";
  Message message{sends, device_range(address, bytes, sends ? Access::read : Access::write, what),
                  bytes, peer};
  if (grouped.depth == 0) {
    const std::vector<Interval> touched = message.range.intervals;
    return meet(
        locked, stream, comm, what, touched,
        [message = std::move(message)](Group& group) { exchange(group, {message}); }, peer);
  }
  if (!grouped.messages.empty() && (grouped.stream != &stream || grouped.comm != comm))
    report("a group of messages of several streams or communicators is not emulated");
  grouped.stream = &stream, grouped.comm = comm;
  grouped.messages.push_back(std::move(message));
  return ncclSuccess;
}

}  // namespace
}  // namespace brume::emulation

using namespace brume::emulation;

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t error) {
  return error == ncclUnhandledCudaError ? "unhandled cuda error" : "an emulated error";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  const std::string name =
      fmt::format("/emulated-nccl-{}-{:08x}{:08x}", ::getpid(), random(), random());
  *id = {};
  std::memcpy(id->internal, name.c_str(), name.size() + 1);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (ranks > most_ranks)
    report(fmt::format("a communicator of {} ranks, of at most {} emulated", ranks, most_ranks));
  if (next_call_fails("nccl")) return ncclUnhandledCudaError;
  const OwnMemory memory;
  auto group = std::make_shared<Group>(id, ranks, rank);
  if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT)
    group->blocks = std::min(group->blocks, config->maxCTAs);
  *comm = reinterpret_cast<ncclComm_t>(new Handle{std::move(group)});
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Group& group = *group_of(comm);
  *state = group.common->joined < group.ranks ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  group_of(comm)->aborted = true;
  delete reinterpret_cast<Handle*>(comm);
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  Locked locked;
  const std::size_t bytes = count * bytes_of(type);
  const Range in = device_range(from, bytes, Access::read, "an all-reduce"),
              out = device_range(to, bytes, Access::write, "an all-reduce");
  return meet(locked, stream, comm, "an all-reduce", intervals(in, out), [=](Group& group) {
    for (std::size_t at = 0; at < bytes; at += slot_bytes) {
      const std::size_t some = std::min(slot_bytes, bytes - at);
      std::memcpy(group.common->slots[group.rank].bytes, in.host + at, some);
      group.barrier();
      reduce(group, type, operation, out.host + at, some);
      group.barrier();
    }
  });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  Locked locked;
  const std::size_t bytes = count * bytes_of(type);
  const Range in = device_range(from, bytes * std::size_t(group_of(comm)->ranks), Access::read,
                                "a reduce-scatter"),
              out = device_range(to, bytes, Access::write, "a reduce-scatter");
  return meet(locked, stream, comm, "a reduce-scatter", intervals(in, out), [=](Group& group) {
    for (int part = 0; part < group.ranks; ++part)
      for (std::size_t at = 0; at < bytes; at += slot_bytes) {
        const std::size_t some = std::min(slot_bytes, bytes - at);
        std::memcpy(group.common->slots[group.rank].bytes, in.host + std::size_t(part) * bytes + at,
                    some);
        group.barrier();
        if (part == group.rank) reduce(group, type, operation, out.host + at, some);
        group.barrier();
      }
  });
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  Locked locked;
  const std::size_t bytes = count * bytes_of(type);
  const Range in = device_range(from, bytes, Access::read, "an all-gather"),
              out = device_range(to, bytes * std::size_t(group_of(comm)->ranks), Access::write,
                                 "an all-gather");
  return meet(locked, stream, comm, "an all-gather", intervals(in, out), [=](Group& group) {
    for (std::size_t at = 0; at < bytes; at += slot_bytes) {
      const std::size_t some = std::min(slot_bytes, bytes - at);
      std::memcpy(group.common->slots[group.rank].bytes, in.host + at, some);
      group.barrier();
      for (int rank = 0; rank < group.ranks; ++rank)
        std::memcpy(out.host + std::size_t(rank) * bytes + at, group.common->slots[rank].bytes,
                    some);
      group.barrier();
    }
  });
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t handle) {
  return add(true, from, count * bytes_of(type), peer, comm, handle);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t handle) {
  return add(false, to, count * bytes_of(type), peer, comm, handle);
}

ncclResult_t ncclGroupStart() {
  ++grouped.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--grouped.depth > 0 || grouped.messages.empty()) return ncclSuccess;
  Locked locked;
  std::vector<Message> messages = std::exchange(grouped.messages, {});
  std::vector<Interval> touched;
  for (const Message& m : messages)
    touched.insert(touched.end(), m.range.intervals.begin(), m.range.intervals.end());
  return meet(locked, *grouped.stream, grouped.comm, "a group of messages", touched,
              [messages = std::move(messages)](Group& group) { exchange(group, messages); });
}

// ---- MPI, which may start the driver

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  if (std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr)
    report("MPI starts before the driver's environment is set");
  return PMPI_Init_thread(argc, argv, required, provided);
}
