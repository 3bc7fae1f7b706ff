#include "tutti/backends/shared/pipeline.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tutti/backends/shared/pipeline_call.h"
#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/kernels/copy.h"

namespace tutti {

namespace {

constexpr size_t kPage = 4096;
constexpr int kFirstRuns = 8;

// What was stored before is seen by others before anything after is read.
inline void full_fence() {
#if defined(__SANITIZE_THREAD__)
  // tsan knows no fences. The host's exchange is one, and relaxed it orders nothing in tsan's eyes,
  // who thus sees a word that should have been a release and is not.
  static std::atomic<int> word;
  word.exchange(0, std::memory_order_relaxed);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

size_t Pipeline::lines_bytes() {
  const size_t lines = kSlots * (sizeof(ChunkLine) + sizeof(NameLine)) + sizeof(ProgressLine);
  return (lines + kPage - 1) / kPage * kPage;
}

size_t Pipeline::block_bytes(const Geometry& geometry) {
  return lines_bytes() + 2 * kSlots * static_cast<size_t>(geometry.chunk_bytes);
}

size_t Pipeline::sender_bytes(const Geometry& geometry) {
  return lines_bytes() + kSlots * static_cast<size_t>(geometry.chunk_bytes);
}

// 0: the whole operation is one chunk.
int64_t Pipeline::elements_of_chunk(Algorithm algorithm, CollectiveKind kind, DataType dtype,
                                    int64_t count) const {
  if (algorithm == kMove) {
    const int64_t most = moved_at_once(kind, dtype);
    return count <= most ? 0 : most;
  }
  if (algorithm != kTwoShot) return 0;
  const int64_t unit = size() * elements_per_line(size_of(dtype));
  return geometry_.chunk_bytes / size_of(dtype) / unit * unit;
}

std::string_view Pipeline::algorithm(const Collective& collective, int size,
                                     const Geometry& geometry) {
  if (collective.kind != CollectiveKind::allreduce && collective.kind != CollectiveKind::reduce)
    return "move";
  const int64_t bytes = collective.send_counts[0] * size_of(collective.dtype);
  return bytes <= geometry.one_shot_bytes / size ? "one_shot" : "two_shot";
}

Pipeline::Pipeline(int rank, SharedMemory& memory, std::vector<std::byte*> blocks,
                   std::vector<SleepLine*> sleepers, const Geometry& geometry,
                   std::vector<int> pair)
    : rank_(rank),
      geometry_{geometry.chunk_bytes, geometry.one_shot_bytes / static_cast<int64_t>(blocks.size()),
                geometry.read_in_place_bytes},
      memory_(memory),
      sleepers_(std::move(sleepers)),
      pair_(std::move(pair)) {
  const auto ranks = static_cast<int64_t>(blocks.size());
  TUTTI_CHECK(geometry.chunk_bytes % 64 == 0 && geometry.chunk_bytes >= 64 * ranks &&
              geometry.one_shot_bytes <= geometry.chunk_bytes &&
              geometry.read_in_place_bytes > static_cast<int64_t>(ChunkLine::kPayload));
  for (auto* block : blocks) {
    auto& peer = peers_.emplace_back();
    peer.lines = reinterpret_cast<ChunkLine*>(block);
    peer.progress = reinterpret_cast<ProgressLine*>(block + kSlots * sizeof(ChunkLine));
    peer.names = reinterpret_cast<NameLine*>(peer.progress + 1);
    peer.slots = block + lines_bytes();
    peer.results = peer.slots + kSlots * static_cast<size_t>(geometry.chunk_bytes);
  }
  block_.resize(kBlockBytes);
  inputs_.resize(peers_.size());
  outputs_.resize(peers_.size());
  share_outputs_.reserve(peers_.size() + 1);
  // How many run at once varies with time from step to step.
  for (int i = 0; i < kFirstRuns; ++i) spare_.push_back(std::make_unique<Call>(*this));
}

Pipeline::~Pipeline() = default;

OperationPtr Pipeline::start(const Collective& collective, const Launch& launch) {
  const uint64_t epoch = launch.tag >> kQueueTagBits;
  if (epoch != epoch_) {
    TUTTI_CHECK(operations_.empty());
    epoch_ = epoch;
    retired_ = end_ = filled_ = reduced_ = drained_ = told_retired_ = epoch << kQueueTagBits;
    for (auto& peer : peers_) peer.retired = retired_;
    void_from_ = kNever;
  }
  const uint64_t begin = end_;
  const bool is_done = launch.spins > 0 && run_here(collective, launch);
  wake_sleepers();
  if (is_done) return nullptr;
  return enqueue(collective, launch, begin);
}

OperationPtr Pipeline::enqueue(const Collective& collective, const Launch& launch, uint64_t begin) {
  if (spare_.empty()) {
    ++allocations_;
    spare_.push_back(std::make_unique<Call>(*this));
  }
  auto* run = spare_.back().release();
  spare_.pop_back();
  OperationPtr operation(run);
  run->prepare(collective, launch);
  run->begin = begin;
  run->end = end_ = begin + run->chunks();
  operations_.push_back(run);
  progress();
  return operation;
}

Traffic Pipeline::predict(const Collective& collective, const Launch& launch) const {
  if (collective.kind != CollectiveKind::allreduce && collective.kind != CollectiveKind::reduce)
    return predict_move(collective);
  const int64_t element = size_of(collective.dtype), count = collective.send_counts[0];
  const auto bytes = static_cast<uint64_t>(count * element);
  const auto peers = static_cast<uint64_t>(size() - 1);
  if (!launch.windows.empty() && launch.update == nullptr) {
    const Range mine = share_of(rank_, size(), {0, count}, element);
    return {2, static_cast<uint64_t>(mine.count * element) * peers};
  }
  if (!launch.windows.empty()) {
    int64_t mine = 0;
    for (const auto& window : launch.windows) {
      int64_t at = window.data - launch.update->inputs;
      for (const int64_t end = at + window.count * element; at < end;) {
        const int64_t next = std::min(end, (at / kStripeBytes + 1) * kStripeBytes);
        if (at / kStripeBytes % size() == rank_) mine += next - at;
        at = next;
      }
    }
    return {2, static_cast<uint64_t>(mine) * peers};
  }
  if (count * element <= geometry_.one_shot_bytes) return {1, bytes};
  const int64_t each = elements_of_chunk(kTwoShot, collective.kind, collective.dtype, count);
  return {2 * static_cast<uint64_t>((count + each - 1) / each), bytes};
}

Pipeline::Call& Pipeline::run_of(uint64_t chunk) {
  for (auto* run : operations_)
    if (chunk < run->end) return *run;
  TUTTI_CHECK(false);
  return *operations_.front();
}

bool Pipeline::can_fill() { return filled_ != end_ && filled_ < void_from_ && has_free_slot(); }

bool Pipeline::learn_retired() {
  const uint64_t needed = filled_ - kSlots + 1;
  retired_ = drained_;
  for (auto& peer : peers_) {
    if (&peer == &own()) continue;
    // Told with whatever the peer published last, which is in most cases what this rank read last.
    const auto look = [&](const std::atomic<uint64_t>& word) {
      peer.retired = std::max(peer.retired, word.load(std::memory_order_seq_cst));
      return peer.retired >= needed;
    };
    bool is_enough = look(peer.lines[slot_of(filled_ - 1)].retired);
    for (size_t slot = 0; slot < kSlots && !is_enough; ++slot)
      is_enough = look(peer.lines[slot].retired);
    if (!is_enough) look(peer.progress->retired);
    retired_ = std::min(retired_, peer.retired);
  }
  return retired_ >= needed;
}

bool Pipeline::can_reduce() const {
  if (reduced_ == filled_ || reduced_ >= void_from_) return false;
  for (const auto& peer : peers_)
    if (peer.lines[slot_of(reduced_)].in.load(std::memory_order_seq_cst) <= reduced_) return false;
  return true;
}

bool Pipeline::can_drain() const {
  if (drained_ == reduced_ || drained_ >= void_from_) return false;
  for (const auto& peer : peers_)
    if (peer.progress->out.load(std::memory_order_seq_cst) <= drained_) return false;
  return true;
}

void Pipeline::wake_sleepers() {
  if (!std::exchange(has_published_, false)) return;
  full_fence();
  for (int rank = 0; rank < size(); ++rank)
    if (rank != rank_ && sleepers_[static_cast<size_t>(rank)]->take()) memory_.ring(rank);
}

Pipeline::Places Pipeline::own_places(const std::byte* elements, const FusedUpdate* update) const {
  Places places;
  places.elements = memory_.place_of(elements, 1);
  if (update != nullptr)
    places.outputs = memory_.place_of(update->outputs + (elements - update->inputs), 1);
  TUTTI_CHECK(places.elements != SharedMemory::kNowhere &&
              places.outputs != SharedMemory::kNowhere);
  return places;
}

void Pipeline::fill() {
  const uint64_t chunk = filled_;
  auto& run = run_of(chunk);
  auto& line = own().lines[slot_of(chunk)];
  const Range range = run.range_of(chunk);
  if (chunk == run.begin) tell_call(run, chunk);
  if (run.algorithm == kMove) {
    fill_move(run, chunk);
    publish_filled(chunk);
    return;
  }
  size_t bytes = run.bytes(range.count);
  if (run.algorithm == kDirect || run.algorithm == kFused) {
    const Places places = own_places(run.windows[0].data, run.update);
    std::memcpy(line.payload, &places, sizeof places);
    bytes = 0;
  } else if (run.verdict == 0 && run.algorithm == kOneShot) {
    fill_one_shot(run, chunk, range);
  } else if (run.verdict == 0) {
    const Range mine = share_of(rank_, size(), range, run.element);
    fill_two_shot(run, chunk, range, mine);
    bytes -= run.bytes(mine.count);
  }
  bytes_ += bytes;
  publish_filled(chunk);
}

void Pipeline::fill_one_shot(const Call& run, uint64_t chunk, Range range) {
  const bool chooses = run.chooses_destination();
  auto destination = Destination::cache;
  if (chooses) destination = choose_destination(run.destination_word(), chunk);
  if (run.keeps_input(range)) return;
  const auto bytes = run.bytes(range.count);
  const AddTime time(chooses ? time_of(chunk) : nullptr);
  leave_input(run, range, small_place(own(), chunk, bytes), destination);
  copied_ += bytes;
}

// Tells where this rank's elements lie, if its peers reach them; else leaves there what they read.
void Pipeline::fill_two_shot(const Call& run, uint64_t chunk, Range range, Range mine) {
  auto& line = own().lines[slot_of(chunk)];
  const Destination destination = choose_destination(run.destination_word(), chunk);
  const AddTime time(time_of(chunk));
  const auto place_of = [&](const std::byte* view) {
    return view == nullptr ? SharedMemory::kNowhere
                           : memory_.place_of(view, run.bytes(range.count));
  };
  const uint64_t input = place_of(run.input_view(range));
  const uint64_t output = run.is_wanted ? place_of(run.output_view(range)) : SharedMemory::kNowhere;
  std::memcpy(line.payload + kInputAt, &input, sizeof input);
  std::memcpy(line.payload + kOutputAt, &output, sizeof output);
  if (input != SharedMemory::kNowhere) return;
  auto* slot = own().slots + slot_at(chunk);
  leave_input(run, {range.begin, mine.begin - range.begin}, slot, destination);
  leave_input(run, {mine.end(), range.end() - mine.end()},
              slot + run.bytes(mine.end() - range.begin), destination);
  if (run.input_view(mine) == nullptr) run.fill(mine, own().results + slot_at(chunk));
  copied_ += run.bytes(range.count - mine.count);
}

// What others read, into the own slot.
void Pipeline::leave_input(const Call& run, Range range, std::byte* place,
                           Destination destination) {
  if (destination == Destination::cache) {
    run.fill(range, place);
    return;
  }
  const int64_t step = kBlockBytes / run.element;
  for (const int64_t end = range.end(); range.begin < end; range.begin += step) {
    const Range part{range.begin, std::min(step, end - range.begin)};
    const auto* view = run.input_view(part);
    if (view == nullptr) {
      run.fill(part, block_.data());
      view = block_.data();
    }
    copy_past_caches(place, view, run.bytes(part.count));
    place += run.bytes(part.count);
  }
}

// Where this rank leaves its part of a chunk, which it tells; what that costs is counted from now
// on.
Destination Pipeline::choose_destination(size_t word, uint64_t chunk) {
  auto& told = peers_[0].progress->destinations[word];
  const auto said = told.load(std::memory_order_relaxed);
  // What rank 0 has not said yet is the cache.
  auto next = said == Destination::memory ? said : Destination::cache;
  bool& is_measured = is_measured_[slot_of(chunk)] = false;
  if (rank_ == 0) {
    next = destinations_[word].next();
    is_measured = destinations_[word].is_measured();
    if (next != said) told.store(next, std::memory_order_relaxed);
  }
  own().lines[slot_of(chunk)].payload[kDestinationAt] = static_cast<std::byte>(next);
  spent_ns_[slot_of(chunk)] = 0;
  return next;
}

// Where a rank left its part of a chunk for which it chose that.
Destination Pipeline::destination_of(size_t rank, uint64_t chunk) const {
  return static_cast<Destination>(peers_[rank].lines[slot_of(chunk)].payload[kDestinationAt]);
}

// Where what a rank told of a chunk lies in its memory; kNowhere: in its slots.
uint64_t Pipeline::told_place(size_t rank, uint64_t chunk, size_t at) const {
  uint64_t place = 0;
  std::memcpy(&place, peers_[rank].lines[slot_of(chunk)].payload + at, sizeof place);
  return place;
}

// Of a chunk of `bytes` that rank 0 is done with, if it was measured and all ranks left it alike.
void Pipeline::learn_cost(size_t word, uint64_t chunk, size_t bytes) {
  if (!is_measured_[slot_of(chunk)]) return;
  const auto first = destination_of(0, chunk);
  for (size_t rank = 1; rank < peers_.size(); ++rank)
    if (destination_of(rank, chunk) != first) return;
  destinations_[word].measured(first, spent_ns_[slot_of(chunk)] / static_cast<float>(bytes));
}

void Pipeline::drain() {
  const uint64_t chunk = drained_;
  auto& run = run_of(chunk);
  if (run.algorithm == kTwoShot) {
    drain_shares(run, chunk);
    // What is short tells of waiting more than of bytes, and what was read where it lay of neither.
    if (const auto bytes = run.bytes(run.range_of(chunk).count);
        bytes >= static_cast<size_t>(geometry_.chunk_bytes) / 4 && !is_read_in_place(chunk))
      learn_cost(run.destination_word(), chunk, bytes);
  }
  ++drained_;
}

void Pipeline::drain_shares(const Call& run, uint64_t chunk) {
  const AddTime time(time_of(chunk));
  const Range range = run.range_of(chunk);
  // Each rank has written its share to where it belongs.
  const auto own = static_cast<size_t>(rank_);
  if (!run.is_wanted || told_place(own, chunk, kOutputAt) != SharedMemory::kNowhere) return;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Range share = share_of(static_cast<int>(rank), size(), range, run.element);
    // The own share may be there already.
    if (static_cast<int>(rank) == rank_ && run.output_view(share) != nullptr) continue;
    run.drain(share, peers_[rank].results + slot_at(chunk));
    copied_ += run.bytes(share.count);
  }
}

void Pipeline::retire_finished() {
  while (!operations_.empty() && operations_.front()->end <= drained_) {
    operations_.front()->state = OperationState::done;
    operations_.pop_front();
  }
}

bool Pipeline::progress() {
  if (operations_.empty()) return false;
  if (aborted_.load(std::memory_order_relaxed)) {
    for (auto* run : operations_) run->state = OperationState::failed;
    operations_.clear();
    void_from_ = 0;
    return true;
  }
  // Bounded, so that the thread that drives looks at other things now and then.
  constexpr int kMostSteps = 16;
  bool moved = false;
  try {
    for (int step = 0; step < kMostSteps && !operations_.empty(); ++step) {
      const Stage stage = next_stage();
      if (stage == Stage::none) break;
      if (stage == Stage::fill) fill();
      if (stage == Stage::reduce) reduce();
      wake_sleepers();
      if (stage == Stage::drain) drain();
      moved = true;
      retire_finished();
    }
  } catch (const Error& error) {
    // A peer's memory cannot be reached: nothing of this queue can go on.
    for (auto* run : operations_) {
      run->why = error;
      run->state = OperationState::failed;
    }
    operations_.clear();
    void_from_ = 0;
    return true;
  }
  // Others may wait for a slot with which this rank is done, while it waits for them.
  if (!moved && drained_ != told_retired_) {
    told_retired_ = drained_;
    publish(own().progress->retired, drained_);
    wake_sleepers();
    moved = true;
  }
  return moved;
}

// A filled chunk in reserve keeps the others busy while this rank reduces.
Pipeline::Stage Pipeline::next_stage() {
  const bool fillable = can_fill();
  if (fillable && filled_ - reduced_ < 2) return Stage::fill;
  if (can_reduce() && (drained_ == reduced_ || !ends_when_reduced())) return Stage::reduce;
  if (can_drain()) return Stage::drain;
  return fillable ? Stage::fill : Stage::none;
}

// Chunks are drained in order, so what is over with its first stage waits until all before is
// drained: small operations, and those that the ranks do not want.
bool Pipeline::ends_when_reduced() {
  const auto& run = run_of(reduced_);
  if (run.algorithm == kOneShot || (reduced_ == run.begin && !is_agreed(reduced_))) return true;
  if (run.algorithm != kMove) return false;
  return !(reduced_ == run.begin ? run.tells_place() && is_read_in_place(reduced_) : run.is_kept);
}

bool Pipeline::may_sleep() {
  if (operations_.empty()) return true;
  return next_stage() == Stage::none && drained_ == told_retired_;
}

void Pipeline::forget(Call& run) {
  const auto found = std::find(operations_.begin(), operations_.end(), &run);
  if (found == operations_.end()) return;
  operations_.erase(found);
  void_from_ = std::min(void_from_, run.begin);
}

std::vector<int> Pipeline::missing() const {
  std::vector<int> ranks;
  if (operations_.empty()) return ranks;
  const uint64_t chunk = operations_.front()->begin;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    if (peers_[rank].lines[slot_of(chunk)].in.load(std::memory_order_acquire) <= chunk)
      ranks.push_back(static_cast<int>(rank));
  return ranks;
}

bool Pipeline::lacks_ranks() const {
  if (operations_.empty()) return false;
  const uint64_t chunk = operations_.front()->begin;
  return std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.lines[slot_of(chunk)].in.load(std::memory_order_acquire) <= chunk;
  });
}

void Pipeline::count(TransportCounters& counters) const {
  counters.messages_sent += messages_;
  counters.bytes_sent += bytes_;
  counters.allocations += allocations_;
  counters.copied_bytes += copied_;
}

}  // namespace tutti
