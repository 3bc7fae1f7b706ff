#include "tests/backends/fake_nccl/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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
  return kOps[op];
}

size_t bytes_of(const FakeCall& call) {
  return call.count * static_cast<size_t>(size_of(type_of(call.dtype)));
}

bool reduces(Kind kind) {
  return kind == Kind::allreduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

// What all ranks say alike.
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
                            static_cast<int64_t>(first.count * parts), {});
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

// The place of one side of a message within its slot: both may be one rank.
int place_of(const FakeCall& call, int rank) {
  return call.is_pair() ? static_cast<int>(call.kind == Kind::recv) : rank;
}

void nap(int most_micros) {
  std::this_thread::sleep_for(std::chrono::microseconds(FakeState::instance().random(most_micros)));
}

// What one stream does of a group; false if the communicator is over before.
class Participation {
 public:
  Participation(FakeComm& comm, const FakeCall& call)
      : comm_(comm),
        world_(*comm.world),
        call_(call),
        place_(place_of(call, comm.rank)),
        needed_(call.is_pair() ? 2 : static_cast<size_t>(world_.size)) {}

  void arrive() {
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

int judge_split(FakeComm& comm, int color, int key) {
  auto& state = FakeState::instance();
  if (comm.outstanding.load() > 0)
    state.complain(fmt::format("rank {} splits while an operation is outstanding", comm.rank));
  auto& world = *comm.world;
  const std::lock_guard lock(world.mutex);
  const int number = world.next_split[static_cast<size_t>(comm.rank)]++;
  auto& split = world.splits[number];
  if (split.wishes.empty()) split.place = comm.next_collective;
  if (split.place != comm.next_collective)
    state.complain(fmt::format("rank {} splits after {} collectives, another rank after {}",
                               comm.rank, comm.next_collective, split.place));
  split.wishes.emplace(comm.rank, std::pair(color, key));
  if (static_cast<int>(split.wishes.size()) == world.size) {
    std::map<int, int> sizes;
    for (const auto& [rank, wish] : split.wishes) ++sizes[wish.first];
    for (const auto& [part, size] : sizes)
      if (part >= 0) split.parts.emplace(part, std::make_shared<FakeWorld>(size));
  }
  return number;
}

bool is_split(FakeWorld& world, int number) {
  const std::lock_guard lock(world.mutex);
  return static_cast<int>(world.splits[number].wishes.size()) == world.size;
}

std::pair<std::shared_ptr<FakeWorld>, int> part_of(FakeComm& comm, int number) {
  const std::lock_guard lock(comm.world->mutex);
  const auto& split = comm.world->splits[number];
  const auto [color, key] = split.wishes.at(comm.rank);
  int rank = 0;
  for (const auto& [other, wish] : split.wishes)
    if (wish.first == color && std::pair(wish.second, other) < std::pair(key, comm.rank)) ++rank;
  return {color < 0 ? nullptr : split.parts.at(color), rank};
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
  --comm.outstanding;
  --comm.running;
  const std::lock_guard lock(comm.world->mutex);
  comm.world->changed.notify_all();
}

// --- state --------------------------------------------------------------------------------------

FakeState& FakeState::instance() {
  static FakeState state;
  return state;
}

void FakeState::begin(const FakeNccl::Settings& settings) {
  const std::lock_guard lock(mutex_);
  settings_ = settings;
  random_.seed(settings.seed);
  complaints_.clear();
  configs_.clear();
  worlds_.clear();
  open_groups_.clear();
  registered_.clear();
  completed = aborts = registrations_made = registrations = 0;
  unique_ids = splits = splits_without_color = 0;
}

FakeNccl::Settings FakeState::settings() {
  const std::lock_guard lock(mutex_);
  return settings_;
}

void FakeState::complain(const std::string& what) {
  const std::lock_guard lock(mutex_);
  complaints_.push_back(what);
}

std::vector<std::string> FakeState::complaints() {
  const std::lock_guard lock(mutex_);
  auto all = complaints_;
  if (!open_groups_.empty()) all.emplace_back("a group was never ended");
  return all;
}

int FakeState::random(int most) {
  const std::lock_guard lock(mutex_);
  return most <= 0 ? 0 : static_cast<int>(random_() % static_cast<uint64_t>(most + 1));
}

FakeComm* FakeState::add_comm(std::shared_ptr<FakeWorld> world, int rank, int root_rank) {
  auto comm = std::make_unique<FakeComm>();
  comm->world = std::move(world);
  comm->rank = rank;
  comm->root_rank = root_rank;
  auto* raw = comm.get();
  {
    const std::lock_guard lock(raw->world->mutex);
    raw->world->members.emplace(rank, raw);
  }
  const std::lock_guard lock(mutex_);
  comms_.push_back(std::move(comm));
  return raw;
}

std::shared_ptr<FakeWorld> FakeState::world(const std::string& id, int size) {
  const std::lock_guard lock(mutex_);
  auto& world = worlds_[id];
  if (!world) world = std::make_shared<FakeWorld>(size);
  return world;
}

void FakeState::for_each_comm(int rank, const std::function<void(FakeComm&)>& f) {
  const std::lock_guard lock(mutex_);
  for (auto& comm : comms_)
    if (comm->root_rank == rank && !comm->is_over.load()) f(*comm);
}

int64_t FakeState::living() {
  const std::lock_guard lock(mutex_);
  return std::count_if(comms_.begin(), comms_.end(),
                       [](const auto& comm) { return !comm->is_over.load(); });
}

// As NCCL does: of a struct of another version, what this one knows.
bool FakeState::note_config(const ncclConfig_t* config) {
  const std::lock_guard lock(mutex_);
  const int version = settings_.version;
  const size_t known = version < NCCL_VERSION(2, 25, 0)   ? offsetof(ncclConfig_t, trafficClass)
                       : version < NCCL_VERSION(2, 27, 0) ? offsetof(ncclConfig_t, commName)
                                                          : sizeof(ncclConfig_t);
  if (config == nullptr || config->magic != 0xcafebeef) return false;
  ncclConfig_t read = NCCL_CONFIG_INITIALIZER;
  std::memcpy(&read, config, std::min(known, config->size));
  if (read.blocking != 0) return false;
  std::string text;
  const auto add = [&](const char* name, const auto& value) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  };
  const auto number = [&](const char* name, int value) {
    if (value != NCCL_CONFIG_UNDEF_INT) add(name, value);
  };
  number("cga_cluster_size", read.cgaClusterSize);
  number("min_ctas", read.minCTAs);
  number("max_ctas", read.maxCTAs);
  if (read.netName != nullptr) add("net_name", read.netName);
  number("split_share", read.splitShare);
  number("traffic_class", read.trafficClass);
  number("cta_policy", read.CTAPolicy);
  number("channels_per_net_peer", read.nChannelsPerNetPeer);
  configs_.push_back(text);
  return true;
}

std::vector<std::string> FakeState::configs() {
  const std::lock_guard lock(mutex_);
  return configs_;
}

void FakeState::note_registration(const void* memory, int change) {
  const std::lock_guard lock(mutex_);
  registered_[memory] += change;
  registrations += change;
  if (change > 0) registrations_made += change;
}

bool FakeState::is_registered(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = registered_.find(memory);
  return found != registered_.end() && found->second > 0;
}

void FakeState::open_group(bool open) {
  const std::lock_guard lock(mutex_);
  if (open)
    open_groups_.insert(std::this_thread::get_id());
  else
    open_groups_.erase(std::this_thread::get_id());
}

// --- what tests say -----------------------------------------------------------------------------

void FakeNccl::begin(const Settings& settings) { FakeState::instance().begin(settings); }
std::vector<std::string> FakeNccl::complaints() { return FakeState::instance().complaints(); }
void FakeNccl::hang(int rank) {
  FakeState::instance().for_each_comm(rank, [](FakeComm& comm) { comm.is_hanging = true; });
}
void FakeNccl::fail(int rank, int result) {
  FakeState::instance().for_each_comm(rank, [result](FakeComm& comm) {
    comm.is_hanging = true;
    comm.error = result;
  });
}
int64_t FakeNccl::completed() { return FakeState::instance().completed; }
int64_t FakeNccl::registrations_made() { return FakeState::instance().registrations_made; }
int64_t FakeNccl::registrations() { return FakeState::instance().registrations; }
int64_t FakeNccl::aborts() { return FakeState::instance().aborts; }
std::vector<std::string> FakeNccl::configs() { return FakeState::instance().configs(); }
int64_t FakeNccl::living() { return FakeState::instance().living(); }
int64_t FakeNccl::unique_ids() { return FakeState::instance().unique_ids; }
int64_t FakeNccl::splits() { return FakeState::instance().splits; }
int64_t FakeNccl::splits_without_color() { return FakeState::instance().splits_without_color; }

}  // namespace tutti::test
