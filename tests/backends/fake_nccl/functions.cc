// The NCCL functions that the plugin looks up.

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "tests/backends/fake_nccl/world.h"
#include "tutti/kernels/convert.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/dtype.h"

using namespace tutti;
using namespace tutti::test;

namespace {

thread_local std::string last_error;

// The calls that this thread collects in an NCCL group.
struct Group {
  int depth = 0;
  FakeComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<FakeCall> calls;
};
thread_local Group group;

FakeComm& fake(ncclComm_t comm) { return *reinterpret_cast<FakeComm*>(comm); }
ncclComm_t native(FakeComm* comm) { return reinterpret_cast<ncclComm_t>(comm); }

ncclResult_t refuse(const std::string& why) {
  FakeState::instance().complain(why);
  last_error = why;
  return ncclInvalidUsage;
}

// Marks that a thread is inside a call. It sometimes sleeps there, so that a second thread is
// detected.
class Inside {
 public:
  Inside(FakeComm& comm, const char* call) : comm_(comm) {
    auto& state = FakeState::instance();
    if (comm.threads_inside.fetch_add(1) > 0)
      state.complain(fmt::format("two threads inside one communicator of rank {}, one in {}",
                                 comm.rank, call));
    if (comm.is_over.load()) {
      may_go_on_ = false;
      refuse(fmt::format("{} on a communicator of rank {} after its end", call, comm.rank));
    }
    if (state.random(3) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(state.random(20)));
  }
  ~Inside() { comm_.threads_inside.fetch_sub(1); }
  bool may_go_on() const { return may_go_on_; }

