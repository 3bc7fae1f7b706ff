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

/// The value of the first op that a program creates.
inline constexpr int kFirstOwnOp = ncclNumOps + 8;

/// One call of a collective, or of one side of a message, as the program made it.
struct FakeCall {
  enum class Kind { allreduce, reduce, reduce_scatter, allgather, broadcast, send, recv };
  Kind kind = Kind::allreduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  ncclDataType_t dtype = ncclFloat32;
  int op = -1;    // for kinds that reduce
  int root = -1;  // the peer for send and recv
  bool is_registered = false;
  uint64_t number = 0;  // index among the calls of its communicator, or of its pair of ranks

  bool is_pair() const { return kind == Kind::send || kind == Kind::recv; }
  std::string describe() const;
};

/// The calls of all ranks for one collective, or of both sides of one message.
struct FakeSlot {
  std::map<int, FakeCall> called, arrived;  // by rank
  std::vector<std::byte> result;
  bool is_computed = false;
  bool is_broken = false;  // the ranks disagree
  size_t left = 0;
};

struct FakeComm;

struct FakeWorld;

/// The calls of all ranks for one split of a communicator.
struct FakeSplit {
  std::map<int, std::pair<int, int>> wishes;  // color and key of each rank that has called
  uint64_t place = 0;                         // collectives that the first rank had called before
  std::map<int, std::shared_ptr<FakeWorld>> parts;  // by color, once all ranks have called
};

/// The state that all ranks of one communicator share.
struct FakeWorld {
  explicit FakeWorld(int wanted, std::optional<FakeNotes> of_processes = {})
      : size(wanted), notes(std::move(of_processes)), next_split(static_cast<size_t>(wanted), 0) {}
  const int size;
  const std::optional<FakeNotes> notes;  // set if ranks are processes
  std::mutex mutex;                      // guards the fields below
  std::condition_variable changed;
  std::map<int, FakeComm*> members;
  std::map<uint64_t, FakeSlot> collectives;
  std::map<std::pair<std::pair<int, int>, uint64_t>, FakeSlot> messages;
  std::vector<int> next_split;      // per rank
  std::map<int, FakeSplit> splits;  // by index of the split
};

/// The state behind every ncclComm_t. It is kept for ever, so that late calls are detected.
struct FakeComm {
  std::shared_ptr<FakeWorld> world;
  int rank = 0;
  // This rank in the communicator made from a unique id, of which this one is a part.
  int root_rank = 0;
  std::atomic<int> threads_inside{0};
  std::atomic<bool> is_over{false};  // being aborted or destroyed, or gone
  std::atomic<bool> is_gone{false};
  std::atomic<bool> is_hanging{false};
  std::atomic<int> error{ncclSuccess};
  std::atomic<int> running{0};      // groups of calls that run on streams
  std::atomic<int> outstanding{0};  // called groups that have not ended
  // Used only by the thread that may call this communicator now.
  std::optional<Clock::time_point> busy_until;
  std::deque<std::function<void()>> deferred;  // effects to apply when busy_until has passed
  std::function<bool()> is_ready;              // must also be true before these effects
  uint64_t next_collective = 0;
  std::map<int, uint64_t> next_send, next_recv;
  std::map<const std::byte*, size_t> registered;
  // Used only on the communicator's stream: the notes of collectives of the current group of calls
  // and of the group before.
  std::vector<std::string> left_now, left_before;

  bool has_registered(const void* memory) const {
    const auto* data = static_cast<const std::byte*>(memory);
    auto after = registered.upper_bound(data);
    if (after == registered.begin()) return false;
    --after;
    return data < after->first + after->second;
  }
};

/// Checks the callers, and holds everything that outlives a communicator.
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
  /// Returns false if `config` is invalid or asks for a blocking communicator.
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
  std::mutex mutex_;  // guards the fields below
  FakeNccl::Settings settings_;
  std::mt19937_64 random_{1};
  std::vector<std::string> complaints_, configs_;
  std::map<std::string, std::shared_ptr<FakeWorld>> worlds_;
  std::vector<std::unique_ptr<FakeComm>> comms_;
  std::set<std::thread::id> open_groups_;
  // Memory and the number of communicators that registered it.
  std::map<const void*, int> registered_;
};

/// Returns whether all ranks have made their communicator.
bool all_have_joined(FakeWorld& world);
/// Compares the calls with those of the other ranks; returns false if they differ.
bool judge_calls(FakeComm& comm, std::vector<FakeCall>& calls);
/// Adds this rank's color and key to its next split, checks the call, and returns the index of the
/// split.
int judge_split(FakeComm& comm, int color, int key);
/// Returns whether all ranks have called split `number`. part_of() then gives this rank's part and
/// its rank in it.
bool is_split(FakeWorld& world, int number);
std::pair<std::shared_ptr<FakeWorld>, int> part_of(FakeComm& comm, int number);
/// Runs the calls on a stream together with the other ranks; returns early when the communicator
/// ends.
void run_calls(FakeComm& comm, const std::vector<FakeCall>& calls);

}  // namespace tutti::test
