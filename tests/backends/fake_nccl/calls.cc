// Compares the calls of all ranks and runs them on streams.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/backends/fake_nccl/world.h"
#include "tutti/kernels/reduce.h"

namespace tutti::test {

namespace {

using Kind = FakeCall::Kind;

DataType type_of(ncclDataType_t dtype) {
  switch (static_cast<int>(dtype)) {
    case ncclInt8:
      return DataType::i8;
    case ncclUint8:
      return DataType::u8;
    case ncclInt32:
      return DataType::i32;
    case ncclUint32:
      return DataType::u32;
    case ncclInt64:
      return DataType::i64;
    case ncclUint64:
      return DataType::u64;
    case ncclFloat16:
      return DataType::f16;
    case ncclFloat64:
      return DataType::f64;
    case ncclBfloat16:
      return DataType::bf16;
    default:
      return DataType::f32;
  }
}

ReduceOp op_of(int op) {
  constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::product, ReduceOp::max, ReduceOp::min,
                               ReduceOp::average};
  return op < kFirstOwnOp ? kOps[op] : ReduceOp::sum;
}

Scale scale_of(int op) { return {1.0, op < kFirstOwnOp ? 1 : int64_t{1} << (op - kFirstOwnOp)}; }

size_t bytes_of(const FakeCall& call) {
  return call.count * static_cast<size_t>(size_of(type_of(call.dtype)));
}

bool reduces(Kind kind) {
  return kind == Kind::allreduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

// The text that must be equal on all ranks.
std::string agreed_part(const FakeCall& call) {
  return call.is_pair() ? fmt::format("{} of type {}", call.count, static_cast<int>(call.dtype))
                        : call.describe();
}

void compute(FakeSlot& slot, int size) {
  const auto& first = slot.arrived.begin()->second;
  if (reduces(first.kind)) {
    std::vector<const std::byte*> inputs;
    for (const auto& [rank, call] : slot.arrived)
      inputs.push_back(static_cast<const std::byte*>(call.input));
    const auto parts = first.kind == Kind::reduce_scatter ? static_cast<size_t>(size) : 1;
    slot.result.resize(bytes_of(first) * parts);
    tutti::reduce_reference(type_of(first.dtype), op_of(first.op), slot.result.data(), inputs,
                            static_cast<int64_t>(first.count * parts), scale_of(first.op));
    return;
  }
  for (const auto& [rank, call] : slot.arrived) {
    if (first.kind == Kind::broadcast && rank != first.root) continue;
    const auto* input = static_cast<const std::byte*>(call.input);
    slot.result.insert(slot.result.end(), input, input + bytes_of(call));
  }
}

void deliver(const FakeSlot& slot, const FakeCall& call, int rank) {
  if (call.kind == Kind::reduce && rank != call.root) return;
  const auto* from = slot.result.data();
  auto bytes = slot.result.size();
  if (call.kind == Kind::reduce_scatter) {
    bytes = bytes_of(call);
    from += bytes * static_cast<size_t>(rank);
  }
  std::memcpy(call.output, from, bytes);
}

std::pair<std::pair<int, int>, uint64_t> message_key(const FakeCall& call, int rank) {
  const auto pair =
      call.kind == Kind::send ? std::pair(rank, call.root) : std::pair(call.root, rank);
  return {pair, call.number};
}

FakeSlot& slot_of(FakeWorld& world, const FakeCall& call, int rank) {
  return call.is_pair() ? world.messages[message_key(call, rank)] : world.collectives[call.number];
}

// The key of one side of a message within its slot. It is not the rank, since both sides may be one
// rank.
int place_of(const FakeCall& call, int rank) {
  return call.is_pair() ? static_cast<int>(call.kind == Kind::recv) : rank;
}

void nap(int most_micros) {
  std::this_thread::sleep_for(std::chrono::microseconds(FakeState::instance().random(most_micros)));
}

// The header of a note that describes a call to ranks in other processes. The call's data follows
// it.
struct CallNote {
  Kind kind;
  size_t count;
  int dtype, op, root;
  bool is_registered;
};

size_t bytes_brought(const FakeCall& call, int rank, int size) {
  if (call.kind == Kind::recv || (call.kind == Kind::broadcast && rank != call.root)) return 0;
  return bytes_of(call) * (call.kind == Kind::reduce_scatter ? static_cast<size_t>(size) : 1);
}

std::string note_name(const FakeCall& call, int rank, int place) {
  const auto name = call.is_pair() ? fmt::format("{}to{}", message_key(call, rank).first.first,
                                                 message_key(call, rank).first.second)
                                   : std::string("all");
  return fmt::format("{}.{}.{}", name, call.number, place);
}

// One stream's part in one call of a group. The functions return false if the communicator ends
// first.
class Participation {
 public:
  Participation(FakeComm& comm, const FakeCall& call)
      : comm_(comm),
        world_(*comm.world),
        call_(call),
        place_(place_of(call, comm.rank)),
        needed_(call.is_pair() ? 2 : static_cast<size_t>(world_.size)) {}

  void arrive() {
    if (world_.notes) return leave_note();
    const std::lock_guard lock(world_.mutex);
    auto& slot = slot_of(world_, call_, comm_.rank);
    slot.arrived.emplace(place_, call_);
    if (slot.arrived.size() == needed_ && !slot.is_broken) {
      if (call_.is_pair())
        pass_message(slot);
      else
        compute(slot, world_.size);
      slot.is_computed = true;
    }
    world_.changed.notify_all();
  }
  bool finish(int most_delay) {
    if (world_.notes) return finish_by_notes(most_delay);
    std::unique_lock lock(world_.mutex);
    auto& slot = slot_of(world_, call_, comm_.rank);
    world_.changed.wait(lock, [&] { return slot.is_computed || comm_.is_over.load(); });
    if (comm_.is_over.load()) return false;
    lock.unlock();
    nap(most_delay);
    lock.lock();
    if (comm_.is_over.load()) return false;
    if (!call_.is_pair()) deliver(slot, call_, comm_.rank);
    if (++slot.left == needed_) {
      if (call_.is_pair())
        world_.messages.erase(message_key(call_, comm_.rank));
      else
        world_.collectives.erase(call_.number);
    }
    ++FakeState::instance().completed;
    return true;
  }

 private:
  void leave_note() {
    const CallNote note{call_.kind, call_.count, static_cast<int>(call_.dtype),
                        call_.op,   call_.root,  call_.is_registered};
    const auto name = note_name(call_, comm_.rank, place_);
    world_.notes->leave(name, std::as_bytes(std::span(&note, 1)),
                        {static_cast<const std::byte*>(call_.input),
                         bytes_brought(call_, comm_.rank, world_.size)});
    // Notes of messages are removed by their reader, notes of collectives later.
    if (!call_.is_pair()) comm_.left_now.push_back(name);
  }
  // Waits for the notes of the other ranks. A rank that never comes, or calls something else, is
  // waited for until the communicator ends.
  bool finish_by_notes(int most_delay) {
    FakeSlot slot;
    std::deque<std::vector<std::byte>> notes;
    slot.arrived.emplace(place_, call_);
    for (int place = 0; place < static_cast<int>(needed_); ++place) {
      if (place == place_) continue;
      const auto name = note_name(call_, comm_.rank, place);
      std::optional<std::vector<std::byte>> note;
      while (!(note = world_.notes->read(name)) && wait_a_little()) {
      }
      if (!note) return false;
      if (call_.is_pair()) world_.notes->remove(name);
      slot.arrived.emplace(place, read_call(notes.emplace_back(std::move(*note))));
    }
    for (const auto& [place, call] : slot.arrived) {
      if (agreed_part(call) == agreed_part(call_)) continue;
      FakeState::instance().complain(fmt::format("call {} of rank {} is {}, of another rank {}",
                                                 call_.number, comm_.rank, call_.describe(),
                                                 call.describe()));
      while (wait_a_little()) {
      }
    }
    nap(most_delay);
    if (comm_.is_over.load()) return false;
    if (call_.kind == Kind::recv) {
      std::memcpy(call_.output, slot.arrived.at(0).input, bytes_of(call_));
    } else if (!call_.is_pair()) {
      compute(slot, world_.size);
      deliver(slot, call_, comm_.rank);
    }
    ++FakeState::instance().completed;
    return true;
  }
  bool wait_a_little() const {
    if (comm_.is_over.load()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    return true;
  }
  static FakeCall read_call(const std::vector<std::byte>& note) {
    CallNote head;
    std::memcpy(&head, note.data(), sizeof head);
    FakeCall call;
    call.kind = head.kind;
    call.input = note.data() + sizeof head;
    call.count = head.count;
    call.dtype = static_cast<ncclDataType_t>(head.dtype);
    call.op = head.op;
    call.root = head.root;
    call.is_registered = head.is_registered;
    return call;
  }
  static void pass_message(FakeSlot& slot) {
    const auto& from = slot.arrived.at(0);
    std::memmove(slot.arrived.at(1).output, from.input, bytes_of(from));
  }
  FakeComm& comm_;
  FakeWorld& world_;
  const FakeCall& call_;
  const int place_;
  const size_t needed_;
};

}  // namespace

std::string FakeCall::describe() const {
  constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduce",    "ncclReduceScatter",
                                    "ncclAllGather", "ncclBroadcast", "ncclSend",
                                    "ncclRecv"};
  return fmt::format("{}(count {}, type {}, op {}, root {}{})", kNames[static_cast<int>(kind)],
                     count, static_cast<int>(dtype), op, root, is_registered ? ", registered" : "");
}

bool judge_calls(FakeComm& comm, std::vector<FakeCall>& calls) {
  auto& world = *comm.world;
  const std::lock_guard lock(world.mutex);
  bool agree = true;
  for (auto& call : calls) {
    call.number = call.kind == Kind::send   ? comm.next_send[call.root]++
                  : call.kind == Kind::recv ? comm.next_recv[call.root]++
                                            : comm.next_collective++;
    if (world.notes) continue;  // calls of processes are compared when they run
    auto& slot = slot_of(world, call, comm.rank);
    slot.called.emplace(place_of(call, comm.rank), call);
    const auto& first = *slot.called.begin();
    if (agreed_part(first.second) == agreed_part(call)) continue;
    slot.is_broken = true;
    agree = false;
    FakeState::instance().complain(fmt::format("call {} of rank {} is {}, of another rank {}",
                                               call.number, comm.rank, call.describe(),
                                               first.second.describe()));
  }
  return agree;
}
void run_calls(FakeComm& comm, const std::vector<FakeCall>& calls) {
  ++comm.running;
  std::vector<Participation> parts;
  for (const auto& call : calls) parts.emplace_back(comm, call);
  {
    std::unique_lock lock(comm.world->mutex);
    comm.world->changed.wait(lock, [&] { return !comm.is_hanging.load() || comm.is_over.load(); });
  }
  if (!comm.is_over.load())
    for (auto& part : parts) part.arrive();
  const int most = static_cast<int>(FakeState::instance().settings().most_result_delay.count());
  for (auto& part : parts)
    if (comm.is_over.load() || !part.finish(most)) break;
  if (!comm.left_now.empty() && !comm.is_over.load()) {
    // All ranks have reached this group, so nobody still reads the notes of the group before.
    for (const auto& name : std::exchange(comm.left_before, std::exchange(comm.left_now, {})))
      comm.world->notes->remove(name);
  }
  --comm.outstanding;
  --comm.running;
  const std::lock_guard lock(comm.world->mutex);
  comm.world->changed.notify_all();
}

}  // namespace tutti::test
