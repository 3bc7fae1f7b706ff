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
constexpr int kFirstCalls = 8;

// The lines at the beginning of a rank's block.
struct Lines {
  ChunkLine chunks[ChunkRing::kSlots];
  ProgressLine progress;
  CacheChoice::Told told;
  NameLine names[ChunkRing::kSlots];
};

Lines& lines_of(std::byte* block) { return *reinterpret_cast<Lines*>(block); }

std::vector<ChunkRing::Peer> ring_of(const std::vector<std::byte*>& blocks) {
  std::vector<ChunkRing::Peer> peers;
  for (auto* block : blocks)
    peers.push_back({lines_of(block).chunks, &lines_of(block).progress, 0});
  return peers;
}

}  // namespace

size_t Pipeline::lines_bytes() { return (sizeof(Lines) + kPage - 1) / kPage * kPage; }

size_t Pipeline::block_bytes(const Geometry& geometry) {
  return lines_bytes() + 2 * ChunkRing::kSlots * static_cast<size_t>(geometry.chunk_bytes);
}

size_t Pipeline::sender_bytes(const Geometry& geometry) {
  return lines_bytes() + ChunkRing::kSlots * static_cast<size_t>(geometry.chunk_bytes);
}

// Returns the elements per chunk; 0: the whole operation is one chunk.
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

Pipeline::Pipeline(int rank, SharedMemory& memory, const std::vector<std::byte*>& blocks,
                   std::vector<SleepLine*> sleepers, const Geometry& geometry,
                   std::vector<int> pair)
    : rank_(rank),
      geometry_{geometry.chunk_bytes, geometry.one_shot_bytes / static_cast<int64_t>(blocks.size()),
                geometry.read_in_place_bytes},
      memory_(memory),
      ring_(rank, ring_of(blocks), std::move(sleepers)),
      choice_(rank, ring_, lines_of(blocks[0]).told),
      pair_(std::move(pair)) {
  const auto ranks = static_cast<int64_t>(blocks.size());
  TUTTI_CHECK(geometry.chunk_bytes % 64 == 0 && geometry.chunk_bytes >= 64 * ranks &&
              geometry.one_shot_bytes <= geometry.chunk_bytes &&
              geometry.read_in_place_bytes > static_cast<int64_t>(ChunkLine::kPayload));
  for (auto* block : blocks) {
    auto& peer = peers_.emplace_back();
    peer.names = lines_of(block).names;
    peer.slots = block + lines_bytes();
    peer.results = peer.slots + ChunkRing::kSlots * static_cast<size_t>(geometry.chunk_bytes);
  }
  block_.resize(kCacheBlockBytes);
  inputs_.resize(peers_.size());
  outputs_.resize(peers_.size());
  share_outputs_.reserve(peers_.size() + 1);
  // The Call objects are made in advance, because the number of operations that run at the same
  // time varies from step to step.
  for (int i = 0; i < kFirstCalls; ++i) spare_.push_back(std::make_unique<Call>(*this));
}

Pipeline::~Pipeline() = default;

OperationPtr Pipeline::start(const Collective& collective, const Launch& launch) {
  const uint64_t epoch = launch.tag >> kQueueTagBits;
  if (epoch != epoch_) {
    TUTTI_CHECK(operations_.empty());
    epoch_ = epoch;
    ring_.begin_epoch(epoch << kQueueTagBits);
  }
  const uint64_t begin = ring_.end();
  const bool is_done = launch.spins > 0 && run_here(collective, launch);
  ring_.wake_sleepers(bell());
  if (is_done) return nullptr;
  return enqueue(collective, launch, begin);
}

