// The middle stage of the pipeline for allreduce and reduce, which reads the peers' memory
// directly.

#include <cstring>

#include "tutti/backends/shared/pipeline_call.h"
#include "tutti/kernels/copy.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

// after this many bytes the engine's thread looks for other work
constexpr int64_t kBytesPerCall = 1 << 20;

// Takes a cache line from the cores that have read it, before this rank writes the line. A store
// would take it too, but all later stores would wait for that store.
inline void fetch_for_writing(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace

void Pipeline::reduce() {
  const uint64_t chunk = ring_.reduced();
  auto& call = call_of(chunk);
  if (chunk == call.begin && call.reduced_elements == 0 && !learn_verdict(call, chunk)) return;
  switch (call.algorithm) {
    case kOneShot:
      if (call.chooses_destination()) {
        {
          const AddTime time(choice_.time_of(chunk));
          reduce_all(call, chunk);
        }
        choice_.learn(call.destination_word(), chunk, call.slot_bytes());
      } else {
        reduce_all(call, chunk);
      }
      ring_.finish_reduced();
      return;
    case kTwoShot:
      reduce_share(call, chunk);
      break;
    case kDirect:
    case kFused:
      if (!reduce_direct(call, chunk)) return;
      break;
    case kMove:
      move(call, chunk);
      if (call.parts.is_kept) break;
      ring_.finish_reduced();
      return;
  }
  ring_.publish_reduced();
}

Pipeline::Places Pipeline::places_of(size_t rank, uint64_t chunk) const {
  Places places;
  std::memcpy(&places, ring_.line(rank, chunk).payload, sizeof places);
  return places;
}

// Returns the address of a rank's input for an operation in one shot.
std::byte* Pipeline::small_place(size_t rank, uint64_t chunk, size_t bytes) const {
  return bytes <= ChunkLine::kPayload ? ring_.line(rank, chunk).payload
                                      : peers_[rank].slots + slot_at(chunk);
}

void Pipeline::reduce_all(Call& call, uint64_t chunk) {
  const Range whole{0, call.count};
  if (call.count == 0 || !call.is_wanted) return;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    inputs_[rank] = small_place(rank, chunk, call.bytes(call.count));
  if (call.keeps_input(whole)) inputs_[static_cast<size_t>(rank_)] = call.input_view(whole);
  copied_ += call.bytes(call.count) * (peers_.size() - 1);
  if (auto* output = call.output_view(whole)) {
    tutti::reduce(call.dtype, call.op, output, inputs_, call.count, call.scale);
    return;
  }
  auto* result = own().results + slot_at(chunk);
  tutti::reduce(call.dtype, call.op, result, inputs_, call.count, call.scale);
  call.drain(whole, result);
}

void Pipeline::reduce_share(Call& call, uint64_t chunk) {
  const Range range = call.range_of(chunk);
  const Range mine = share_of(rank_, size(), range, call.element);
  auto* result = own().results + slot_at(chunk);
  if (mine.count == 0) return;
  const AddTime time(choice_.time_of(chunk));
  bytes_ += call.bytes(mine.count);
  auto* output = call.is_wanted ? call.output_view(mine) : nullptr;
  share_outputs_.clear();
  if (output != nullptr) share_outputs_.push_back(output);
  // True if any rank copies this share from the results. This rank does so if it must unpack the
  // result.
  bool is_taken = call.is_wanted && output == nullptr;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    is_taken |= find_share(call, chunk, rank, mine);
  const bool is_written_to_peers = share_outputs_.size() > (output != nullptr ? size_t{1} : 0);
  if (is_taken) copied_ += call.bytes(mine.count);
  if (is_taken && !is_written_to_peers && choice_.of(own_rank(), chunk) == Destination::memory)
    return reduce_past_caches(call, mine, result);
  if (is_taken) share_outputs_.push_back(result);
  // If this rank writes its share to the peers' memory, another rank writes the neighbouring share
  // there at the same time. own_order() keeps the two from taking cache lines from each other; see
  // Order.
  const auto order = is_written_to_peers ? own_order() : Order::ascending;
  if (!share_outputs_.empty())
    tutti::reduce(call.dtype, call.op, share_outputs_, inputs_, mine.count, call.scale,
                  Destination::cache, order);
}

// Looks up where this rank's share is in the memory of `rank`. Sets inputs_[rank] to the input of
// the share. If this rank can write to the output of `rank`, appends the output's address to
// share_outputs_. Returns true if `rank` must copy the share from the results instead.
bool Pipeline::find_share(const Call& call, uint64_t chunk, size_t rank, Range mine) {
  const Range range = call.range_of(chunk);
  const auto offset = call.bytes(mine.begin - range.begin);
  const auto reached = [&](uint64_t place) {
    return memory_.at(static_cast<int>(rank), place, call.bytes(range.count)) + offset;
  };
  if (static_cast<int>(rank) == rank_) {
    const auto* view = call.input_view(mine);
    inputs_[rank] = view != nullptr ? view : own().results + slot_at(chunk);
    return false;
  }
  const uint64_t input = told_place(rank, chunk, kInputAt);
  inputs_[rank] = input != SharedMemory::kNowhere ? reached(input)
                                                  : peers_[rank].slots + slot_at(chunk) + offset;
  if (call.kind == CollectiveKind::reduce && static_cast<int>(rank) != call.root) return false;
  const uint64_t output = told_place(rank, chunk, kOutputAt);
  if (output == SharedMemory::kNowhere) return true;
  share_outputs_.push_back(reached(output));
  return false;
}

// Reduces inputs_ into this rank's output. Writes a copy to `result`, past the caches, for the
// other ranks.
void Pipeline::reduce_past_caches(Call& call, Range range, std::byte* result) {
  const int64_t step = kCacheBlockBytes / call.element;
  for (const int64_t end = range.end(); range.begin < end; range.begin += step) {
    const Range part{range.begin, std::min(step, end - range.begin)};
    const auto bytes = call.bytes(part.count);
    auto* output = call.output_view(part);
    if (output == nullptr) output = block_.data();
    tutti::reduce(call.dtype, call.op, output, inputs_, part.count, call.scale, Destination::cache);
    copy_past_caches(result, output, bytes);
    result += bytes;
    for (auto& input : inputs_) input += bytes;
  }
}

// Reduces a part of this rank's share directly in the memory of all ranks. Returns true when the
// whole share is done. With an update it works in blocks. A block stays in the L1 cache while it is
// reduced, updated and copied to the peers.
bool Pipeline::reduce_direct(Call& call, uint64_t chunk) {
  const auto* update = call.update;
  // With an update, the stripes of the layout are dealt out to the ranks in turn. A stripe keeps
  // its owner, because the owner holds the update's state from step to step. Without an update the
  // elements are divided evenly.
  const Range mine = update != nullptr ? Range{0, call.count}
                                       : share_of(rank_, size(), {0, call.count}, call.element);
  int64_t window_begin = 0;
  int64_t budget = kBytesPerCall / call.element;
  for (const auto& window : call.windows) {
    int64_t at = std::max(window_begin, mine.begin + call.reduced_elements);
    const int64_t last = std::min(window_begin + window.count, mine.end());
    while (at < last && budget > 0) {
      auto* elements = window.data + (at - window_begin) * call.element;
      int64_t count = std::min(last - at, budget);
      bool is_mine = true;
      if (update != nullptr) {
        const int64_t offset = elements - update->inputs;
        count = std::min({count, kCacheBlockBytes / call.element,
                          (kStripeBytes - offset % kStripeBytes) / call.element});
        is_mine = offset / kStripeBytes % size() == rank_;
      }
      at += count;
      call.reduced_elements += count;
      if (!is_mine) continue;
      budget -= count;
      const auto bytes = call.bytes(count);
      const auto distance = static_cast<uint64_t>(elements - call.windows[0].data);
      const auto theirs = [&](size_t rank, uint64_t place) {
        return memory_.at(static_cast<int>(rank), place + distance, bytes);
      };
      for (size_t rank = 0; rank < peers_.size(); ++rank) {
        outputs_[rank] = static_cast<int>(rank) == rank_
                             ? elements
                             : theirs(rank, places_of(rank, chunk).elements);
        inputs_[rank] = outputs_[rank];
      }
      if (update == nullptr) {
        tutti::reduce(call.dtype, call.op, outputs_, inputs_, count, call.scale,
                      Destination::cache);
      } else {
        const int64_t offset = elements - update->inputs;
        tutti::reduce(call.dtype, call.op, block_.data(), inputs_, count, call.scale);
        update->apply(update->self, offset, count, block_.data());
        const auto* updated = update->outputs + offset;
        for (size_t rank = 0; rank < peers_.size(); ++rank) {
          if (static_cast<int>(rank) == rank_) continue;
          auto* copy = theirs(rank, places_of(rank, chunk).outputs);
          if (update->bytes < kBeyondCachesBytes)
            std::memcpy(copy, updated, bytes);
          else
            copy_past_caches(copy, updated, bytes);
        }
      }
      bytes_ += bytes * (peers_.size() - 1);
    }
    window_begin += window.count;
  }
  return call.reduced_elements == mine.count;
}

// Runs an allreduce that is small or in shared memory, for a caller that blocks. Does what
// progress() does, but in one piece and without an Operation. If it returns false, an Operation
// must run the allreduce. If this function has added a chunk to the ring, the Operation takes it
// over.
bool Pipeline::run_here(const Collective& collective, const Launch& launch) {
  if (collective.kind != CollectiveKind::allreduce)
    return collective.kind != CollectiveKind::reduce && move_here(collective, launch);
  const int64_t count = collective.send_counts[0], element = size_of(collective.dtype);
  const auto whole = static_cast<size_t>(count * element);
  const bool is_direct = launch.windows.size() == 1;
  const bool is_short = count * element <= (is_direct ? kBytesPerCall : geometry_.one_shot_bytes);
  if (!is_short || launch.windows.size() > 1 || launch.update != nullptr || launch.verdict != 0 ||
      launch.edges.fill != nullptr || launch.edges.drain != nullptr)
    return false;
  if (!operations_.empty() || !ring_.can_begin()) return false;

  const uint64_t chunk = ring_.extend(1);
  auto& line = ring_.own_line(chunk);
  const auto subject = subject_of(collective, launch);
  tell_name(chunk, subject, launch.name);
  auto* const elements = is_direct ? launch.windows[0].data : nullptr;
  Places places;
  if (is_direct) {
    places = own_places(elements, nullptr);
  } else if (count > 0) {
    auto* place = small_place(own_rank(), chunk, whole);
    if (whole >= kLeastPastCaches) {
      const auto destination = choice_.choose(CacheChoice::kOneShot, chunk);
      const AddTime time(choice_.time_of(chunk));
      copy_to(destination, place, collective.input, whole);
    } else {
      std::memcpy(place, collective.input, whole);
    }
    bytes_ += whole;
    // this counts the copy into this rank's slot and the copies from the other slots
    copied_ += whole * peers_.size();
  }
  // The whole line is written in one go, because a peer that polls in between takes the line away.
  line.call.tell(collective.kind, collective.dtype, collective.op, is_direct ? kDirect : kOneShot,
                 count, 0, subject, 0);
  if (is_direct) std::memcpy(line.payload, &places, sizeof places);
  ring_.publish_filled();
  if (!is_direct) fetch_for_writing(&ring_.own_line(chunk + 1));
  // While the lines of the peers arrive, this rank does work that needs no peer.
  const Reducer reduce(collective.dtype, op_of(collective), scale_of(collective, launch, size()));
  const Range mine = share_of(rank_, size(), {0, count}, element);
  const auto offset = mine.begin * element, bytes = mine.count * element;
  const size_t ranks = peers_.size();
  if (is_direct) outputs_[static_cast<size_t>(rank_)] = elements + offset;
  if (!ring_.await_filled(launch.spins, chunk, bell()) || !is_agreed(chunk)) return false;

  if (!is_direct) {
    for (size_t rank = 0; rank < ranks; ++rank) inputs_[rank] = small_place(rank, chunk, whole);
    {
      const bool is_long = whole >= kLeastPastCaches;
      const AddTime time(is_long ? choice_.time_of(chunk) : nullptr);
      if (count > 0) reduce({&collective.output, 1}, inputs_, count);
    }
    if (whole >= kLeastPastCaches) choice_.learn(CacheChoice::kOneShot, chunk, whole);
    ring_.finish_reduced();
    return true;
  }
  if (mine.count > 0) {
    try {
      for (size_t rank = 0; rank < ranks; ++rank) {
        if (static_cast<int>(rank) != rank_)
          outputs_[rank] =
              memory_.at(static_cast<int>(rank),
                         places_of(rank, chunk).elements + static_cast<uint64_t>(offset),
                         static_cast<size_t>(bytes));
        inputs_[rank] = outputs_[rank];
      }
    } catch (const Error&) {
      return false;  // progress() gets this error again and fails the queue
    }
    fetch_for_writing(&ring_.own_progress());
    reduce(outputs_, inputs_, mine.count, own_order());
    bytes_ += static_cast<uint64_t>(bytes) * (ranks - 1);
  }
  ring_.publish_reduced();
  fetch_for_writing(&ring_.own_line(chunk + 1));
  ring_.wake_sleepers(bell());
  if (!ring_.await_reduced(launch.spins, chunk, bell())) return false;
  ring_.finish_drained();
  return true;
}

// Does the same as run_here() for a kind that moves elements, if all parts are packed into one
// chunk.
bool Pipeline::move_here(const Collective& collective, const Launch& launch) {
  if (launch.verdict != 0 || spare_.empty() || !operations_.empty() || !ring_.can_begin())
    return false;
  Call& call = *spare_.back();
  call.prepare(collective, launch);
  if (call.chunks() != 1 || call.parts.place != SharedMemory::kNowhere) return false;

  const uint64_t chunk = ring_.extend(1);
  call.begin = chunk;
  call.end = chunk + 1;
  tell_call(call, chunk);
  fill_move(call, chunk);
  ring_.publish_filled();
  fetch_for_writing(&ring_.own_line(chunk + 1));
  if (!ring_.await_filled(launch.spins, chunk, bell()) || !is_agreed(chunk) ||
      (call.tells_place() && is_read_in_place(chunk)))
    return false;
  move(call, chunk);
  ring_.finish_reduced();
  return true;
}

}  // namespace tutti
