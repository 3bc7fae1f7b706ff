// The middle stage of the pipeline for kinds that move elements or reduce a part for each rank. It
// reads the peers' slots, or their input if that is in shared memory.

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "tutti/backends/shared/pipeline_call.h"
#include "tutti/kernels/copy.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

namespace {

bool has_part_for_each(CollectiveKind kind) { return deals_parts(kind) || exchanges_parts(kind); }

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t longest_part(const Collective& collective) {
  if (exchanges_parts(collective.kind)) return collective.longest;
  int64_t longest = 0;
  for (const int64_t count : collective.send_counts) longest = std::max(longest, count);
  return longest;
}

bool is_one_memory(const std::byte* one, size_t bytes, const std::byte* other, size_t others) {
  const std::less<const std::byte*> before;
  return bytes > 0 && others > 0 && before(one, other + others) && before(other, one + bytes);
}

// Returns the range of a part that a chunk holds. The part has `count` elements. `range` is the
// chunk's range in the longest part.
Range in_chunk(int64_t count, Range range) {
  const int64_t begin = std::min(range.begin, count);
  return {begin, std::min(range.end(), count) - begin};
}

void begin_at(std::vector<int64_t>& begins, std::span<const int64_t> counts) {
  begins.resize(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), int64_t{0});
}

}  // namespace

int64_t Pipeline::parts_of(CollectiveKind kind, int size) {
  return has_part_for_each(kind) ? size : 1;
}

// Returns how many elements of each part fit into a chunk.
int64_t Pipeline::moved_at_once(CollectiveKind kind, DataType dtype) const {
  const int64_t unit = elements_per_line(size_of(dtype));
  const int64_t elements = geometry_.chunk_bytes / size_of(dtype) / parts_of(kind, size());
  return std::max<int64_t>(1, elements / unit * unit);
}

bool Pipeline::Call::gives(int rank) const {
  const auto& is = traits(kind);
  return is.input != Content::nothing && (!is.from_root || rank == root);
}

int64_t Pipeline::Call::given_to(int rank) const {
  if (!gives(pipeline_.rank_)) return 0;
  if (is_elementwise(kind)) return parts.send_counts[0];
  return parts.send_counts[static_cast<size_t>(parts.count > 1 ? rank : pipeline_.rank_)];
}

int64_t Pipeline::Call::received_from(int rank) const {
  if (!gives(rank)) return 0;
  const auto& is = traits(kind);
  if (is.to_root && pipeline_.rank_ != root) return 0;
  switch (is.output) {
    case Content::nothing:
      return 0;
    case Content::whole:
      return parts.send_counts[0];
    case Content::part:
      return parts.send_counts[static_cast<size_t>(pipeline_.rank_)];
    case Content::parts:
      return parts.send_counts[static_cast<size_t>(rank)];
    case Content::exchanged:
      return parts.recv_counts[static_cast<size_t>(rank)];
  }
  return 0;
}

const std::byte* Pipeline::Call::part_for(int rank) const {
  const auto* begin = parts.held.empty() ? input : parts.held.data();
  return begin + (parts.given_at.empty() ? 0 : parts.given_at[static_cast<size_t>(rank)] * element);
}

std::byte* Pipeline::Call::place_for(int rank) const {
  return output +
         (parts.received_at.empty() ? 0 : parts.received_at[static_cast<size_t>(rank)] * element);
}