OperationPtr Pipeline::enqueue(const Collective& collective, const Launch& launch, uint64_t begin) {
  if (spare_.empty()) {
    ++allocations_;
    spare_.push_back(std::make_unique<Call>(*this));
  }
  auto* call = spare_.back().release();
  spare_.pop_back();
  OperationPtr operation(call);
  call->prepare(collective, launch);
  call->begin = begin;
  call->end = begin + call->chunks();
  ring_.extend(call->end - ring_.end());
  operations_.push_back(call);
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

Pipeline::Call& Pipeline::call_of(uint64_t chunk) {
  for (auto* call : operations_)
    if (chunk < call->end) return *call;
  TUTTI_CHECK(false);
  return *operations_.front();
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
  const uint64_t chunk = ring_.filled();
  auto& call = call_of(chunk);
  const Range range = call.range_of(chunk);
  if (chunk == call.begin) tell_call(call, chunk);
  if (call.algorithm == kMove) {
    fill_move(call, chunk);
    ring_.publish_filled();
    return;
  }
  size_t bytes = call.bytes(range.count);
  if (call.algorithm == kDirect || call.algorithm == kFused) {
    const Places places = own_places(call.windows[0].data, call.update);
    std::memcpy(ring_.own_line(chunk).payload, &places, sizeof places);
    bytes = 0;
  } else if (call.verdict == 0 && call.algorithm == kOneShot) {
    fill_one_shot(call, chunk, range);
  } else if (call.verdict == 0) {
    const Range mine = share_of(rank_, size(), range, call.element);
    fill_two_shot(call, chunk, range, mine);
    bytes -= call.bytes(mine.count);
  }
  bytes_ += bytes;
  ring_.publish_filled();
}

void Pipeline::fill_one_shot(const Call& call, uint64_t chunk, Range range) {
  const bool chooses = call.chooses_destination();
  auto destination = Destination::cache;
  if (chooses) destination = choice_.choose(call.destination_word(), chunk);
  if (call.keeps_input(range)) return;
  const auto bytes = call.bytes(range.count);
  const AddTime time(chooses ? choice_.time_of(chunk) : nullptr);
  leave_input(call, range, small_place(own_rank(), chunk, bytes), destination);
  copied_ += bytes;
}

// Publishes the offsets of this rank's input and output if its peers can reach them. If they cannot
// reach the input, packs the elements that they read into this rank's slot.
void Pipeline::fill_two_shot(const Call& call, uint64_t chunk, Range range, Range mine) {
  auto& line = ring_.own_line(chunk);
  const Destination destination = choice_.choose(call.destination_word(), chunk);
  const AddTime time(choice_.time_of(chunk));
  const auto place_of = [&](const std::byte* view) {
    return view == nullptr ? SharedMemory::kNowhere
                           : memory_.place_of(view, call.bytes(range.count));
  };
  const uint64_t input = place_of(call.input_view(range));
  const uint64_t output =
      call.is_wanted ? place_of(call.output_view(range)) : SharedMemory::kNowhere;
  std::memcpy(line.payload + kInputAt, &input, sizeof input);
  std::memcpy(line.payload + kOutputAt, &output, sizeof output);
  if (input != SharedMemory::kNowhere) return;
  auto* slot = own().slots + slot_at(chunk);
  leave_input(call, {range.begin, mine.begin - range.begin}, slot, destination);
  leave_input(call, {mine.end(), range.end() - mine.end()},
              slot + call.bytes(mine.end() - range.begin), destination);
  if (call.input_view(mine) == nullptr) call.fill(mine, own().results + slot_at(chunk));
  copied_ += call.bytes(range.count - mine.count);
}

// Writes into this rank's slot, at `place`, the elements that other ranks read.
void Pipeline::leave_input(const Call& call, Range range, std::byte* place,
                           Destination destination) {
  if (destination == Destination::cache) {
    call.fill(range, place);
    return;
  }
  const int64_t step = kCacheBlockBytes / call.element;
  for (const int64_t end = range.end(); range.begin < end; range.begin += step) {
    const Range part{range.begin, std::min(step, end - range.begin)};
    const auto* view = call.input_view(part);
    if (view == nullptr) {
      call.fill(part, block_.data());
      view = block_.data();
    }
    copy_past_caches(place, view, call.bytes(part.count));
    place += call.bytes(part.count);
  }
}

// Returns the offset that a rank published with a chunk, at byte `at` of the payload. kNowhere
// means that the rank uses its slots instead.
uint64_t Pipeline::told_place(size_t rank, uint64_t chunk, size_t at) const {
  uint64_t place = 0;
  std::memcpy(&place, ring_.line(rank, chunk).payload + at, sizeof place);
  return place;
}

void Pipeline::drain() {
  const uint64_t chunk = ring_.drained();
  auto& call = call_of(chunk);
  if (call.algorithm == kTwoShot) {
    drain_shares(call, chunk);
    // Two sorts of chunks are not measured. The time of a short chunk is mostly waiting. A chunk
    // that is read in place has no packing.
    if (const auto bytes = call.bytes(call.range_of(chunk).count);
        bytes >= static_cast<size_t>(geometry_.chunk_bytes) / 4 && !is_read_in_place(chunk))
      choice_.learn(call.destination_word(), chunk, bytes);
  }
  ring_.finish_drained();
}

void Pipeline::drain_shares(const Call& call, uint64_t chunk) {
  const AddTime time(choice_.time_of(chunk));
  const Range range = call.range_of(chunk);
  // If this rank published the offset of its output, each rank has already written its share there.
  if (!call.is_wanted || told_place(own_rank(), chunk, kOutputAt) != SharedMemory::kNowhere) return;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const Range share = share_of(static_cast<int>(rank), size(), range, call.element);
    // This rank's own share may already be in the output.
    if (static_cast<int>(rank) == rank_ && call.output_view(share) != nullptr) continue;
    call.drain(share, peers_[rank].results + slot_at(chunk));
    copied_ += call.bytes(share.count);
  }
}

