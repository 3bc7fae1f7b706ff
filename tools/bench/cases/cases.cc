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
      "arena_blocking is the blocking call whose input lies in an arena's memory, region that\n"
      "whose input and output lie in memory of allocate(); declared goes by handles; replayed "
      "too,\n"
      "and fails unless a plan is locked before the clock starts.";
  static const std::vector<Case> kCases = {
      {"allreduce",
       "The reduction of all ranks' buffers, on every rank",
       kReducing,
       {blocking, vector, named, declared, grouped, arena, arena_blocking, region, replayed},
       run_collective,
       "arena declares one array ready() and waits for it; arena_blocking is the blocking call on\n"
       "an arena's memory, region on memory of allocate(); vector is the blocking call that makes\n"
       "its view of a vector (f32); replayed fails unless a plan is locked before the clock "
       "starts."},
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
       "Root's buffer dealt to the ranks",
       kMoving | kRoot,
       {named, blocking, arena_blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"reduce_scatter",
       "The reduction of all ranks' buffers, dealt to the ranks",
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
       "Every rank sends to the next and receives from the one before",
       kMoving,
       {named, blocking, declared, region, replayed},
       run_collective,
       kWays},
      {"barrier", "No data", kTiming, {blocking, named, declared, replayed}, run_collective},
      {"latency",
       "Percentiles of single 4-byte allreduces, submit to done",
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
       "the CPU time of all threads of a process in steps over the same names with one element\n"
       "each, divided by the tensors, in the mean over ranks: no data worth speaking of moves in\n"
       "them. Spinning while another rank is late counts too, so it is an upper bound."},
      {"overlap",
       "What a backward pass leaves exposed of the gradients' communication",
       kSet | kTiming | kBackward,
       {named, declared, grouped, arena},
       run_overlap,
       "The backward pass is a fixed amount of arithmetic in registers, split over the gradients\n"
       "in reverse order by their sizes; each is ready when its part is done. The time is that of\n"
       "a step (the pass and the wait after it) less that of the pass alone, taken in turns."},
      {"steady",
       "Counts what a step costs once its plan is locked, and fails on surplus",
       kSet | kSteps,
       {named, declared, grouped, arena},
       run_steady,
       "From the step after the plan was locked on, no control message may be sent, nothing be\n"
       "allocated on the data path, and each step must send as many messages and bytes as the\n"
       "first. Otherwise the code is 1."},
      {"fused_optimizer",
       "Adam fused with the reduction, against an allreduce and a whole step",
       kSet | kTiming,
       {arena},
       run_fused_optimizer,
       "The time is that of ShardedAdam: gradients declared ready in reverse order, then step().\n"
       "In turns with it: a GradientArena's step, then Adam over all parameters on every rank.\n"
       "After 16 steps of both every parameter must be the same."},
      {"sharded",
       "Adam in parts (ZeRO 1), against an allreduce and a whole step",
       kSet | kTiming,
       {named},
       run_sharded,
       "The time is that of nn::ShardedOptimizer<nn::Adam>: gradients announced in reverse order,\n"
       "then step(). In turns with it: allreduces of the gradients by name, then Adam over all\n"
       "parameters on every rank. After 8 steps of both every parameter must be the same."},
      {"kernels",
       "Sums of 2 and 4 inputs on each rank by itself, beside the plain loop",
       kSizes | kTiming,
       {blocking},
       run_kernels,
       "f32, f16 and bf16. Bandwidths count every byte loaded and stored, on all ranks together.\n"
       "The plain loop and averages are measured up to 1 MiB; large results pass the caches."},
      {"bare_device",
       "What a GPU itself takes for a launch, a hand-over and a copy over the bus",
       kTiming,
       {blocking},
       run_bare_device,
       "Each rank by itself on the GPU of its number. A launch is the smallest kernel of the "
       "library,\n"
       "many of them in a row, or each waited for. Events and words go from one stream to another\n"
       "and back. Copies are of pinned memory; what came back is compared byte by byte."},
      {"device",
       "Packing and unpacking a bucket on a GPU, beside the GPU's own copy",
       kSet | kTiming,
       {blocking},
       run_device,
       "Each rank by itself on the GPU of its number. Bandwidths count every byte loaded and\n"
       "stored; the copy is of as many bytes as the bucket has."},
      {"shared_device",
       "Allreduces of threads that share a GPU, beside the GPU's own copy",
       kTiming,
       {named},
       run_shared_device,
       "Ranks are threads of this process: named allreduces of backend peer, and "
       "PersistentAllreduce\n"
       "(way persistent); a rank of nccl beside them. Each waits on its stream alone. With -n 1.\n"
       "Bandwidths count every byte loaded and stored."},
      {"create",
       "Communicator::create and a first 4-byte allreduce, in fresh processes",
       kFresh,
       {blocking},
       run_create,
       "From before the environment is read to after the allreduce, the slowest rank. Started by\n"
       "a launcher it is one sample; by itself it starts --repetitions jobs, one after another."},
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
              nearest ? fmt::format("there is no case \"{}\"; \"{}\" is meant?", name, *nearest)
                      : fmt::format("there is no case \"{}\"", name));
}

}  // namespace tutti::bench