void Pipeline::Call::lay_out_move(const Collective& collective) {
  const int rank = pipeline_.rank_, size = pipeline_.size();
  parts.count = parts_of(kind, size);
  parts.send_counts = collective.send_counts;
  parts.recv_counts = collective.recv_counts;
  count = longest_part(collective);
  parts.given_at.clear();
  parts.received_at.clear();
  parts.held.clear();
  parts.sources.clear();
  parts.is_own_in_slot = parts.is_kept = false;
  parts.place = SharedMemory::kNowhere;
  if (parts.count > 1) begin_at(parts.given_at, parts.send_counts);
  if (joins_parts(kind)) begin_at(parts.received_at, parts.send_counts);
  const bool exchanges = exchanges_parts(kind);
  if (exchanges) begin_at(parts.received_at, parts.recv_counts);
  if (!gives(rank) || verdict != 0) return;  // a rank that vetoes has no input

  const int64_t own = given_to(rank);
  const auto given = bytes(parts.count > 1 ? sum_of(parts.send_counts) : own);
  // The output may overwrite input that is not packed yet. That cannot happen if everything is
  // packed into one chunk, or if each part that comes back replaces the part that was sent.
  // Otherwise a copy of the input is kept.
  if (exchanges || kind == CollectiveKind::reduce_scatter) {
    const auto taken = bytes(exchanges ? sum_of(parts.recv_counts) : own);
    const bool is_own_part = kind == CollectiveKind::reduce_scatter &&
                             output == input + parts.given_at[static_cast<size_t>(rank)] * element;
    // If the result replaces this rank's own part, each element is overwritten only after the
    // reduction has read it. No other rank reads that part.
    parts.is_own_in_slot = !is_own_part && is_one_memory(input, given, output, taken);
    const bool is_back =
        input == output && (!exchanges || std::ranges::equal(parts.send_counts, parts.recv_counts));
    if (parts.is_own_in_slot && !is_back && count > pipeline_.moved_at_once(kind, dtype)) {
      ++pipeline_.allocations_;
      parts.held.assign(input, input + given);
    }
  }
  const bool is_for_others =
      kind == CollectiveKind::gather ? rank != root : given > (parts.count > 1 ? bytes(own) : 0);
  if (given >= static_cast<size_t>(pipeline_.geometry_.read_in_place_bytes) && is_for_others &&
      !parts.is_own_in_slot)
    parts.place = pipeline_.memory_.place_of(input, given);
}

void Pipeline::fill_move(const Call& call, uint64_t chunk) {
  auto& line = ring_.own_line(chunk);
  if (call.tells_place())
    std::memcpy(line.payload + kInputAt, &call.parts.place, sizeof call.parts.place);
  if (call.verdict != 0) return;
  Destination destination = Destination::cache;
  const bool chooses = call.chooses_destination();
  if (chooses) destination = choice_.choose(call.destination_word(), chunk);
  if (!call.gives(rank_)) return;
  const AddTime time(chooses ? choice_.time_of(chunk) : nullptr);
  const Range range = call.range_of(chunk);
  auto* slot = small_place(own_rank(), chunk, call.slot_bytes());
  const bool is_packed = call.parts.place == SharedMemory::kNowhere;
  // If the input is read in place, the peers do not know where the part of each rank begins. So
  // this rank publishes the offsets.
  if (!is_packed && exchanges_parts(call.kind) && chunk == call.begin)
    std::memcpy(slot, call.parts.given_at.data(),
                call.parts.given_at.size() * sizeof call.parts.given_at[0]);
  const size_t stride = call.slot_bytes() / static_cast<size_t>(call.parts.count);
  for (int64_t part = 0; part < call.parts.count; ++part) {
    const int to = static_cast<int>(part);
    const bool is_own = call.parts.count > 1
                            ? to == rank_
                            : call.kind == CollectiveKind::gather && call.root == rank_;
    if (is_own && !call.parts.is_own_in_slot) continue;
    const Range piece = in_chunk(call.given_to(to), range);
    if (piece.count == 0) continue;
    if (is_packed) {
      auto* place = slot + static_cast<size_t>(part) * stride;
      const auto* elements = call.part_for(to) + piece.begin * call.element;
      copy_to(destination, place, elements, call.bytes(piece.count));
    }
    if (!is_own) bytes_ += call.bytes(piece.count);
    if (is_packed) copied_ += call.bytes(piece.count);
  }
}

// Returns whether any rank published that its input is read in place. Kinds that move elements
// publish that with the first chunk of an operation. Allreduces in two shots publish it with each
// chunk.
bool Pipeline::is_read_in_place(uint64_t chunk) const {
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    if (told_place(rank, chunk, kInputAt) != SharedMemory::kNowhere) return true;
  return false;
}

// Finds the addresses of the parts for this rank that it reads in place. `chunk` is the first chunk
// of the operation, which all ranks have published.
void Pipeline::learn_sources(Call& call, uint64_t chunk) {
  call.parts.is_kept = call.tells_place() && is_read_in_place(chunk);
  if (!call.parts.is_kept) return;
  call.parts.sources.assign(peers_.size(), nullptr);
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const uint64_t place = told_place(rank, chunk, kInputAt);
    const int64_t count = call.received_from(static_cast<int>(rank));
    if (static_cast<int>(rank) == rank_ || place == SharedMemory::kNowhere || count == 0) continue;
    int64_t begin = 0;
    const auto mine = static_cast<size_t>(rank_);
    if (exchanges_parts(call.kind))
      std::memcpy(&begin, peers_[rank].slots + slot_at(chunk) + mine * sizeof begin, sizeof begin);
    else if (call.parts.count > 1)
      begin = sum_of(call.parts.send_counts.first(mine));
    call.parts.sources[rank] =
        memory_.at(static_cast<int>(rank), place + static_cast<uint64_t>(begin * call.element),
                   call.bytes(count));
  }
}

