#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/fake_nccl/fake_nccl.h"
#include "tests/backends/fake_nccl/notes.h"
#include "tutti/base/deadline.h"

namespace tutti::test {

/// The first operator that a program made.
inline constexpr int kFirstOwnOp = ncclNumOps + 8;

/// One call for a collective or one half of a pair, as it came.
struct FakeCall {
  enum class Kind { allreduce, reduce, reduce_scatter, allgather, broadcast, send, recv };
  Kind kind = Kind::allreduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  ncclDataType_t dtype = ncclFloat32;
  int op = -1;    // of what reduces
  int root = -1;  // or the peer
  bool is_registered = false;
  uint64_t number = 0;  // among those of its communicator, or of its pair

  bool is_pair() const { return kind == Kind::send || kind == Kind::recv; }
  std::string describe() const;
};

/// What the ranks bring to one collective, or the two to one message.
struct FakeSlot {
  std::map<int, FakeCall> called, arrived;  // by rank
  std::vector<std::byte> result;
  bool is_computed = false;
  bool is_broken = false;  // the ranks disagree
  size_t left = 0;
};

struct FakeComm;

struct FakeWorld;

/// What the ranks of a communicator bring to one splitting of it.
struct FakeSplit {
  std::map<int, std::pair<int, int>> wishes;        // color and key of each rank that came
  uint64_t place = 0;                               // among the collectives of the first
  std::map<int, std::shared_ptr<FakeWorld>> parts;  // by color, once all have come
};

/// All ranks of one communicator.
struct FakeWorld {
  explicit FakeWorld(int wanted, std::optional<FakeNotes> of_processes = {})
      : size(wanted), notes(std::move(of_processes)), next_split(static_cast<size_t>(wanted), 0) {}
  const int size;
  const std::optional<FakeNotes> notes;  // of ranks that are processes
  std::mutex mutex;                      // guards the following
  std::condition_variable changed;
  std::map<int, FakeComm*> members;
  std::map<uint64_t, FakeSlot> collectives;
  std::map<std::pair<std::pair<int, int>, uint64_t>, FakeSlot> messages;
  std::vector<int> next_split;      // of each rank
  std::map<int, FakeSplit> splits;  // by number
};

/// The state behind every ncclComm_t. Kept for ever, so that late calls are known as such.
struct FakeComm {
  std::shared_ptr<FakeWorld> world;
  int rank = 0;
  int root_rank = 0;  // in the communicator that was made by an id and of which it is a part
  std::atomic<int> threads_inside{0};
  std::atomic<bool> is_over{false};  // being aborted or destroyed, or gone
  std::atomic<bool> is_gone{false};
  std::atomic<bool> is_hanging{false};
  std::atomic<int> error{ncclSuccess};
  std::atomic<int> running{0};      // groups of calls on streams
  std::atomic<int> outstanding{0};  // and those that were called and are not over
  // The holder of the caller's token only.
  std::optional<Clock::time_point> busy_until;
  std::deque<std::function<void()>> deferred;  // what happens when it is busy no more
  std::function<bool()> is_ready;              // and what must be true before
  uint64_t next_collective = 0;
  std::map<int, uint64_t> next_send, next_recv;
  std::map<const std::byte*, size_t> registered;
  // The communicator's stream only: the notes of collectives, of the group of calls that runs and
  // of that before it.
  std::vector<std::string> left_now, left_before;

  bool has_registered(const void* memory) const {
    const auto* data = static_cast<const std::byte*>(memory);
    auto after = registered.upper_bound(data);
    if (after == registered.begin()) return false;
    --after;
    return data < after->first + after->second;
  }
};

/// The judge and everything that outlives a communicator.
class FakeState {
 public:
  static FakeState& instance();

  void begin(const FakeNccl::Settings& settings);
  FakeNccl::Settings settings();
  void complain(const std::string& what);
  std::vector<std::string> complaints();
  int random(int most);
  FakeComm* add_comm(std::shared_ptr<FakeWorld> world, int rank, int root_rank);
  int64_t living();
  std::shared_ptr<FakeWorld> world(const std::string& id, int size);
  void for_each_comm(int rank, const std::function<void(FakeComm&)>& f);
  /// False if it is none, or one of a communicator that blocks.
  bool note_config(const ncclConfig_t* config);
  std::vector<std::string> configs();
  void note_registration(const void* memory, int change);
  bool is_registered(const void* memory);
  void open_group(bool open);

  std::atomic<int64_t> completed{0};
  std::atomic<int64_t> aborts{0};
  std::atomic<int64_t> unique_ids{0};
  std::atomic<int64_t> splits{0}, splits_without_color{0};
  std::atomic<int64_t> registrations_made{0};
  std::atomic<int64_t> registrations{0};

 private:
  std::mutex mutex_;  // guards the following
  FakeNccl::Settings settings_;
  std::mt19937_64 random_{1};
  std::vector<std::string> complaints_, configs_;
  std::map<std::string, std::shared_ptr<FakeWorld>> worlds_;
  std::vector<std::unique_ptr<FakeComm>> comms_;
  std::set<std::thread::id> open_groups_;
  std::map<const void*, int> registered_;  // with how many communicators
};

/// Whether all ranks have made their communicator.
bool all_have_joined(FakeWorld& world);
/// Judges the calls against those of the other ranks; false if they disagree.
bool judge_calls(FakeComm& comm, std::vector<FakeCall>& calls);
/// Brings this rank's wish to its next splitting, whose number it returns, and judges it.
int judge_split(FakeComm& comm, int color, int key);
/// Whether all ranks have come to it; then, the part and the rank in it of this rank.
bool is_split(FakeWorld& world, int number);
std::pair<std::shared_ptr<FakeWorld>, int> part_of(FakeComm& comm, int number);
/// On a stream: takes part with the other ranks; returns early when the communicator is over.
void run_calls(FakeComm& comm, const std::vector<FakeCall>& calls);

}  // namespace tutti::test
