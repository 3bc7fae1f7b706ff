// The middle stage of the pipeline: arithmetic straight on the peers' memory.

#include <cstring>

#include "tutti/backends/pipeline_run.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

constexpr int64_t kBlockBytes = 16 << 10;  // stays in the first cache

}  // namespace

void Pipeline::reduce() {
  const uint64_t chunk = reduced_;
  auto& run = run_of(chunk);
  if (chunk == run.begin && run.reduced_elements == 0 && !learn_verdict(run, chunk)) return;
  switch (run.algorithm) {
    case kOneShot:
      reduce_all(run, chunk);
      drained_ = ++reduced_;
      return;
    case kTwoShot:
      reduce_share(run, chunk);
      break;
    case kDirect:
    case kFused:
      if (!reduce_direct(run, chunk)) return;
      break;
  }
  ++reduced_;
  own().progress->retired.store(drained_, std::memory_order_release);
  told_retired_ = drained_;
  ++messages_;
  publish(own().progress->out, chunk + 1);
}

void Pipeline::reduce_all(Run& run, uint64_t chunk) {
  const Range whole{0, run.count};
  if (run.count == 0) return;
  const bool in_line = run.bytes(run.count) <= ChunkLine::kPayload;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    inputs_[rank] = in_line ? peers_[rank].lines[slot_of(chunk)].payload
                            : peers_[rank].slots + slot_of(chunk) * kChunkBytes;
  if (auto* output = run.output_view(whole)) {
    tutti::reduce(run.dtype, run.op, output, inputs_, run.count, run.scale);
    return;
  }
  auto* result = own().results + slot_of(chunk) * kChunkBytes;
  tutti::reduce(run.dtype, run.op, result, inputs_, run.count, run.scale);
  run.drain(whole, result);
}

void Pipeline::reduce_share(Run& run, uint64_t chunk) {
  const Range range = run.range_of(chunk);
  const Range mine = share_of(rank_, size(), range, run.element);
  auto* result = own().results + slot_of(chunk) * kChunkBytes;
  if (mine.count == 0) return;
  const auto offset = run.bytes(mine.begin - range.begin);
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    inputs_[rank] = peers_[rank].slots + slot_of(chunk) * kChunkBytes + offset;
  const auto* view = run.input_view(mine);
  inputs_[static_cast<size_t>(rank_)] = view != nullptr ? view : result;
  bytes_ += run.bytes(mine.count);
  auto* output = run.output_view(mine);
  if (output == nullptr) {
    tutti::reduce(run.dtype, run.op, result, inputs_, mine.count, run.scale);
    return;
  }
  std::byte* const both[] = {result, output};
  tutti::reduce(run.dtype, run.op, both, inputs_, mine.count, run.scale, Destination::cache);
}

// A part of what this rank reduces, straight in all ranks' memory; true when all of it is done.
// What is updated goes by blocks that stay in the first cache between being reduced, used and
// copied.
bool Pipeline::reduce_direct(Run& run, uint64_t chunk) {
  constexpr int64_t kBytesPerCall = 1 << 20;
  const auto* update = run.update;
  // What is updated has an owner for good, who keeps what the update needs from step to step:
  // stripes of the layout, in turns. What is only reduced is divided evenly.
  const Range mine = update != nullptr ? Range{0, run.count}
                                       : share_of(rank_, size(), {0, run.count}, run.element);
  const auto places_of = [&](size_t rank) {
    Places places;
    std::memcpy(&places, peers_[rank].lines[slot_of(chunk)].payload, sizeof places);
    return places;
  };
  if (update != nullptr) block_.resize(kBlockBytes);
  int64_t window_begin = 0;
  int64_t budget = kBytesPerCall / run.element;
  for (const auto& window : run.windows) {
    int64_t at = std::max(window_begin, mine.begin + run.reduced_elements);
    const int64_t last = std::min(window_begin + window.count, mine.end());
    while (at < last && budget > 0) {
      auto* elements = window.data + (at - window_begin) * run.element;
      int64_t count = std::min(last - at, budget);
      bool is_mine = true;
      if (update != nullptr) {
        const int64_t offset = elements - update->inputs;
        count = std::min({count, kBlockBytes / run.element,
                          (kStripeBytes - offset % kStripeBytes) / run.element});
        is_mine = offset / kStripeBytes % size() == rank_;
      }
      at += count;
      run.reduced_elements += count;
      if (!is_mine) continue;
      budget -= count;
      const auto bytes = run.bytes(count);
      const auto distance = static_cast<uint64_t>(elements - run.windows[0].data);
      const auto theirs = [&](size_t rank, uint64_t place) {
        return memory_.at(static_cast<int>(rank), place + distance, bytes);
      };
      for (size_t rank = 0; rank < peers_.size(); ++rank) {
        outputs_[rank] =
            static_cast<int>(rank) == rank_ ? elements : theirs(rank, places_of(rank).elements);
        inputs_[rank] = outputs_[rank];
      }
      if (update == nullptr) {
        tutti::reduce(run.dtype, run.op, outputs_, inputs_, count, run.scale, Destination::cache);
      } else {
        const int64_t offset = elements - update->inputs;
        tutti::reduce(run.dtype, run.op, block_.data(), inputs_, count, run.scale);
        update->apply(update->self, offset, count, block_.data());
        for (size_t rank = 0; rank < peers_.size(); ++rank)
          if (static_cast<int>(rank) != rank_)
            std::memcpy(theirs(rank, places_of(rank).outputs), update->outputs + offset, bytes);
      }
      bytes_ += bytes * (peers_.size() - 1);
    }
    window_begin += window.count;
  }
  return run.reduced_elements == mine.count;
}

}  // namespace tutti