// Returns whether this rank reads the part from `rank` in place instead of from a slot.
bool Pipeline::is_in_place(const Call& call, size_t rank) const {
  if (static_cast<int>(rank) == rank_) return !call.parts.is_own_in_slot;
  return !call.parts.sources.empty() && call.parts.sources[rank] != nullptr;
}

// Returns the address of the part that `rank` sends to this rank, from element `begin` on.
const std::byte* Pipeline::moved_from(const Call& call, size_t rank, uint64_t chunk,
                                      int64_t begin) const {
  if (is_in_place(call, rank))
    return (static_cast<int>(rank) == rank_ ? call.part_for(rank_) : call.parts.sources[rank]) +
           begin * call.element;
  const size_t stride = call.slot_bytes() / static_cast<size_t>(call.parts.count);
  return small_place(rank, chunk, call.slot_bytes()) +
         (call.parts.count > 1 ? static_cast<size_t>(rank_) * stride : 0);
}

void Pipeline::move(Call& call, uint64_t chunk) {
  if (chunk == call.begin) learn_sources(call, chunk);
  const Range range = call.range_of(chunk);
  if (!call.chooses_destination()) return take_moved(call, chunk, range);
  {
    const AddTime time(choice_.time_of(chunk));
    take_moved(call, chunk, range);
  }
  if (range.count > 0)
    choice_.learn(call.destination_word(), chunk, call.bytes(call.parts.count * range.count));
}

void Pipeline::take_moved(const Call& call, uint64_t chunk, Range range) {
  if (call.kind == CollectiveKind::reduce_scatter) return reduce_part(call, chunk, range);
  // Each rank begins with a different peer, so that not all ranks read from one rank at the same
  // time.
  for (size_t i = 0; i < peers_.size(); ++i) {
    const size_t rank = (static_cast<size_t>(rank_) + i) % peers_.size();
    const Range piece = in_chunk(call.received_from(static_cast<int>(rank)), range);
    if (piece.count == 0) continue;
    const auto* source = moved_from(call, rank, chunk, piece.begin);
    auto* target = call.place_for(static_cast<int>(rank)) + piece.begin * call.element;
    const auto bytes = call.bytes(piece.count);
    if (!is_in_place(call, rank)) copied_ += bytes;
    if (i == 0 && source != target)
      std::memmove(target, source, bytes);
    else if (i > 0 && call.count * call.element < kBeyondCachesBytes)
      std::memcpy(target, source, bytes);
    else if (i > 0)
      copy_past_caches(target, source, bytes);
  }
}

void Pipeline::reduce_part(const Call& call, uint64_t chunk, Range range) {
  const Range piece = in_chunk(call.received_from(rank_), range);
  if (piece.count == 0) return;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    inputs_[rank] = moved_from(call, rank, chunk, piece.begin);
    if (!is_in_place(call, rank)) copied_ += call.bytes(piece.count);
  }
  tutti::reduce(call.dtype, call.op, call.output + piece.begin * call.element, inputs_, piece.count,
                call.scale, Destination::cache);
}

// Returns the traffic as if all ranks packed their input.
Traffic Pipeline::predict_move(const Collective& collective) const {
  using enum CollectiveKind;
  const auto [kind, dtype] = std::pair(collective.kind, collective.dtype);
  const int64_t count = longest_part(collective);
  const int64_t each = elements_of_chunk(kMove, kind, dtype, count);
  const int64_t chunks = each == 0 ? 1 : (count + each - 1) / each;
  const auto& counts = collective.send_counts;
  const bool is_root = collective.root == rank_;
  const auto mine = static_cast<size_t>(rank_);
  int64_t given = 0;
  if (kind == broadcast)
    given = is_root ? counts[0] : 0;
  else if (kind == gather)
    given = is_root ? 0 : counts[mine];
  else if (kind == allgather)
    given = counts[mine];
  else if (kind != barrier && (kind != scatter || is_root))
    given = sum_of(counts) - counts[mine];
  return {static_cast<uint64_t>(chunks), static_cast<uint64_t>(given * size_of(dtype))};
}

}  // namespace tutti