 private:
  FakeComm& comm_;
  bool may_go_on_ = true;
};

// Delays the effect of a call at random; the communicator is busy until then.
ncclResult_t defer(FakeComm& comm, std::function<void()> effect) {
  auto& state = FakeState::instance();
  const int most = static_cast<int>(state.settings().most_call_delay.count());
  if (most == 0 || state.random(2) == 0) {
    effect();
    return ncclSuccess;
  }
  comm.busy_until = Clock::now() + std::chrono::microseconds(state.random(most));
  comm.deferred.push_back(std::move(effect));
  return ncclInProgress;
}

ncclResult_t submit(FakeComm& comm, std::vector<FakeCall> calls, cudaStream_t stream) {
  if (!judge_calls(comm, calls)) return ncclInvalidArgument;
  if (calls.empty()) return ncclSuccess;
  ++comm.outstanding;
  return defer(comm, [&comm, calls = std::move(calls), stream] {
    device_runtime(DeviceKind::fake).host_function({stream}, [&comm, calls] {
      run_calls(comm, calls);
    });
  });
}

ncclResult_t call(ncclComm_t handle, const FakeCall& one, cudaStream_t stream) {
  auto& comm = fake(handle);
  const Inside inside(comm, one.describe().c_str());
  if (!inside.may_go_on()) return ncclInvalidUsage;
  if (comm.busy_until)
    return refuse(fmt::format("{} on rank {} while an earlier call was in progress", one.describe(),
                              comm.rank));
  FakeCall noted = one;
  noted.is_registered = !one.is_pair() && comm.has_registered(one.output);
  if (group.depth == 0) return submit(comm, {noted}, stream);
  group.comm = &comm;
  group.stream = stream;
  group.calls.push_back(noted);
  return ncclSuccess;
}

// Keeps a new communicator busy until all its ranks have joined.
void await_all(FakeComm& comm) {
  comm.is_ready = [&world = *comm.world] { return all_have_joined(world); };
  comm.busy_until = Clock::now();
}

void end(FakeComm& comm) {
  comm.is_over = true;
  for (const auto& [memory, bytes] : comm.registered)
    FakeState::instance().note_registration(memory, -1);
  std::unique_lock lock(comm.world->mutex);
  comm.world->changed.notify_all();
  comm.world->changed.wait(lock, [&] { return comm.running.load() == 0; });
  lock.unlock();
  auto& state = FakeState::instance();
  std::this_thread::sleep_for(std::chrono::microseconds(
      state.random(static_cast<int>(state.settings().most_end_delay.count()))));
  comm.is_gone = true;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = FakeState::instance().settings().version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next{0};
  ++FakeState::instance().unique_ids;
  std::memset(id->internal, 0, sizeof id->internal);
  std::snprintf(id->internal, sizeof id->internal, "world_%d_%d", ::getpid(), next++);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess       ? "no error"
         : result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "invalid usage";
}

const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (!FakeState::instance().note_config(config))
    return refuse("a communicator that blocks cannot be aborted in time");
  if (FakeState::instance().settings().refuse_shared_device && size > 1) {
    last_error = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000";
    return ncclInvalidUsage;
  }
  auto world = FakeState::instance().world(id.internal, size);
  auto* made = FakeState::instance().add_comm(world, rank, rank);
  *comm = native(made);
  await_all(*made);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* comm,
                           ncclConfig_t* config) {
  auto& from = fake(parent);
  const Inside inside(from, "ncclCommSplit");
  if (!inside.may_go_on()) return ncclInvalidUsage;
  if (!FakeState::instance().note_config(config))
    return refuse("a communicator that blocks cannot be aborted in time");
  if (from.busy_until)
    return refuse(
        fmt::format("ncclCommSplit on rank {} while an earlier call was in progress", from.rank));
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return refuse("a color is not negative");
  auto& state = FakeState::instance();
  ++state.splits;
  if (color == NCCL_SPLIT_NOCOLOR) ++state.splits_without_color;
  *comm = nullptr;
  const int number = judge_split(from, color, key);
  from.is_ready = [&from, number] {
    return !from.is_hanging.load() && is_split(*from.world, number);
  };
  from.busy_until = Clock::now() + std::chrono::microseconds(state.random(
                                       static_cast<int>(state.settings().most_call_delay.count())));
  from.deferred.emplace_back([&from, number, comm] {
    const auto [part, rank] = part_of(from, number);
    if (!part) return;
    auto* made = FakeState::instance().add_comm(part, rank, from.root_rank);
    await_all(*made);
    *comm = native(made);
  });
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
  auto& comm = fake(handle);
  const Inside inside(comm, "ncclCommGetAsyncError");
  if (!inside.may_go_on()) return ncclInvalidUsage;
  *result = static_cast<ncclResult_t>(comm.error.load());
  if (*result != ncclSuccess || !comm.busy_until) return ncclSuccess;
  *result = ncclInProgress;
  if (Clock::now() < *comm.busy_until || (comm.is_ready && !comm.is_ready())) return ncclSuccess;
  comm.is_ready = nullptr;
  comm.busy_until.reset();
  while (!comm.deferred.empty()) {
    comm.deferred.front()();
    comm.deferred.pop_front();
  }
  *result = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  auto& comm = fake(handle);
  const Inside inside(comm, "ncclCommFinalize");
  if (!inside.may_go_on()) return ncclInvalidUsage;
  if (comm.busy_until)
    return refuse(fmt::format("ncclCommFinalize on rank {} while an earlier call was in progress",
                              comm.rank));
  comm.is_ready = [&comm] { return comm.running.load() == 0; };
  comm.busy_until = Clock::now();
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  auto& comm = fake(handle);
  const Inside inside(comm, "ncclCommDestroy");
  if (!inside.may_go_on()) return ncclInvalidUsage;
  end(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  auto& comm = fake(handle);
  if (comm.is_over.load())
    return refuse(
        fmt::format("ncclCommAbort on a communicator of rank {} after its end", comm.rank));
  ++FakeState::instance().aborts;
  end(comm);
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  *memory = device_runtime(DeviceKind::fake).allocate(bytes, {DeviceKind::fake, 0});
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* memory) {
  if (FakeState::instance().is_registered(memory))
    refuse("memory was freed that is still registered");
  device_runtime(DeviceKind::fake).free(memory, {DeviceKind::fake, 0});
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t handle, void* memory, size_t bytes, void** registration) {
  auto& comm = fake(handle);
  const Inside inside(comm, "ncclCommRegister");
  if (!inside.may_go_on()) return ncclInvalidUsage;
  if (!comm.registered.emplace(static_cast<const std::byte*>(memory), bytes).second)
    return refuse("memory was registered twice");
  *registration = memory;
  FakeState::instance().note_registration(memory, 1);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t handle, void* registration) {
  auto& comm = fake(handle);
  const Inside inside(comm, "ncclCommDeregister");
  if (!inside.may_go_on()) return ncclInvalidUsage;
  if (comm.registered.erase(static_cast<const std::byte*>(registration)) == 0)
    return refuse("memory was deregistered that is not registered");
  FakeState::instance().note_registration(registration, -1);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  if (group.depth++ > 0) return refuse("a group was begun inside a group");
  FakeState::instance().open_group(true);
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return refuse("ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  FakeState::instance().open_group(false);
  auto calls = std::exchange(group.calls, {});
  if (calls.empty()) return ncclSuccess;
  const Inside inside(*group.comm, "ncclGroupEnd");
  if (!inside.may_go_on()) return ncclInvalidUsage;
  return submit(*group.comm, std::move(calls), group.stream);
}

// The op encodes the power of two by which it divides.
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                                      ncclScalarResidence_t, ncclComm_t handle) {
  auto& comm = fake(handle);
  const Inside inside(comm, "ncclRedOpCreatePreMulSum");
  if (!inside.may_go_on()) return ncclInvalidUsage;
  if (dtype != ncclFloat16) return refuse("ncclRedOpCreatePreMulSum of another type than f16");
  Float16 factor;
  std::memcpy(&factor, scalar, sizeof factor);
  *op = static_cast<ncclRedOp_t>(kFirstOwnOp + std::lround(-std::log2(to_float(factor))));
  return ncclSuccess;
}

using Kind = FakeCall::Kind;

ncclResult_t ncclAllReduce(const void* input, void* output, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::allreduce, input, output, count, dtype, op}, stream);
}
ncclResult_t ncclReduce(const void* input, void* output, size_t count, ncclDataType_t dtype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::reduce, input, output, count, dtype, op, root}, stream);
}
ncclResult_t ncclReduceScatter(const void* input, void* output, size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::reduce_scatter, input, output, count, dtype, op}, stream);
}
ncclResult_t ncclAllGather(const void* input, void* output, size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::allgather, input, output, count, dtype}, stream);
}
ncclResult_t ncclBroadcast(const void* input, void* output, size_t count, ncclDataType_t dtype,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::broadcast, input, output, count, dtype, -1, root}, stream);
}
ncclResult_t ncclSend(const void* input, size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {Kind::send, input, nullptr, count, dtype, -1, peer}, stream);
}
ncclResult_t ncclRecv(void* output, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, {Kind::recv, nullptr, output, count, dtype, -1, peer}, stream);
}

}  // extern "C"
