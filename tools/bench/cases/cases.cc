#include "tools/bench/cases/cases.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::bench {

std::span<const Case> all_cases() {
  using enum Way;
  constexpr unsigned kMoving = kSizes | kDtype | kTiming;
  constexpr unsigned kReducing = kMoving | kOp | kPlacement;
  constexpr std::string_view kWays =
      "Ways: arena_blocking is the blocking call with its input in an arena's memory; region is\n"
      "the blocking call with input and output in memory of allocate(); declared and replayed\n"
      "use handles. replayed fails unless a plan is locked before the time is measured.";
  static const std::vector<Case> kCases = {
      {"allreduce",
       "The reduction of all ranks' buffers, on every rank",
       kReducing,
       {blocking, vector, named, declared, grouped, arena, arena_blocking, region, replayed},
       run_collective,
       "Ways: arena declares one array ready() and waits for it; arena_blocking is the blocking\n"
       "call on an arena's memory, region on memory of allocate(); vector is the blocking call\n"
       "that creates its view of a vector each time (f32). replayed fails unless a plan is locked\n"
       "before the time is measured."},
      {"allgather",
       "All ranks' buffers one after another, on every rank",
       kMoving | kPlacement,
       {named, blocking, arena_blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"broadcast",
       "Root's buffer to every rank, in place",
       kMoving | kRoot,
       {blocking, named, arena_blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"reduce",
       "The reduction of all ranks' buffers, at root",
       kReducing | kRoot,
       {named, blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"gather",
       "All ranks' buffers one after another, at root",
       kMoving | kRoot,
       {named, blocking, arena_blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"scatter",
       "Root's buffer, divided among the ranks",
       kMoving | kRoot,
       {named, blocking, arena_blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"reduce_scatter",
       "The reduction of all ranks' buffers, divided among the ranks",
       kMoving | kOp,
       {named, blocking, arena_blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"alltoall",
       "A part of every rank's buffer to every rank",
       kMoving,
       {named, blocking, arena_blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"sendrecv",
       "Every rank sends to the next rank and receives from the previous one",
       kMoving,
       {named, blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"barrier", "No data", kTiming, {blocking, named, declared, replayed}, run_collective},
      {"latency",
       "Percentiles of single 4-byte allreduces, from submission to completion",
       kCalls,
       {named, blocking},
       run_latency,
       "Each call is timed by itself; percentiles are those of the slowest rank."},
      {"gradients",
       "All gradients of a model averaged, time per step",
       kSet | kTiming,
       {named, declared, grouped, arena},
       run_gradients,
       "Gradients are submitted in reverse order and then waited for. Messages, bytes and\n"
       "allocations are counted over 20 steps once the plan is locked. Engine CPU per tensor is\n"
       "measured in further steps with the same names and one element each, so hardly any data\n"
       "moves. It is the CPU time of all threads of a process, divided by the number of tensors,\n"
       "in the mean over ranks. Polling for a late rank counts too, so it is an upper bound."},
      {"overlap",
       "The part of the gradients' communication that a backward pass does not hide",
       kSet | kTiming | kBackward,
       {named, declared, grouped, arena},
       run_overlap,
       "The backward pass is a fixed amount of arithmetic in registers, split over the gradients\n"
       "in reverse order by their sizes; each is ready when its part is done. The time is that of\n"
       "a step (the pass and the wait after it) minus that of the pass alone, which alternate."},
      {"steady",
       "Counts messages and allocations of a step with a plan; fails if there are too many",
       kSet | kSteps,
       {named, declared, grouped, arena},
       run_steady,
       "From the step after the plan was locked on, no control message may be sent, nothing be\n"
       "allocated on the data path, and each step must send as many messages and bytes as the\n"
       "first. Otherwise the exit code is 1."},
      {"fused_optimizer",
       "Adam fused with the reduction, compared with an allreduce and a whole step",
       kSet | kTiming,
       {arena},
       run_fused_optimizer,
       "The time is that of ShardedAdam: gradients declared ready in reverse order, then step().\n"
       "It alternates with a GradientArena's step and Adam over all parameters on every rank.\n"
       "After 16 steps of both every parameter must be the same."},
      {"sharded",
       "Adam in parts (ZeRO 1), compared with an allreduce and a whole step",
       kSet | kTiming,
       {named},
       run_sharded,
       "The time is that of nn::ShardedOptimizer<nn::Adam>: gradients announced in reverse order,\n"
       "then step(). It alternates with allreduces of the gradients by name and Adam over all\n"
       "parameters on every rank. After 8 steps of both every parameter must be the same."},
      {"kernels",
       "Sums of 2 and 4 inputs, computed by each rank alone, beside a plain loop",
       kSizes | kTiming,
       {blocking},
       run_kernels,
       "f32, f16 and bf16. Bandwidths count every byte loaded and stored, on all ranks together.\n"
       "The plain loop and averages are measured up to 1 MiB; large results pass the caches."},
      {"bare_device",
       "The time of a GPU's own launches, hand-overs between streams and copies over the bus",
       kTiming,
       {blocking},
       run_bare_device,
       "Each rank measures alone, on the GPU whose index is its number. A launch is that of the\n"
       "library's smallest kernel: many in a row, or each waited for. Events and flags go from "
       "one\n"
       "stream to another and back. Copies are of pinned memory; the result is compared byte by\n"
       "byte."},
      {"device",
       "Packing and unpacking a bucket on a GPU, beside the GPU's own copy",
       kSet | kTiming,
       {blocking},
       run_device,
       "Each rank measures alone, on the GPU whose index is its number. Bandwidths count every\n"
       "byte loaded and stored; the copy has as many bytes as the bucket."},
      {"shared_device",
       "Allreduces of threads that share a GPU, beside the GPU's own copy",
       kTiming,
       {named},
       run_shared_device,
       "Ranks are threads of this process: named allreduces of backend peer, and "
       "PersistentAllreduce\n"
       "(way persistent); beside them one rank of nccl. Each waits only on its own stream. Use -n "
       "1.\n"
       "Bandwidths count every byte loaded and stored."},
      {"create",
       "Communicator::create and a first 4-byte allreduce, in fresh processes",
       kFresh,
       {blocking},
       run_create,
       "The time of the slowest rank, from before the environment is read to after the allreduce.\n"
       "Under a launcher there is one sample; without one it starts --repetitions jobs in turn."},
  };
  return kCases;
}

const Case& find_case(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& entry : all_cases()) {
    if (entry.name == name) return entry;
    names.emplace_back(entry.name);
  }
  const auto nearest = nearest_word(name, names);
  throw Error(ErrorCode::invalid_argument,
              nearest ? fmt::format("there is no case \"{}\"; did you mean \"{}\"?", name, *nearest)
                      : fmt::format("there is no case \"{}\"", name));
}

}  // namespace tutti::bench