void Pipeline::retire_finished() {
  while (!operations_.empty() && operations_.front()->end <= ring_.drained()) {
    operations_.front()->state = OperationState::done;
    operations_.pop_front();
  }
}

bool Pipeline::progress() {
  if (operations_.empty()) return false;
  if (ring_.is_aborted()) {
    fail_all({});
    return true;
  }
  // The number of steps is bounded, because the thread that drives the engine must also do other
  // work.
  constexpr int kMostSteps = 16;
  bool moved = false;
  try {
    for (int step = 0; step < kMostSteps && !operations_.empty(); ++step) {
      const auto stage = ring_.next_stage(its_end());
      if (stage == ChunkRing::Stage::none) break;
      if (stage == ChunkRing::Stage::fill) fill();
      if (stage == ChunkRing::Stage::reduce) reduce();
      ring_.wake_sleepers(bell());
      if (stage == ChunkRing::Stage::drain) drain();
      moved = true;
      retire_finished();
    }
  } catch (const Error& error) {
    // A peer's memory cannot be reached, so nothing of this queue can go on.
    fail_all(error);
    return true;
  }
  if (!moved && ring_.publish_retired()) {
    ring_.wake_sleepers(bell());
    moved = true;
  }
  return moved;
}

void Pipeline::fail_all(const std::optional<Error>& why) {
  ring_.give_up(operations_.front()->begin);
  for (auto* call : operations_) {
    call->why = why;
    call->state = OperationState::failed;
  }
  operations_.clear();
}

// Returns whether the next chunk to reduce needs no drain stage. That holds for small operations
// and for operations on which the ranks do not agree.
bool Pipeline::ends_when_reduced() {
  const uint64_t chunk = ring_.reduced();
  const auto& call = call_of(chunk);
  const bool is_first = chunk == call.begin;
  if (call.algorithm == kOneShot || (is_first && !is_agreed(chunk))) return true;
  if (call.algorithm != kMove) return false;
  return !(is_first ? call.tells_place() && is_read_in_place(chunk) : call.parts.is_kept);
}

bool Pipeline::may_sleep() { return operations_.empty() || ring_.may_sleep(its_end()); }

void Pipeline::forget(Call& call) {
  const auto found = std::find(operations_.begin(), operations_.end(), &call);
  if (found == operations_.end()) return;
  operations_.erase(found);
  ring_.give_up(call.begin);
}

std::vector<int> Pipeline::missing() const {
  std::vector<int> ranks;
  if (operations_.empty()) return ranks;
  const uint64_t chunk = operations_.front()->begin;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    if (ring_.lacks(rank, chunk)) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

bool Pipeline::lacks_ranks() const {
  if (operations_.empty()) return false;
  const uint64_t chunk = operations_.front()->begin;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    if (ring_.lacks(rank, chunk)) return true;
  return false;
}

void Pipeline::count(TransportCounters& counters) const {
  counters.messages_sent += ring_.messages();
  counters.bytes_sent += bytes_;
  counters.allocations += allocations_;
  counters.copied_bytes += copied_;
}

}  // namespace tutti
