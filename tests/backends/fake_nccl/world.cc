#include "tests/backends/fake_nccl/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::test {

// --- joining and splitting ----------------------------------------------------------------------

namespace {

std::string join_name(int rank) { return fmt::format("join.{}", rank); }
std::string split_name(int number, int rank) { return fmt::format("split{}.{}", number, rank); }

struct SplitNote {
  int color, key;
  uint64_t place;
};

// The caller holds the world's mutex.
void add_wish(FakeWorld& world, int number, int rank, const SplitNote& wish) {
  auto& split = world.splits[number];
  if (split.wishes.empty()) split.place = wish.place;
  if (split.place != wish.place)
    FakeState::instance().complain(
        fmt::format("rank {} splits after {} collectives, another rank after {}", rank, wish.place,
                    split.place));
  split.wishes.emplace(rank, std::pair(wish.color, wish.key));
  if (static_cast<int>(split.wishes.size()) < world.size) return;
  std::map<int, int> sizes;
  for (const auto& [other, other_wish] : split.wishes) ++sizes[other_wish.first];
  for (const auto& [color, size] : sizes) {
    if (color < 0) continue;
    std::optional<FakeNotes> notes;
    if (world.notes)
      notes.emplace(world.notes->folder(),
                    fmt::format("{}.part{}.{}", world.notes->prefix(), number, color));
    split.parts.emplace(color, std::make_shared<FakeWorld>(size, std::move(notes)));
  }
}

}  // namespace

bool all_have_joined(FakeWorld& world) {
  if (world.notes) {
    for (int rank = 0; rank < world.size; ++rank)
      if (!world.notes->has(join_name(rank))) return false;
    return true;
  }
  const std::lock_guard lock(world.mutex);
  return static_cast<int>(world.members.size()) == world.size;
}

int judge_split(FakeComm& comm, int color, int key) {
  auto& state = FakeState::instance();
  if (comm.outstanding.load() > 0)
    state.complain(fmt::format("rank {} splits while an operation is outstanding", comm.rank));
  auto& world = *comm.world;
  const std::lock_guard lock(world.mutex);
  const int number = world.next_split[static_cast<size_t>(comm.rank)]++;
  const SplitNote wish{color, key, comm.next_collective};
  if (world.notes)
    world.notes->leave(split_name(number, comm.rank), std::as_bytes(std::span(&wish, 1)));
  add_wish(world, number, comm.rank, wish);
  return number;
}

bool is_split(FakeWorld& world, int number) {
  const std::lock_guard lock(world.mutex);
  const auto& split = world.splits[number];
  for (int rank = 0; world.notes && rank < world.size; ++rank) {
    if (split.wishes.contains(rank)) continue;
    const auto note = world.notes->read(split_name(number, rank));
    if (!note) return false;
    SplitNote wish;
    std::memcpy(&wish, note->data(), sizeof wish);
    add_wish(world, number, rank, wish);
  }
  return static_cast<int>(split.wishes.size()) == world.size;
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
  if (raw->world->notes) raw->world->notes->leave(join_name(rank), {});
  const std::lock_guard lock(mutex_);
  comms_.push_back(std::move(comm));
  return raw;
}

std::shared_ptr<FakeWorld> FakeState::world(const std::string& id, int size) {
  const std::lock_guard lock(mutex_);
  auto& world = worlds_[id];
  if (world) return world;
  std::optional<FakeNotes> notes;
  if (!settings_.folder.empty()) notes.emplace(settings_.folder, id);
  return world = std::make_shared<FakeWorld>(size, std::move(notes));
}

void FakeState::for_each_comm(int rank, const std::function<void(FakeComm&)>& f) {
  const std::lock_guard lock(mutex_);
  for (auto& comm : comms_)
    if (comm->root_rank == rank && !comm->is_over.load()) f(*comm);
}

int64_t FakeState::living() {
  const std::lock_guard lock(mutex_);
  return std::count_if(comms_.begin(), comms_.end(),
                       [](const auto& comm) { return !comm->is_gone.load(); });
}

// Reads only the fields that this version knows, as NCCL does with a struct of another version.
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

// --- the interface of tests ---------------------------------------------------------------------

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
